"""Removal of documents, and spans of documents, that the corpus already has.

`exact.py`, `minhash.py` and `spans.py` are the stages. Behind `minhash-dedup`, in the order in which a document meets
them: `signature.py` (with `minima.py` and `bands.py`) signs it, `neighbours.py` brings it together with documents that
share a band, `clusters.py` compares and decides, `exactly.py` measures on the text itself, `audit.py` and `selftest.py`
check the whole; `jaccard.py` is the truth that they check against, `shares.py` states what a sample can say. `winnow.py`
has the kernels of `span-dedup`.
"""
