"""What the driver costs, how builds grow with workers, and what the rows of deduplication weigh.

    python -m benchmarks.scale [--quick]

- `driver`: a first pass of a million tasks planned, sent, journalled and collected by the real driver; the executor
  returns made-up records at once. Seconds and memory are all the driver's. Ten times fewer tasks beside it show that
  time grows in proportion.
- `overhead`: tasks that do nothing on an embedded Ray.
- `workers`: the same corpus with one worker and with two.
- `shuffle`: the exchange of near-duplicate removal over synthetic documents.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Report, parser

DOCUMENTS = 1000  # of a made-up part
PART_ROWS = 500_000


@dataclass(frozen=True)
class Nothing:
    """A task that does nothing."""

    key: str
    name: str

    def run(self) -> Iterator[int]:
        yield 1


class AtOnce:
    """An executor that has done every task as soon as it is sent."""

    slots = 256
    workers = "at once"

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, bool]] = deque()

    def submit(self, task: Any) -> None:
        self._waiting.append((task, False))

    def running(self) -> int:
        return len(self._waiting)

    def next(self, timeout: float) -> Any:  # noqa: ARG002
        from pipeline.engine.executor import Finished, Yielded

        task, told = self._waiting.popleft()
        if told:
            return Finished(task, 0.0)
        self._waiting.appendleft((task, True))
        return Yielded(task, (made_up(task), {}), 0.0)

    def close(self) -> None:
        """Nothing to close."""


def made_up(task: Any) -> Any:
    """A record as a real task writes it, without files behind it."""
    from pipeline.engine.records import Excerpt, FileRef, InputFile, Part, PassRecord, StageCount

    def reference(kind: str) -> FileRef:
        digest = hashlib.sha256(f"{task.key}{kind}".encode()).hexdigest()
        return FileRef(name=f"{digest[:32]}.{kind}", bytes=1, digest=digest)

    def excerpt(number: int) -> Excerpt:
        return Excerpt(id=f"{task.key[:30]}{number:02d}", uri=task.name, record=number, reason=None, value=None, text="word " * 120)

    piece = task.origin.slices[0]
    return PassRecord(
        part=Part(source=task.source, base=reference("arrow"), rows=DOCUMENTS, text_bytes=DOCUMENTS * 4000),
        dropped=reference("dropped.arrow"),
        tokens=reference("tok"),
        token_count=DOCUMENTS * 900,
        counts=tuple(
            StageCount(stage=stage, documents_in=DOCUMENTS, documents_out=DOCUMENTS) for stage in ("read", "normalize", "tokenize")
        ),
        kept=tuple(map(excerpt, range(5))),
        inputs=(InputFile(uri=piece.slice.uri, start=0, end=None, size=piece.size, mtime_ns=0, digest=task.key),),
    )


def drive(tasks: int) -> dict[str, float]:
    """Seconds and peak MB of a driver with so many tasks; in a process of its own."""
    script = f"from benchmarks.scale import _drive; _drive({tasks})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _drive(count: int) -> None:
    import resource

    from pipeline.corpus import load_corpus
    from pipeline.engine.inputs import InputTask, SourceInputs
    from pipeline.engine.origin import InputSlice
    from pipeline.engine.passes import label_stages, plan_passes
    from pipeline.engine.plan import Plan
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState
    from pipeline.engine.store import Store
    from pipeline.events import Events
    from stages.readers import FileSlice

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text("{}")
        (folder / "corpus.yaml").write_text(
            "name: scale\nsources: {web: {path: in/*.jsonl}}\nstages: [normalize]\ntokenizer: {path: tokenizer.json}\noutput: {path: out}\n"
        )
        corpus = load_corpus(folder / "corpus.yaml")
        started = time.perf_counter()
        inputs = SourceInputs("web", corpus.sources["web"].settings("web"))
        inputs.tasks = [
            InputTask("web", (InputSlice(FileSlice(path=f"s3://bucket/crawl/part-{i:07d}.jsonl.zst", uri=f"part-{i:07d}.jsonl.zst"), 64 << 20, i),))
            for i in range(count)
        ]
        plan = Plan(corpus, plan_passes(label_stages([(s.name, s) for s in corpus.stages])), {"web": inputs})
        (folder / "out").mkdir()
        with Store(folder / "out") as store:
            store._there = lambda _file: True  # type: ignore[method-assign]
            build = Build(plan, store, AtOnce(), Events(folder / "out" / "events.jsonl"))
            state = BuildState(build.inputs)
            build._read(state, plan.passes[0])
            build._check(state, plan.passes[0])
            assert len(state.parts) == count
            journal = sum(path.stat().st_size for path in (store.work / "journal").iterdir())
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "journal_mb": journal / 1e6}))


def overhead(tasks: int) -> float:
    """Tasks a second of the driver on an embedded Ray, all of them empty."""
    from pipeline.engine.cluster import OnRay

    executor = OnRay(workers=2)
    executor.submit(Nothing("warm", "warm"))
    while executor.running():
        executor.next(1.0)
    started, sent, done = time.perf_counter(), 0, 0
    while done < tasks:
        while sent < tasks and executor.running() < executor.slots:
            executor.submit(Nothing(str(sent), "nothing"))
            sent += 1
        done += type(executor.next(1.0)).__name__ == "Finished"
    seconds = time.perf_counter() - started
    executor.close()
    return tasks / seconds


def build_seconds(workers: int, megabytes: int) -> float:
    """Seconds of the first pass over synthetic text with so many workers, Ray's start left out."""
    from pipeline.engine import inputs
    from pipeline.events import PassDone
    from tests.pipeline.corpora import document, run_build, write_config, write_jsonl

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        block = [document(i, 400) for i in range(500)]
        size = sum(len(text) for text in block)
        for number in range(megabytes * 1_000_000 // size + 1):
            write_jsonl(folder / "in" / "web" / f"{number:03d}.jsonl", [f"{text} {number}" for text in block])
        write_jsonl(folder / "in" / "books" / "b.jsonl", block[:5])
        inputs.TASK_BYTES = 2 << 20
        config = write_config(folder, folder / "in", "  - normalize\n  - rules: {preset: fineweb, mark: true}\n  - pii\n")
        from pipeline.engine.cluster import OnRay

        executor = OnRay(workers=workers)
        executor.submit(Nothing("warm", "warm"))
        while executor.running():
            executor.next(1.0)
        heard: list[Any] = []
        run_build(config, executor=executor, heard=heard, until="pii")
        return next(event.seconds for event in heard if isinstance(event, PassDone) and event.name.startswith("read"))


def main() -> None:
    """All measures."""
    options = parser(__doc__).parse_args()
    report = Report("scale", options)
    most = 100_000 if options.quick else 1_000_000
    small, large = drive(most // 10), drive(most)
    report.rate(f"driver, {most // 10:,} tasks", most / 10 / small["seconds"], "tasks/s")
    report.rate(f"driver, {most:,} tasks", most / large["seconds"], "tasks/s")
    report.accuracy(f"driver, {most:,} tasks", "peak MB", large["peak_mb"], most)
    report.accuracy(f"driver, {most:,} tasks", "journal MB", large["journal_mb"], most)
    rate = overhead(500 if options.quick else 5_000)
    report.rate("empty tasks on Ray", rate, "tasks/s")
    report.accuracy("empty tasks on Ray", "ms a task", 1000 / rate, 500 if options.quick else 5_000)
    megabytes = 20 if options.quick else 150
    one, two = build_seconds(1, megabytes), build_seconds(2, megabytes)
    report.rate("2 workers", megabytes / two, "MB/s", megabytes / one, "1 worker")
    documents = 200_000 if options.quick else 20_000_000
    from benchmarks.rows import exchange

    with tempfile.TemporaryDirectory(dir=os.environ.get("GRISTMILL_SCRATCH")) as name:
        ran = exchange(Path(name), documents, PART_ROWS)
    report.rate(f"shuffle, {documents:,} documents", documents / ran.seconds, "documents/s of CPU")
    report.accuracy(f"shuffle, {documents:,} documents", "bytes a document", ran.bytes / documents, documents)
    report.accuracy(f"shuffle, {documents:,} documents", "peak MB of a task", ran.peak_mb, documents)
    report.close()


if __name__ == "__main__":
    main()
