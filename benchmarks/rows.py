"""Synthetic emissions of near-duplicate removal, and its supersteps run over them as a build runs them.

The mix is like web text: 70 % of the documents are alone, 27 % in clusters whose sizes follow Zipf's law (J from 0.5 to 1),
2 % pages of templated sites (J 0.6), 1 % chains in which each version is like the one before. Signatures are drawn, not
computed: two members of a family share each MinHash row and each bin with chance J.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import cpu_seconds
from pipeline.engine.records import EmitRecord, FileRef, Part, StepRecord
from pipeline.engine.rounds import Gathered, Mail, StepCommon, StepTask, received
from pipeline.engine.sealed import ArrowFile
from pipeline.engine.uses import StageUse
from pipeline.engine.work import Work
from stages.dedup import signature
from stages.dedup.minhash import MinhashDedup
from stages.exchange import binary_of
from stages.stage import PartInfo

SHINGLES = 600


@dataclass(frozen=True)
class Ran:
    """CPU seconds of all tasks, peak MB of the largest, bytes of all outboxes; what became of the documents."""

    seconds: float
    peak_mb: float
    bytes: int
    parts: tuple[PartInfo, ...]
    evidence: list[pa.Table]  # by part
    steps: dict[str, float]  # CPU seconds by name of the superstep
    memory: dict[str, float]  # peak MB by name of the superstep

    @property
    def dropped(self) -> int:
        """How many documents were dropped."""
        return sum(table.num_rows for table in self.evidence)

    def proofs(self) -> list[tuple[int, int, float]]:
        """`(dropped, kept, similarity)` by global row number."""
        base = {part.index: part.base for part in self.parts}
        return [
            (part.base + row["row"], base[row["survivor_part"]] + row["survivor_row"], row["similarity"])
            for part, table in zip(self.parts, self.evidence, strict=True)
            for row in table.to_pylist()
        ]


def signature_seconds(documents: int) -> float:
    """CPU seconds to sign one document of SHINGLES + 4 words."""
    words = np.random.default_rng(0).integers(0, 2**64, documents * (SHINGLES + 4), np.uint64)
    offsets = np.arange(documents + 1) * (SHINGLES + 4)
    bands, rows = MinhashDedup().shape
    constants = signature.Permutations.make(0, bands * rows)
    return cpu_seconds(lambda: signature.sign(words, offsets, 5, bands, rows, constants), 3)[0] / documents


def families(rng: np.random.Generator, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """`(family int64, J float32)` of each document; a document alone has a family of its own and J = 0."""
    family, likeness = np.arange(documents), np.zeros(documents, np.float32)
    clustered = rng.random(documents)
    number = documents
    for low, high, sizes, least, most in ((0.0, 0.27, 1.6, 0.5, 1.0), (0.27, 0.29, 1.05, 0.6, 0.6)):
        members = np.flatnonzero((clustered >= low) & (clustered < high))
        drawn = np.minimum(rng.zipf(sizes, len(members) + 1) + 1, 100_000)
        ends = np.cumsum(drawn)
        used = int(np.searchsorted(ends, len(members))) + 1
        owner = np.repeat(np.arange(used), drawn[:used])[: len(members)]
        owner = owner[rng.permutation(len(owner))]  # members of a family are spread over the corpus
        family[members] = number + owner
        likeness[members] = rng.uniform(least, most, len(drawn))[owner]
        number += len(drawn)
    return family, likeness


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: the draw that belongs to a number."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def emission(family: np.ndarray, likeness: np.ndarray, first: int, bands: int, rows: int) -> pa.Table:
    """The emission of documents first, first + 1 ... : what is shared is a function of the family, the rest is not."""
    rng = np.random.default_rng(first)
    n = len(family)
    with np.errstate(over="ignore"):
        root = _mixed(family.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        own = _mixed((np.arange(n, dtype=np.uint64) + np.uint64(first + (1 << 40))) * np.uint64(0xD6E8FEB86659FD93))
        keys = np.empty((n, bands), np.uint64)
        for band in range(bands):
            shared = rng.random(n, np.float32) < likeness**rows
            keys[:, band] = _mixed(np.where(shared, root, own) + np.uint64(band))
        share = np.round(255 * np.sqrt(likeness)).astype(np.uint8)[:, None]  # both members keep a bin with chance J
        words = [np.empty((n, signature.SKETCH_WORDS), np.uint64) for _ in range(2)]
        for word in range(signature.SKETCH_WORDS):
            for numbers, made in zip((root, own), words, strict=True):
                made[:, word] = _mixed(numbers + np.uint64(1000 + word))
        theirs, mine = (made.view(np.uint8) for made in words)
        drawn = np.frombuffer(rng.bytes(n * signature.BINS), np.uint8).reshape(n, signature.BINS)
        sketch = np.maximum(np.where(drawn < share, theirs, mine), 1)
        twins = np.stack([_mixed(keys[:, 0] + own), own], 1)
    columns = [binary_of(keys), binary_of(sketch.view(np.uint64)), binary_of(twins), np.full(n, SHINGLES, np.uint32)]
    return pa.table(columns, ["keys", "sketch", "twin", "shingles"])


def exchange(folder: Path, documents: int, part_rows: int, stage: MinhashDedup | None = None) -> Ran:
    """Runs all supersteps over that many synthetic documents."""
    stage = stage or MinhashDedup(audit=0)  # there is no text to audit
    family, likeness = families(np.random.default_rng(1), documents)

    def table(first: int) -> pa.Table:
        chosen = slice(first, first + part_rows)
        return emission(family[chosen], likeness[chosen], first, *stage.shape)

    return run_steps(folder, stage, [partial(table, first) for first in range(0, documents, part_rows)])


def run_steps(folder: Path, stage: MinhashDedup, emissions: Sequence[Callable[[], pa.Table]]) -> Ran:
    """Runs all supersteps over emissions, one a part, as a build does, each task in a child process of its own."""
    for name in ("data", "tmp"):
        (folder / name).mkdir()
    infos: list[PartInfo] = []
    files: dict[int, FileRef] = {}
    first = 0
    for index, make in enumerate(emissions):
        text, _, _ = _in_child(partial(_seal, folder, make))
        rows, _, reference = text.partition("\n")
        files[index] = EmitRecord.model_validate_json(reference).file
        infos.append(PartInfo(index, "web", 0, first, int(rows)))
        first += int(rows)
    empty = FileRef(name="", bytes=0, digest="")
    parts = {p.index: Part(source="web", base=empty, rows=p.rows, text_bytes=0) for p in infos}
    gathered = Gathered(tuple(infos), parts, files, {})
    mail, size = Mail(), 0
    seconds, peak = 0.0, 0.0
    by_step: dict[str, float] = {}
    by_memory: dict[str, float] = {}
    for step in stage.supersteps(gathered.infos):
        made = []
        routes = {channel: mail.routes(channel) for channel, _ in step.inbox(0).values()}
        common = StepCommon(str(folder), StageUse(stage.name, stage), step, gathered, routes, 0)
        for index in [p.index for p in infos] if step.over is None else range(step.over):
            task = StepTask("", step.name, index, common)
            text, spent, memory = _in_child(lambda task=task: next(iter(task.run())).model_dump_json())
            made.append(StepRecord.model_validate_json(text))
            seconds, peak = seconds + spent, max(peak, memory)
            by_step[step.name] = by_step.get(step.name, 0.0) + spent
            by_memory[step.name] = max(by_memory.get(step.name, 0.0), memory)
        size += sum(record.file.bytes for record in made)
        for record in made:
            mail.add(record)
    routes = mail.routes("evidence")
    evidence = [received(folder / "data", routes, "evidence", p.index) for p in infos]
    return Ran(seconds, peak, size, tuple(infos), evidence, by_step, by_memory)


def _seal(folder: Path, make: Callable[[], pa.Table]) -> str:
    """Rows and reference of an emission that is written."""
    table = make()
    with ArrowFile(Work(folder), "emit.arrow") as file:
        for batch in table.to_batches():
            file.write(batch)
        return f"{table.num_rows}\n{EmitRecord(file=file.seal()).model_dump_json()}"


def _in_child(work: Callable[[], str]) -> tuple[str, float, float]:
    """`(what it returns, CPU seconds, peak MB)` of work done in a forked process.

    Memory is what the process has of its own, looked at every 5 ms: pages of mapped files are not counted, since the
    system takes them back when it needs them.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        peak = [0]
        threading.Thread(target=_watch, args=(peak,), daemon=True).start()
        try:
            started = time.process_time()
            text = work()
            spent = time.process_time() - started
            os.write(write, f"{spent}\n{max(peak[0], _own_memory())}\n{text}".encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read().decode()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a task failed; its traceback is above")
    seconds, memory, text = content.split("\n", 2)
    return text, float(seconds), int(memory) / 1024


def _own_memory() -> int:
    """KB of anonymous memory of this process; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def _watch(peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], _own_memory())
        time.sleep(0.005)
