"""From a config to results of tasks, whatever dies on the way.

`plan.py` and `passes.py` say what will run, `inputs.py` and `intake.py` cut the inputs into tasks, `run.py` goes through
the passes and `rounds.py` through the supersteps of a global stage. `task.py` is one task: `origin.py` reads, the stages
work (`uses.py`), `writer.py` writes what is left of the documents and why the others went, `tally.py` keeps the books. `driver.py`
hands tasks to an executor (`executor.py` here, `cluster.py` on Ray);
`store.py` and `sealed.py` make results last; `records.py` and `state.py` are what is known of them.
"""
