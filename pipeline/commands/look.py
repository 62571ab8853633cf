"""Looking at a build from outside: how far it is, what was kept, what was dropped and why. Takes no lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from pipeline.engine.lock import owner_of
from pipeline.engine.sealed import arrow_batches
from pipeline.events import event_lines
from pipeline.show import table
from stages.contract.manifest import FILE_NAME, Manifest, ShardEntry, load_manifest
from stages.contract.problem import Problem, SpecError, printable
from stages.contract.shard import read_index, read_tokens
from stages.storage.address import located

TEXT_SHOWN = 400


def status_of(path: Path) -> tuple[str, dict[str, Any], int]:
    """`(text, data, exit code)`: 0 complete, 3 not complete or out of date."""
    out, config = _folder(path)
    owner = owner_of(out / "work")
    last = _last_events(out)
    data: dict[str, Any] = {"out": str(out), "running": owner, "manifest": None, "config": config}
    lines = []
    if owner:
        lines.append(f"a build is running: process {owner.get('pid')} on {owner.get('host')}")
    if "pass-started" in last:
        event = last["pass-started"]
        done = (
            sum(1 for e in last["tail"] if e["event"] == "task-done" and e["name"] == event["name"])
            + event["cached"]
        )
        lines.append(f"last pass: {event['name']}: {min(done, event['tasks'])}/{event['tasks']} tasks")
    code = 3
    if (out / FILE_NAME).exists():
        manifest = load_manifest(out)
        data["manifest"] = str(out / FILE_NAME)
        fresh = config is None or config == manifest.config_digest
        code = 0 if fresh and not owner else 3
        tokens = sum(s.tokens for s in manifest.sources.values())
        lines.append(f"{out / FILE_NAME}: {len(manifest.sources)} sources, {tokens:,} tokens")
        if not fresh:
            lines.append(
                f"out of date: the config is {config[:8] if config else ''}, the manifest was built from {manifest.config_digest[:8]}"
            )
    else:
        lines.append(f"{out}: no manifest yet")
    return "\n".join(printable(line) for line in lines), data, code


def _folder(path: Any) -> tuple[Any, str | None]:
    """The output folder that a path means, and the digest of the config if the path is one."""
    if path.suffix in (".yaml", ".yml"):
        from pipeline.corpus import load_corpus

        corpus = load_corpus(path)
        return located(corpus.output.path), corpus.config_digest()
    return (path.parent if path.name == FILE_NAME else path), None


def _last_events(out: Any) -> dict[str, Any]:
    """The last event of each kind of the last run, and under `tail` those of its last pass."""
    found: dict[str, Any] = {"tail": []}
    for line in event_lines(out):
        event = orjson.loads(line)
        if event["event"] == "run-started":
            found = {"tail": []}
        if event["event"] == "pass-started":
            found["tail"] = []
        found[event["event"]] = event
        found["tail"].append(event)
    return found


def inspect(
    path: Path, source: str | None, dropped: bool, kept: bool, tokens: bool, reason: str | None, number: int
) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: the funnel of a corpus, or documents that were kept or dropped, as text or in tokens."""
    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    names = list(manifest.sources) if source is None else [source]
    unknown = [n for n in names if n not in manifest.sources]
    if unknown:
        raise SpecError(
            Problem(
                "C006",
                f"no source is called `{unknown[0]}`",
                repairs=(f"sources: {', '.join(manifest.sources)}",),
            )
        )
    if dropped:
        rows = [r for n in names for r in _dropped(folder, n, reason, number)]
        return "\n\n".join(map(_dropped_text, rows)) or "nothing was dropped", {"dropped": rows}
    if kept or tokens:
        rows = [r for n in names for r in _kept(folder, manifest, n, number)]
        if tokens:
            return _in_tokens(folder / manifest.tokenizer.path, manifest.tokenizer.eos_id, rows)
        return "\n\n".join(map(_kept_text, rows)), {"kept": rows}
    return _funnel(manifest, names), {
        "sources": {n: manifest.sources[n].model_dump(mode="json") for n in names}
    }


def _funnel(manifest: Manifest, names: list[str]) -> str:
    rows = []
    for name in names:
        for i, step in enumerate(manifest.sources[name].funnel):
            gone = ", ".join(f"{reason} {n:,}" for reason, n in step.dropped.items())
            rejected = f"rejected {step.rejected:,}" if step.rejected else ""
            why = ", ".join(x for x in (gone, rejected) if x)
            rows.append(
                (name if i == 0 else "", step.stage, f"{step.documents_in:,}", f"{step.documents_out:,}", why)
            )
    return table(("source", "stage", "in", "out", "why"), rows, left=(0, 1, 4))


def dropped_batches(folder: Any, source: str) -> Iterator[pa.RecordBatch]:
    """The tables of what was dropped of a source of a finished corpus, batch by batch."""
    for path in sorted((folder / "dropped" / source).glob("*.arrow")):
        yield from arrow_batches(path)


def _dropped(folder: Path, source: str, reason: str | None, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in dropped_batches(folder, source):
        for row in batch.to_pylist():
            if reason is None or row["reason"].startswith(reason) or row["stage"].startswith(reason):
                row["id"] = row["id"].hex()
                row["survivor"] = row["survivor"].hex() if row["survivor"] else None
                found.append(row)
                if len(found) == number:
                    return found
    return found


def _dropped_text(row: dict[str, Any]) -> str:
    lines = [
        f"{row['source']}: {row['uri']}, record {row['record']}   id {row['id']}"
        + (f"   your id {row['user_id']}" if row["user_id"] else "")
    ]
    lines.append(
        f"  dropped by {row['stage']}: {row['reason']}" + (f" ({row['value']})" if row["value"] else "")
    )
    if row["survivor"]:
        lines.append(f"  kept instead: {row['survivor']}, similarity {row['similarity']:.3f}")
    lines.append(
        "  " + _shown(row["text"])
        if row["text"] is not None
        else "  (text not kept: there are many of this reason)"
    )
    return "\n".join(printable(line) for line in lines)


def _kept(folder: Path, manifest: Manifest, source: str, number: int) -> list[dict[str, Any]]:
    from stages.tokenizer.encode import Encoder

    encoder = Encoder.load(folder / manifest.tokenizer.path, manifest.tokenizer.eos_id)
    dtype = np.dtype("<u2" if manifest.dtype == "uint16" else "<u4")
    found: list[dict[str, Any]] = []
    for shard in manifest.sources[source].shards:
        found += _kept_of(folder, shard, encoder, dtype, number - len(found))
        if len(found) >= number:
            break
    return found


def _in_tokens(tokenizer: Path, eos: int, rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    from pipeline.commands.tokens import in_tokens, tokens_text
    from stages.tokenizer.encode import Encoder

    encoder = Encoder.load(tokenizer, eos)
    made = [{"id": row["id"], "source": row["source"], **in_tokens(encoder, row["text"])} for row in rows]
    heads = [f"{row['source']}: {row['uri']}, record {row['record']}" for row in rows]
    return "\n\n".join(map(tokens_text, made, heads)), {"kept": made}


def _kept_of(
    folder: Path, shard: ShardEntry, encoder: Any, dtype: np.dtype, number: int
) -> list[dict[str, Any]]:
    lengths = read_index(shard.path(folder, "idx"), shard.tokens)["length"].astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    found: list[dict[str, Any]] = []
    for batch in arrow_batches(shard.path(folder, "docs")):
        for row in batch.to_pylist()[: number - len(found)]:
            start, length = int(starts[len(found)]), int(lengths[len(found)])
            ids = read_tokens(shard.path(folder, "tok"), dtype, start, length)
            row["id"] = row["id"].hex()
            row["text"] = encoder.decode(ids[:-1])
            row["shard"] = shard.name
            found.append(row)
        if len(found) >= number:
            break
    return found


def _kept_text(row: dict[str, Any]) -> str:
    columns = {
        k: v
        for k, v in row.items()
        if k not in ("id", "source", "uri", "record", "text", "shard", "user_id", "meta")
        and v not in (None, 0)
    }
    return "\n".join(
        printable(line)
        for line in (
            f"{row['source']}: {row['uri']}, record {row['record']}   id {row['id']}   in {row['shard']}",
            "  " + "  ".join(f"{k}={v}" for k, v in columns.items()),
            "  " + _shown(row["text"]),
        )
    )


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat[:TEXT_SHOWN] + (" …" if len(flat) > TEXT_SHOWN else "")
