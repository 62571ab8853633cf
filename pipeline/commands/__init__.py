"""Commands beside `build`: before it (`initialize.py`, which looks with `survey.py` and `peek.py`; `quality.py`), and on
what it made (`look.py`, `why.py`, `tokens.py`, `pack.py`, `export.py`); `bring.py` imports what others made.
"""
