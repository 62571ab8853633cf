"""Shards beyond their format: packed rows, streams of tokens, batches of rows, the layout `arrow`, provenance.

The format itself, with its checksums, is in `stages/contract/shard.py`.
"""
