"""`pipeline pack`: rows of another length for a corpus that is built, from the index of its shards alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.lock import owner_of
from stages.contract.files import write_atomic
from stages.contract.manifest import FileEntry, Manifest, ShardEntry, SourceEntry, load_manifest, save
from stages.contract.problem import Problem, RunError
from stages.contract.rows import rows_kind
from stages.contract.shard import read_index
from stages.shards.pack import pack_shard


def pack(path: Path, lengths: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Packs every source of the corpus for these lengths and writes its manifest anew: `(text, data)`.

    Tokens are not read and not changed. Rows that are there already stay. RunError while a build works in the folder.
    """
    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    owner = owner_of(folder / "work")
    if owner:
        message = f"a build is running in {folder}: process {owner.get('pid')} on {owner.get('host')}"
        raise RunError(Problem("R004", message, repairs=("run this again when it has ended",)))
    sources = {name: _pack_source(folder, entry, lengths) for name, entry in manifest.sources.items()}
    changed = manifest.model_copy(update={"sources": sources})
    if changed != manifest:
        save(folder, changed)
    data = {name: _figures(entry, lengths) for name, entry in sources.items() if entry.shards}
    return _table(changed, data), {"manifest": changed.digest, "rows": data}


def _pack_source(folder: Path, source: SourceEntry, lengths: Sequence[int]) -> SourceEntry:
    shards = tuple(_pack_shard(folder, shard, lengths) for shard in source.shards)
    return source.model_copy(update={"shards": shards})


def _pack_shard(folder: Path, shard: ShardEntry, lengths: Sequence[int]) -> ShardEntry:
    """The shard with rows of these lengths, each written before the manifest names it."""
    files, rows = dict(shard.files), dict(shard.rows)
    for length in lengths:
        if str(length) in rows:
            continue
        records = read_index(shard.path(folder, "idx"), shard.tokens)
        packing = pack_shard(records["length"], records["id"], length)
        content = packing.rows.to_bytes()
        write_atomic(folder / f"{shard.name}.{rows_kind(length)}", content)
        files[rows_kind(length)] = FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        rows[str(length)] = packing.groups
    return shard.model_copy(update={"files": files, "rows": rows})


def _figures(source: SourceEntry, lengths: Sequence[int]) -> dict[str, dict[str, float]]:
    """Rows and padding by length."""
    totals = {str(length): source.packed()[length].total for length in lengths}
    return {
        length: {"rows": total, "padding": round(1 - source.tokens / (total * int(length)), 6)}
        for length, total in totals.items()
    }


def _table(manifest: Manifest, data: dict[str, dict[str, dict[str, float]]]) -> str:
    from pipeline.show import table

    rows = [
        (name, f"{int(length):,}", f"{int(one['rows']):,}", f"{one['padding']:.3%}", f"{manifest.sources[name].tokens:,}")
        for name, lengths in data.items()
        for length, one in lengths.items()
    ]
    return table(("source", "length", "rows", "padding", "tokens"), rows, left=(0,))
