"""From plan.yaml, a corpus and a machine to the plan that runs.

`draft.py` holds what is known so far; `equations.py` and `rules.py` are the tables that `solver.py` works with,
`contradictions.py` and `checks.py` say what does not hold; `corpus.py` and `lengths.py` look at the corpus, `memory.py` and
`budget.py` at the device. `plan.py` goes through all of it, `assemble.py` makes the value that runs (`trainer/planned.py`).
The rest answers questions: `show`, `explain`, `whatif`, `suggest`, `losslaw`, `trace`, `page`, `initialize`, `reference`.
"""
