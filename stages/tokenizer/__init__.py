"""Byte-level BPE: cutting text, learning merges, encoding, and what a tokenizer does to a corpus.

Cutting: `patterns.py` has the regular expressions by name, `characters.py` the classes of characters, `pretokenize.py` cuts.
Training: `sampling.py` chooses documents, `pieces.py` counts the distinct pieces, `learn.py` finds the merges,
`tokenizer_json.py` writes them down; `bpe.py` is the global stage around it. Encoding: `encode.py` reads a tokenizer.json,
`piece_cache.py` knows the pieces seen before, `segments.py` takes long ones apart, `merging.py` merges the others,
`added_tokens.py` finds the tokens that are matched before anything is cut. `report.py` says what came of it.
"""
