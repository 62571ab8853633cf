"""`pipeline export`: the documents of a corpus in the files of other tools. Tokens and their order stay as they are."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.engine.sealed import arrow_table
from stages.contract.files import atomic_file, write_atomic
from stages.contract.manifest import Manifest, ShardEntry, SourceEntry, load_manifest, verify_manifest
from stages.contract.problem import Problem, RunError, SpecError
from stages.contract.shard import TokenFile, read_index, token_dtype

#: Tokens that are read at once.
BLOCK = 1 << 24

#: How Megatron's index numbers the types of token ids.
MEGATRON_TYPES = {"<u2": 8, "<i4": 4}


def export(path: Path, target: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Writes the training documents of each source to `out` in the form `target`: `(text, data)`.

    megatron     <source>.bin and <source>.idx of Megatron-LM's indexed dataset; one document is one sequence
    hf-datasets  <source>/ as `Dataset.save_to_disk` writes it: columns id, input_ids
    parquet      <source>/NNNNN.parquet: columns id, input_ids, and those of provenance
    SpecError when `out` is not empty; RunError when the corpus is not whole.
    """
    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    if out.exists() and any(out.iterdir()):
        raise SpecError(Problem("C020", f"{out} is not empty", repairs=("name a new folder",)))
    if problems := verify_manifest(folder, manifest):
        raise RunError(*problems)
    write = WRITERS[target]
    written = {}
    for name, source in manifest.sources.items():
        if source.shards:
            write(folder, manifest, name, source, out)
            written[name] = {"documents": source.documents, "tokens": source.tokens}
    lines = [f"{name}: {one['documents']:,} documents, {one['tokens']:,} tokens" for name, one in written.items()]
    return "\n".join([*lines, f"wrote {out}"]), {"target": target, "out": str(out), "sources": written}


def _shards(folder: Path, manifest: Manifest, source: SourceEntry) -> Iterator[tuple[ShardEntry, np.ndarray, TokenFile]]:
    """Each shard with its index and its open tokens."""
    dtype = token_dtype(manifest.tokenizer.vocab_size)
    for shard in source.shards:
        records = read_index(shard.path(folder, "idx"), shard.tokens)
        with TokenFile(shard.path(folder, shard.token_kind), dtype, shard.places) as file:
            yield shard, records, file


def _write_megatron(folder: Path, manifest: Manifest, name: str, source: SourceEntry, out: Path) -> None:
    """Layout of the index: Megatron-LM, megatron/core/datasets/indexed_dataset.py."""
    stored = token_dtype(manifest.tokenizer.vocab_size)
    kind = np.dtype("<u2") if stored.itemsize == 2 else np.dtype("<i4")
    sizes = []
    with atomic_file(out / f"{name}.bin") as file:
        for shard, records, tokens in _shards(folder, manifest, source):
            sizes.append(records["length"].astype("<i4"))
            for start in range(0, shard.tokens, BLOCK):
                file.write(tokens.read(start, min(BLOCK, shard.tokens - start)).astype(kind).tobytes())
    lengths = np.concatenate(sizes)
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * kind.itemsize
    with atomic_file(out / f"{name}.idx") as file:
        count = len(lengths)
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, MEGATRON_TYPES[kind.str], count, count + 1))
        file.write(lengths.tobytes())
        file.write(pointers.astype("<i8").tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def _batches(
    folder: Path, manifest: Manifest, source: SourceEntry, value: pa.DataType
) -> Iterator[tuple[int, ShardEntry, pa.Table]]:
    """`(number, shard, id and input_ids of its documents)`."""
    for number, (shard, records, tokens) in enumerate(_shards(folder, manifest, source)):
        offsets = np.concatenate([[0], np.cumsum(records["length"], dtype=np.int64)])
        flat = tokens.read(0, shard.tokens)
        values = pa.array(flat).cast(value)
        ids = pa.array([one.tobytes().hex() for one in records["id"]], pa.string())
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), values)
        yield number, shard, pa.table({"id": ids, "input_ids": lists})


def _write_hf(folder: Path, manifest: Manifest, name: str, source: SourceEntry, out: Path) -> None:
    """Arrow streams with the two JSON files that `datasets.load_from_disk` reads."""
    target = out / name
    files = []
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.large_list(pa.int32()))])
    features = {
        "id": {"dtype": "string", "_type": "Value"},
        "input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "LargeList"},
    }
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for number, _, table in _batches(folder, manifest, source, pa.int32()):
        files.append(f"data-{number:05d}-of-{len(source.shards):05d}.arrow")
        with atomic_file(target / files[-1]) as file, pa.ipc.new_stream(pa.PythonFile(file, "w"), schema) as writer:
            writer.write_table(table.cast(schema), max_chunksize=1000)
    state: dict[str, Any] = {
        "_data_files": [{"filename": file} for file in files],
        "_fingerprint": source.digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"description": f"{manifest.name}: {name}", "license": source.license or "", "features": features,
            "citation": "", "homepage": ""}  # fmt: skip
    for called, content in (("state.json", state), ("dataset_info.json", info)):
        write_atomic(target / called, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def _write_parquet(folder: Path, manifest: Manifest, name: str, source: SourceEntry, out: Path) -> None:
    import pyarrow.parquet as pq

    value = pa.from_numpy_dtype(token_dtype(manifest.tokenizer.vocab_size))
    for number, shard, table in _batches(folder, manifest, source, value):
        if "docs" in shard.files:
            docs = arrow_table(shard.path(folder, "docs"))
            for column in docs.column_names:
                if column != "id":
                    table = table.append_column(column, docs.column(column))
        with atomic_file(out / name / f"{number:05d}.parquet") as file:
            pq.write_table(table, file, compression="zstd")


WRITERS: dict[str, Callable[[Path, Manifest, str, SourceEntry, Path], None]] = {
    "megatron": _write_megatron,
    "hf-datasets": _write_hf,
    "parquet": _write_parquet,
}
