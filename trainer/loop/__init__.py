"""Training: the loop on the host (`fit.py`), a step on the device (`step.py`), and what stands around them.

`optim.py`, `schedule.py` and `parallel.py` are the update, its rate and its ranks; `guard.py` and `incident.py` deal with bad
steps, `oom.py` with a full device; `metrics.py`, `curves.py`, `sinks.py`, `noise.py`, `flops.py`, `evaluate.py` and `window.py`
say how it goes.
"""
