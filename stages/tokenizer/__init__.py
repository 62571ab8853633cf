"""Byte-level BPE: cutting text, learning merges, encoding, and what a tokenizer does to a corpus.

Training: `sampling.py` chooses documents, `pretokenize.py` cuts them into pieces, `pieces.py` counts the distinct ones,
`learn.py` finds the merges, `tokenizer_json.py` writes them down; `bpe.py` is the global stage around it. Encoding:
`encode.py` reads a tokenizer.json, `piece_cache.py` knows the pieces seen before, `merging.py` merges the others,
`added_tokens.py` finds the tokens that are matched before anything is cut. `report.py` says what came of it.
"""
