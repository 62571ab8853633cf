"""`pipeline import`: token files of other tools become a corpus with a manifest, each file a source of its own.

Documents get ids from their place, as everywhere: source, file, number. Their tokens stay as they are, but for one end
token behind each document, which is added where it is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stages.contract import manifest as m
from stages.contract.files import sha256_file, write_atomic
from stages.contract.names import canonical_json, check_source_name, digest, source_uid
from stages.contract.problem import Problem, RunError, SpecError
from stages.contract.shard import Documents, FileFacts, token_dtype, write_shard
from stages.document import document_id
from stages.tokenizer.encode import Encoder

#: Documents, and tokens of a file without an index, that are taken at once.
DOCUMENTS = 8192
TOKENS = 1 << 22

#: Types of token ids by their number in Megatron's index.
MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}

#: Tokens and lengths of some documents, without any end token of ours.
Chunk = tuple[np.ndarray, np.ndarray]


def bring(
    kind: str,
    inputs: Mapping[str, Path],
    tokenizer: Path,
    out: Path,
    shard_tokens: int,
    name: str | None = None,
    eos: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Writes a corpus to `out`: `(text, data)`.

    kind       megatron (.bin with .idx beside it), nanogpt (.bin of uint16), hf-datasets (a folder of `save_to_disk`
               with a column input_ids)
    inputs     source name -> file or folder
    tokenizer  the tokenizer.json that made the ids; it is copied. `eos` is its end token where that has an unusual name
    SpecError when a name, the tokenizer or `out` cannot be used; RunError when a file cannot be read, or holds ids
    that the tokenizer does not have.
    """
    problems = [Problem("C016", sentence) for one in inputs if (sentence := check_source_name(one))]
    if out.exists() and any(out.iterdir()):
        problems.append(Problem("C020", f"{out} is not empty", repairs=("name a new folder",)))
    if problems:
        raise SpecError(*problems)
    encoder = Encoder.load(str(tokenizer), eos)
    read = READERS[kind]
    entries = {}
    for source, path in inputs.items():
        if not path.exists():
            raise SpecError(Problem("D005", f"{source}: there is no file {path}"))
        empty = [0]
        chunks = _ended(read(path, encoder.eos_id), encoder.eos_id, empty)
        entry = _write_source(out, source, path, chunks, encoder, shard_tokens)
        step = m.FunnelStep(stage="import", documents_in=entry.documents + empty[0], documents_out=entry.documents,
                            dropped={"empty": empty[0]} if empty[0] else {})  # fmt: skip
        entries[source] = entry.model_copy(update={"funnel": (step,)})
    write_atomic(out / "tokenizer" / "tokenizer.json", tokenizer.read_bytes())
    total = sum(entry.tokens for entry in entries.values())
    if not total:
        raise RunError(Problem("D005", "there is not a single document in these files"))
    manifest = m.Manifest(
        name=name or out.name,
        seed=0,
        config_digest=digest("import", kind, canonical_json({n: e.inputs.digest for n, e in entries.items() if e.inputs})),
        dtype="uint16" if token_dtype(encoder.vocab_size).itemsize == 2 else "uint32",
        tokenizer=m.TokenizerEntry(
            path="tokenizer/tokenizer.json",
            sha256=sha256_file(tokenizer),
            vocab_size=encoder.vocab_size,
            eos_id=encoder.eos_id,
            largest_id=max(entry.largest_id for entry in entries.values()),
        ),
        sources=entries,
        mixture={one: entry.tokens / total for one, entry in entries.items()},
    )
    saved = m.save(out, manifest)
    lines = [f"{one}: {entry.documents:,} documents, {entry.tokens:,} tokens" for one, entry in entries.items()]
    sources = {one: {"documents": e.documents, "tokens": e.tokens} for one, e in entries.items()}
    return "\n".join([*lines, f"wrote {saved}"]), {"manifest": str(saved), "sources": sources}


def _ended(chunks: Iterator[Chunk], eos_id: int, empty: list[int]) -> Iterator[Chunk]:
    """The documents with exactly one end token each, at their end. RunError where one has one inside.

    Those without a token of text are left out and counted in `empty[0]`.
    """
    done = 0
    for tokens, lengths in chunks:
        ends = np.cumsum(lengths)
        has = np.zeros(len(lengths), bool)
        has[lengths > 0] = tokens[ends[lengths > 0] - 1] == eos_id
        if int(np.count_nonzero(tokens == eos_id)) != int(has.sum()):
            message = f"a document near number {done:,} holds the end token {eos_id:,} inside, or more than once at its end"
            repairs = ("give the tokenizer.json that made these ids", "cut the documents at their end tokens first")
            raise RunError(Problem("D003", message, repairs=repairs))
        done += len(lengths)
        real = lengths > has
        empty[0] += int(np.count_nonzero(~real))
        tokens, lengths, has = tokens[np.repeat(real, lengths)], lengths[real], has[real]
        full = lengths + ~has
        result = np.full(int(full.sum()), eos_id, tokens.dtype)
        keep = np.ones(len(result), bool)
        keep[np.cumsum(full)[~has] - 1] = False
        result[keep] = tokens
        yield result, full


def _write_source(
    out: Path, source: str, path: Path, chunks: Iterator[Chunk], encoder: Encoder, shard_tokens: int
) -> m.SourceEntry:
    """The shards of one source: as many documents as fit, at least one."""
    shards: list[m.ShardEntry] = []
    lengths: list[np.ndarray] = []
    largest, first = -1, 0
    for batches in _cut(chunks, shard_tokens):
        documents = []
        for tokens, size in batches:
            ids = b"".join(document_id(source, path.name, first + i) for i in range(len(size)))
            documents.append(Documents(tokens, size, np.frombuffer(ids, "V16")))
            first += len(size)
            lengths.append(size)
        name = f"shards/{source}/{len(shards):05d}"
        try:
            facts = write_shard(out / name, documents, encoder.vocab_size, encoder.eos_id)
        except ValueError as error:
            raise RunError(Problem("D003", f"{path}: {error}", repairs=("give the tokenizer.json that made these ids",))) from error
        largest = max(largest, facts.largest_id)
        files = {kind: _entry(fact) for kind, fact in (("tok", facts.tok), ("idx", facts.idx), ("crc", facts.crc))}
        shards.append(m.ShardEntry(name=name, documents=facts.documents, tokens=facts.tokens, files=files))
    every = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    held = sorted(path.rglob("*")) if path.is_dir() else [path]
    stored = [file for file in held if file.is_file()]
    return m.SourceEntry(
        uid=source_uid(source),
        digest=m.source_digest(shards),
        documents=len(every),
        tokens=int(every.sum()),
        text_bytes=0,
        largest_id=largest,
        lengths=m.Lengths.of(every),
        shards=tuple(shards),
        inputs=m.Inputs(
            files=len(stored),
            bytes=sum(file.stat().st_size for file in stored),
            digest=digest(*(part for file in stored for part in (file.name, sha256_file(file)))),
        ),
    )


def _entry(fact: FileFacts) -> m.FileEntry:
    return m.FileEntry(bytes=fact.bytes, sha256=fact.sha256)


def _cut(chunks: Iterator[Chunk], shard_tokens: int) -> Iterator[list[Chunk]]:
    """Documents by shard: as many as fit, at least one."""
    open_chunks: list[Chunk] = []
    filled = 0
    for tokens, lengths in chunks:
        while len(lengths):
            total = np.cumsum(lengths)
            count = int(np.searchsorted(total, shard_tokens - filled, side="right"))
            if not count and not filled:
                count = 1
            if count:
                size = int(total[count - 1])
                open_chunks.append((tokens[:size], lengths[:count]))
                tokens, lengths, filled = tokens[size:], lengths[count:], filled + size
            if len(lengths):
                yield open_chunks
                open_chunks, filled = [], 0
    if open_chunks:
        yield open_chunks


def _read_megatron(path: Path, _eos_id: int) -> Iterator[Chunk]:
    """Documents of Megatron-LM's indexed dataset; sequences of one document are joined."""
    base = path.with_suffix("")
    data = base.with_suffix(".idx").read_bytes() if base.with_suffix(".idx").exists() else b""
    try:
        version, code, sequences, borders = struct.unpack_from("<QBQQ", data, 9)
        kind = np.dtype(MEGATRON_TYPES[code])
        if data[:9] != b"MMIDIDX\x00\x00" or version != 1:
            raise ValueError("its first bytes are others")
        at = 34
        sizes = np.frombuffer(data, "<i4", sequences, at).astype(np.int64)
        pointers = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
        documents = np.frombuffer(data, "<i8", borders, at + 12 * sequences)
        if np.any(pointers != (np.cumsum(sizes) - sizes) * kind.itemsize):
            raise ValueError("its sequences do not stand one behind the other")
    except (struct.error, KeyError, ValueError) as error:
        raise RunError(Problem("D004", f"{base}.idx is no index of Megatron-LM: {error}")) from error
    tokens = np.memmap(base.with_suffix(".bin"), kind, "r")
    if int(sizes.sum()) != len(tokens):
        message = f"{base}.bin has {len(tokens):,} tokens, its index states {int(sizes.sum()):,}"
        raise RunError(Problem("D004", message))
    starts = np.concatenate([[0], np.cumsum(sizes)])[documents]
    for first in range(0, len(starts) - 1, DOCUMENTS):
        edge = starts[first : first + DOCUMENTS + 1]
        yield np.asarray(tokens[edge[0] : edge[-1]]).astype(np.int64), np.diff(edge)


def _read_nanogpt(path: Path, eos_id: int) -> Iterator[Chunk]:
    """Documents of a bare stream of uint16, which the end token divides."""
    tokens = np.memmap(path, "<u2", "r") if path.stat().st_size else np.empty(0, "<u2")
    rest = np.empty(0, np.int64)
    for start in range(0, len(tokens), TOKENS):
        block = np.concatenate([rest, np.asarray(tokens[start : start + TOKENS]).astype(np.int64)])
        ends = np.flatnonzero(block == eos_id) + 1
        if start + TOKENS >= len(tokens) and (not len(ends) or ends[-1] < len(block)):
            ends = np.append(ends, len(block))
        last = int(ends[-1]) if len(ends) else 0
        yield block[:last], np.diff(ends, prepend=0)
        rest = block[last:]


def _read_hf(path: Path, _eos_id: int) -> Iterator[Chunk]:
    """Documents of a folder that `Dataset.save_to_disk` wrote, column input_ids."""
    import json

    import pyarrow as pa

    try:
        state = json.loads((path / "state.json").read_bytes())
        files = [path / str(one["filename"]).rpartition("/")[2] for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(Problem("D004", f"{path} is no folder of `save_to_disk`: {error}")) from error
    for file in files:
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_stream(source)
            if "input_ids" not in reader.schema.names:
                raise RunError(Problem("D004", f"{file} has no column input_ids; it has {', '.join(reader.schema.names)}"))
            for batch in reader:
                lists = batch.column("input_ids").cast(pa.large_list(pa.int64()))
                offsets = lists.offsets.to_numpy()
                values = lists.values.to_numpy(zero_copy_only=False)
                yield values[offsets[0] : offsets[-1]], np.diff(offsets)


READERS: dict[str, Callable[[Path, int], Iterator[Chunk]]] = {
    "megatron": _read_megatron,
    "nanogpt": _read_nanogpt,
    "hf-datasets": _read_hf,
}


def source_of(text: str) -> tuple[str, Path]:
    """`(name, path)` of `name=path`, or of a path alone, whose name it is then."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals else (Path(text).stem, Path(text))

