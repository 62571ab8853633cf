"""Tiny corpora on disk, as `pipeline build` would leave them, made from lists of token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stages.contract import manifest as m
from stages.contract.rows import rows_kind
from stages.contract.shard import Documents, FileFacts, ShardFacts, read_index, token_dtype, write_shard
from stages.shards.pack import pack_shard

#: Ends every document. The other ids of a corpus are 1 … vocab - 1.
EOS = 0


def make_corpus(
    folder: Path,
    sources: Mapping[str, Sequence[Sequence[int]]],
    vocab: int = 256,
    documents_per_shard: int = 1 << 30,
    holdout: Mapping[str, Sequence[Sequence[int]]] | None = None,
    mixture: Mapping[str, float] | None = None,
    pack: Sequence[int] = (),
) -> Path:
    """Writes shards, a stand-in tokenizer file and manifest.json; returns the path of the manifest.

    sources   name -> documents, each a list of ids in 1 … vocab - 1; the EOS (0) is added here
    pack      lengths to pack rows for
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, documents in sources.items():
        shards, largest = _write(folder, f"shards/{name}", name, documents, vocab, documents_per_shard)
        shards = [pack_entry(folder, shard, pack) for shard in shards]
        kept, _ = _write(
            folder, f"holdout/{name}", f"held {name}", (holdout or {}).get(name, ()), vocab, 1 << 30
        )
        lengths = np.array([len(document) + 1 for document in documents], np.int64)
        entries[name] = m.SourceEntry(
            uid=m.source_uid(name),
            digest=m.source_digest(shards),
            documents=len(documents),
            tokens=int(lengths.sum()),
            text_bytes=int(lengths.sum()) * 4,
            largest_id=largest,
            lengths=m.Lengths.of(lengths),
            shards=tuple(shards),
            holdout=tuple(kept),
        )
    (folder / "tokenizer").mkdir(exist_ok=True)
    tokenizer = folder / "tokenizer" / "tokenizer.json"
    tokenizer.write_text('{"made": "for tests"}\n')
    manifest = m.Manifest(
        name="tiny",
        seed=0,
        config_digest="0" * 64,
        dtype="uint16" if token_dtype(vocab).itemsize == 2 else "uint32",
        tokenizer=m.TokenizerEntry(
            path="tokenizer/tokenizer.json",
            sha256=hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
            vocab_size=vocab,
            eos_id=EOS,
            largest_id=vocab - 1,
        ),
        sources=entries,
        mixture=dict(mixture or {}),
    )
    return m.save(folder, manifest)


def random_documents(count: int, longest: int, vocab: int = 256, seed: int = 0) -> list[list[int]]:
    """`count` documents of 1 … `longest` ids drawn from 1 … vocab - 1."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab, int(n)).tolist() for n in rng.integers(1, longest + 1, count)]


def document_ids(name: str, count: int) -> np.ndarray:
    """The V16 ids that `make_corpus` gives to the documents of a source (`held <name>` for its holdout)."""
    raw = b"".join(hashlib.blake2b(f"{name}\0{i}".encode(), digest_size=16).digest() for i in range(count))
    return np.frombuffer(raw, "V16")


def _write(
    folder: Path, prefix: str, name: str, documents: Sequence[Sequence[int]], vocab: int, per_shard: int
) -> tuple[list[m.ShardEntry], int]:
    ids = document_ids(name, len(documents))
    entries, largest = [], -1
    for number, start in enumerate(range(0, len(documents), per_shard)):
        part = documents[start : start + per_shard]
        shard_name = f"{prefix}/{number:05d}"
        facts = write_shard(folder / shard_name, _batches(part, ids[start : start + per_shard]), vocab, EOS)
        entries.append(shard_entry(shard_name, facts))
        largest = max(largest, facts.largest_id)
    return entries, largest


def pack_entry(folder: Path, shard: m.ShardEntry, lengths: Sequence[int]) -> m.ShardEntry:
    """The shard with packed rows of these lengths, written beside it."""
    records = read_index(shard.path(folder, "idx"), shard.tokens)
    files, rows = dict(shard.files), {}
    for length in lengths:
        packing = pack_shard(records["length"], records["id"], length)
        data = packing.rows.to_bytes()
        (folder / f"{shard.name}.{rows_kind(length)}").write_bytes(data)
        files[rows_kind(length)] = m.FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        rows[str(length)] = packing.groups
    return shard.model_copy(update={"files": files, "rows": rows})


def _batches(documents: Sequence[Sequence[int]], ids: np.ndarray) -> Iterator[Documents]:
    for document, one in zip(documents, ids, strict=True):
        tokens = np.array([*document, EOS], np.int64)
        yield Documents(tokens, np.array([len(tokens)]), np.array([one], "V16"))


def shard_entry(name: str, facts: ShardFacts) -> m.ShardEntry:
    """The manifest's entry of a written shard."""

    def entry(file: FileFacts) -> m.FileEntry:
        return m.FileEntry(bytes=file.bytes, sha256=file.sha256)

    return m.ShardEntry(
        name=name,
        documents=facts.documents,
        tokens=facts.tokens,
        files={"tok": entry(facts.tok), "idx": entry(facts.idx), "crc": entry(facts.crc)},
    )
