"""What the driver costs, how builds grow with workers, and what the rows of deduplication weigh.

    python -m benchmarks.scale [--quick] [--only driver] [--only overhead] [--only workers] [--only shuffle]

- `driver`: a first pass of a million tasks planned, sent, journalled and collected by the real driver, and found done by
  a second one; the executor returns made-up records at once. Seconds and memory are all the driver's. Ten times fewer
  tasks beside it show that time grows in proportion.
- `overhead`: tasks that do nothing on an embedded Ray.
- `workers`: the same corpus with one worker and with two, and by builds without Ray, one alone and two side by side:
  what a second core of this machine adds when nothing coordinates. The machine must have nothing else to do. Workers have
  loaded their kernels before, and the medians of turns are compared.
- `shuffle`: the exchange of near-duplicate removal over synthetic documents.

Parts are measured one by one; each keeps the results of the others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.measure import Child, Report, parser

DOCUMENTS = 1000  # of a made-up part
PART_ROWS = 500_000
WORKERS_TASK = 16 << 20  # a quarter of what a build takes, as the corpus is small


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
    """A record as a real task writes it, about 5 kB, without files behind it."""
    from pipeline.engine.records import FileRef, InputFile, Part, PassRecord

    def reference(kind: str, turn: int) -> FileRef:
        digest = task.key[turn:] + task.key[:turn]
        return FileRef(name=f"{digest[:32]}.{kind}", bytes=1, digest=digest)

    piece = task.origin.slices[0]
    return PassRecord(
        part=Part(source=task.source, base=reference("arrow", 0), rows=DOCUMENTS, text_bytes=DOCUMENTS * 4000),
        dropped=reference("dropped.arrow", 1),
        tokens=reference("tok", 2),
        token_count=DOCUMENTS * 900,
        inputs=(InputFile(uri=piece.slice.uri, start=0, end=None, size=piece.size, mtime_ns=piece.mtime_ns, digest=task.key),),
        **_same(),
    )


@lru_cache(maxsize=1)
def _same() -> dict[str, Any]:
    """What all made-up records share: accounts and excerpts."""
    from pipeline.engine.records import Excerpt, StageCount

    stages = ("read", "normalize", "tokenize")
    counts = tuple(StageCount(stage=stage, documents_in=DOCUMENTS, documents_out=DOCUMENTS) for stage in stages)
    kept = tuple(
        Excerpt(id=f"{n:032x}", uri="part.jsonl", record=n, reason=None, value=None, text="word " * 120) for n in range(5)
    )
    return {"counts": counts, "kept": kept}


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
        first = _first_pass(folder / "out", plan, count)
        seconds = time.perf_counter() - started
        journal = sum(path.stat().st_size for path in (folder / "out" / "work" / "journal").iterdir())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        del first
        started = time.perf_counter()
        _first_pass(folder / "out", plan, count)
        again = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "again": again, "peak_mb": peak, "journal_mb": journal / 1e6}))


def _first_pass(out: Path, plan: Any, count: int) -> Any:
    """The state behind the first pass of a build in a folder; the files that records name are taken to be there."""
    from pipeline.engine.first import read_inputs
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState
    from pipeline.engine.store import Store
    from pipeline.events import Events

    with Store(out) as store:
        store._there = lambda _file: True  # type: ignore[method-assign]
        build = Build(plan, store, AtOnce(), Events(out / "events.jsonl"))
        state = BuildState(build.inputs)
        read_inputs(build, state, plan.passes[0])
        build._check(state, plan.passes[0])
        assert len(state.parts) == count
    return state


def overhead(tasks: int, small: bool) -> tuple[float, float]:
    """`(seconds, CPU seconds of the driver)` for a task on an embedded Ray, all of them empty; `small`: those of a round."""
    from pipeline.engine.cluster import OnRay
    from pipeline.engine.driver import Driver
    from pipeline.engine.store import Store
    from pipeline.events import Events

    executor = OnRay(workers=2)
    with tempfile.TemporaryDirectory() as name, Store(Path(name)) as store:
        driver = Driver(store, executor, Events(Path(name) / "events.jsonl"))
        driver.run("warm", [Nothing("warm", "warm")], 0, lambda _task, _result: None)
        started, busy = time.perf_counter(), time.process_time()
        nothings = [Nothing(str(n), "nothing") for n in range(tasks)]
        driver.run("nothing", nothings, 0, lambda _task, _result: None, minor=small)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        executor.close()
    return seconds / tasks, busy / tasks


def first_pass_seconds(folder: Path, megabytes: int, executor: Any = None) -> float:
    """Seconds of the first pass over so much synthetic text, in tasks of `WORKERS_TASK` bytes."""
    from pipeline.engine import inputs
    from pipeline.events import PassDone
    from tests.pipeline.corpora import document, run_build, write_config, write_jsonl

    block = [document(i, 400) for i in range(500)]
    size = sum(len(text) for text in block)
    for number in range(megabytes * 1_000_000 // size + 1):
        write_jsonl(folder / "in" / "web" / f"{number:03d}.jsonl", [f"{text} {number}" for text in block])
    write_jsonl(folder / "in" / "books" / "b.jsonl", block[:5])
    inputs.TASK_BYTES = WORKERS_TASK
    config = write_config(folder, folder / "in", "  - normalize\n  - rules: {preset: fineweb, mark: true}\n  - pii\n")
    heard: list[Any] = []
    run_build(config, executor=executor, heard=heard, until="pii")
    return next(event.seconds for event in heard if isinstance(event, PassDone) and event.name.startswith("read"))


class Kept:
    """An executor on Ray that stays when a build ends, so that its workers have loaded everything for the next."""

    def __init__(self, workers: int) -> None:
        from pipeline.engine.cluster import OnRay

        self.inside = OnRay(workers=workers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    def close(self) -> None:
        """Stays."""


def on_workers(workers: int, megabytes: int) -> float:
    """MB/s of the first pass on so many workers of an embedded Ray that have worked before."""
    executor = Kept(workers)
    with tempfile.TemporaryDirectory() as name:
        first_pass_seconds(Path(name) / "warm", 10 * workers, executor)
        seconds = first_pass_seconds(Path(name) / "timed", megabytes, executor)
    executor.inside.close()
    return megabytes / seconds


def side_by_side(processes: int, megabytes: int) -> float:
    """MB/s of so many builds of one process each, all begun together: the sum."""
    with tempfile.TemporaryDirectory() as name:
        scripts = [f"from benchmarks.scale import _alone; _alone({f'{name}/{n}'!r}, {megabytes // processes})" for n in range(processes)]
        running = [Child("-c", script) for script in scripts]
        for one in running:
            one.line()
        for one in running:
            one.go()
        return sum(float(one.line()) for one in running)


def _alone(folder: str, megabytes: int) -> None:
    """A build in this process: its MB/s on stdout, once a line has come in."""
    first_pass_seconds(Path(folder) / "warm", 10)
    print("ready", flush=True)
    sys.stdin.readline()
    print(megabytes / first_pass_seconds(Path(folder) / "timed", megabytes), flush=True)


def measure_driver(report: Report, quick: bool) -> None:
    """The driver at a million tasks, and at a tenth of them."""
    most = 100_000 if quick else 1_000_000
    for count in (most // 10, most):
        found = drive(count)
        name = f"driver, {count:,} tasks"
        report.rate(name, count / found["seconds"], "tasks/s")
        report.accuracy(name, "ms a task", 1000 * found["seconds"] / count, count)
        report.accuracy(name, "ms a task that is done already", 1000 * found["again"] / count, count)
        report.accuracy(name, "peak MB", found["peak_mb"], count)
        report.accuracy(name, "journal MB", found["journal_mb"], count)


def measure_overhead(report: Report, quick: bool) -> None:
    """Empty tasks on Ray, one by one as in a pass, and together as in a round."""
    count = 500 if quick else 5_000
    for name, small in (("empty tasks on Ray", False), ("empty tasks of a round on Ray", True)):
        seconds, busy = overhead(count, small)
        report.rate(name, 1 / seconds, "tasks/s")
        report.accuracy(name, "ms a task", 1000 * seconds, count)
        report.accuracy(name, "CPU ms a task of the driver", 1000 * busy, count)


def measure_workers(report: Report, quick: bool) -> None:
    """One worker and two; one process and two."""
    megabytes, turns = (40, 1) if quick else (600, 3)
    for one_name, two_name, measure in (("1 worker", "2 workers", on_workers), ("1 process", "2 processes", side_by_side)):
        found: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(turns):
            for count, rates in found.items():
                rates.append(measure(count, megabytes))
        one, two = (statistics.median(rates) for rates in found.values())
        report.rate(two_name, two, "MB/s", one, one_name)


def measure_shuffle(report: Report, quick: bool) -> None:
    """The exchange of near-duplicate removal."""
    from benchmarks.rows import exchange

    documents = 200_000 if quick else 20_000_000
    with tempfile.TemporaryDirectory(dir=os.environ.get("GRISTMILL_SCRATCH")) as name:
        ran = exchange(Path(name), documents, PART_ROWS)
    report.rate(f"shuffle, {documents:,} documents", documents / ran.seconds, "documents/s of CPU")
    report.accuracy(f"shuffle, {documents:,} documents", "bytes a document", ran.bytes / documents, documents)
    report.accuracy(f"shuffle, {documents:,} documents", "peak MB of a task", ran.peak_mb, documents)


MEASURES = {
    "driver": measure_driver,
    "overhead": measure_overhead,
    "workers": measure_workers,
    "shuffle": measure_shuffle,
}


def main() -> None:
    """The measures that were asked for, or all."""
    made = parser(__doc__)
    made.add_argument("--only", action="append", choices=MEASURES, help="measure this part; may be repeated")
    options = made.parse_args()
    report = Report("scale", options)
    for name in options.only or MEASURES:
        MEASURES[name](report, options.quick)
        report.close(beside=True)


if __name__ == "__main__":
    main()
