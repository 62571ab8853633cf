"""A driver of global stages in one process, for tests: emit, supersteps through real files, facts, apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

from stages.document import document_batch
from stages.exchange import read_inbox, write_outbox
from stages.stage import GlobalStage, PartInfo, StepContext


@dataclass
class Ran:
    """What a global stage said about `parts`."""

    stage: GlobalStage
    batches: dict[int, list[pa.RecordBatch]]  # by part index
    parts: tuple[PartInfo, ...]
    outboxes: dict[str, list[Path]]  # by channel, in order of step and task
    counters: Counter[str]

    def channel(self, name: str, address: int = 0) -> pa.Table:
        """All rows sent to one address of a channel."""
        return read_inbox(self.outboxes.get(name, []), name, address)

    @property
    def facts(self) -> dict[int, pa.Table]:
        """The facts of each part, by part index."""
        return {part.index: self.channel("facts", part.index) for part in self.parts}

    def artifacts(self) -> dict[str, bytes]:
        """The files of the channel `artifact`, by name."""
        return {row["name"]: row["content"] for row in self.channel("artifact").to_pylist()}

    def apply(self) -> dict[int, list[pa.RecordBatch]]:
        """The batches of each part after `apply`."""
        result: dict[int, list[pa.RecordBatch]] = {}
        for part in self.parts:
            facts, row = self.channel("facts", part.index), 0
            result[part.index] = []
            for batch in self.batches[part.index]:
                result[part.index].append(self.stage.apply(batch, facts, row))
                row += batch.num_rows
        return result

    def kept(self) -> list[str]:
        """The texts that are still there, in order."""
        return [
            text
            for batches in self.apply().values()
            for batch in batches
            for text, drop in zip(
                batch.column("text").to_pylist(), batch.column("drop").to_pylist(), strict=True
            )
            if drop is None
        ]


def run_global(
    stage: GlobalStage,
    parts: Sequence[Sequence[pa.RecordBatch]],
    tmp_path: Path,
    sources: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
    dropped: Mapping[int, np.ndarray] | None = None,
    indices: Sequence[int] | None = None,
    seed: int = 0,
) -> Ran:
    """Runs the stage over parts of document batches.

    sources, ranks, indices   of each part: default one source, rank 0, 0 … n-1 (indices ascend, may be sparse)
    dropped                   rows that an earlier stage dropped, by part index
    Every table a step sees comes from a memory-mapped file, as in a run on many machines.
    """
    numbers = list(indices) if indices is not None else list(range(len(parts)))
    batches = {index: list(part) for index, part in zip(numbers, parts, strict=True)}
    infos, base = [], 0
    for place, index in enumerate(numbers):
        rows = sum(batch.num_rows for batch in batches[index])
        source = sources[place] if sources is not None else "web"
        infos.append(PartInfo(index, source, ranks[place] if ranks is not None else 0, base, rows))
        base += rows
    for index in numbers:
        _write_emission(stage, batches[index], tmp_path / f"emission-{index}.arrow")

    def emission(index: int) -> pa.Table:
        with pa.memory_map(str(tmp_path / f"emission-{index}.arrow")) as mapped:
            return pa.ipc.open_file(mapped.read_buffer()).read_all()

    def earlier(index: int) -> np.ndarray:
        return np.asarray((dropped or {}).get(index, np.empty(0)), np.uint32)

    ran = Ran(stage, batches, tuple(infos), {}, Counter())
    for number, step in enumerate(stage.supersteps(ran.parts)):
        written = []
        for task in range(step.over) if step.over is not None else numbers:
            context = StepContext(
                index=task,
                parts=ran.parts,
                inbox={name: ran.channel(*place) for name, place in step.inbox(task).items()},
                emission=emission,
                dropped=earlier,
                documents=lambda index: iter(batches[index]),
                seed=seed,
            )
            path = tmp_path / f"{number:02}-{step.name}-{task}"
            sent = getattr(stage, step.name)(context)
            with mock.patch("os.fsync"):  # hundreds of small files that need not survive anything
                write_outbox(path, sent)
            written.extend((channel, path) for channel in sent)
            ran.counters.update(context.counters)
        for channel, path in written:
            ran.outboxes.setdefault(channel, []).append(path)
    return ran


def _write_emission(stage: GlobalStage, batches: Sequence[pa.RecordBatch], path: Path) -> None:
    row, emitted = 0, []
    for batch in batches or [document_batch("web", [], [], [])]:
        emitted.append(stage.emit(batch, row))
        row += batch.num_rows
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, emitted[0].schema) as writer:
        for batch in emitted:
            writer.write_batch(batch)


def parts_of(
    texts: Sequence[str], sizes: Sequence[int], source: str = "web", batch: int = 3
) -> list[list[pa.RecordBatch]]:
    """Documents cut into parts of the given sizes, and those into batches of `batch` rows."""
    assert sum(sizes) == len(texts)
    parts, start = [], 0
    for number, size in enumerate(sizes):
        cut = []
        for row in range(0, size, batch):
            piece = list(texts[start + row : start + min(row + batch, size)])
            cut.append(
                document_batch(
                    source, [f"{number}.jsonl"] * len(piece), list(range(row, row + len(piece))), piece
                )
            )
        parts.append(cut)
        start += size
    return parts
