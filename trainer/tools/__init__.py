"""Commands for the half-hour before a long run and the first hour after it goes wrong: one module a command.

All of them look at a run folder, a plan or a checkpoint from outside; the training loop knows nothing of them.
"""
