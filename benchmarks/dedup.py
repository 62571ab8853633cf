"""The whole of near-duplicate removal on one core, from text to the list of what is kept; and its cost as it grows.

    python -m benchmarks.dedup [--quick] [--json]

dedup.all.*      documents/s from a JSONL file: ours (a build with the one stage, up to its verdicts), the four stages
                 of datatrove with their defaults, rensa (digests, one-shot LSH flags: unverified), datasketch
                 (MinHashLSH). Same file, one process each. `.memory` is peak MB of the process, smaller is better.
dedup.rows       documents/s of the exchange alone over synthetic emissions, by number of documents
dedup.growth     signature and exchange, microseconds a document, at the largest number over that at the smallest

Texts are random sentences of a small language, 200 words each; 30 % are light variants of an earlier one. text-dedup has
no release that installs beside the other peers, so it is left out.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Report, one_core, parser

one_core()

import numpy as np  # noqa: E402

WORDS = 200
SHARE_OF_VARIANTS = 0.3
#: Largest part of a synthetic corpus: what one task of a build emits.
PART_ROWS = 1_000_000


def make_texts(path: Path, documents: int) -> float:
    """Writes documents as JSON lines; returns their size in MB."""
    rng = np.random.default_rng(documents)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = ["".join(rng.choice(letters, n)) for n in rng.integers(2, 10, 30_000)]
    words = np.array(vocabulary, object)
    size, recent = 0, [list(words[rng.integers(0, 30_000, WORDS)])]
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            if rng.random() < SHARE_OF_VARIANTS:
                chosen = list(recent[rng.integers(0, len(recent))])
                chosen[rng.integers(0, WORDS)] = f"new{number}"
            else:
                chosen = list(words[rng.integers(0, 30_000, WORDS)])
                recent = [*recent[-999:], chosen]
            text = " ".join(chosen)
            size += len(text)
            file.write(f'{{"id": "{number}", "text": "{text}"}}\n')
    return size / 1e6


# --- contenders: each takes the JSONL file and an empty folder, and returns how many documents are kept ------------


def ours(path: Path, folder: Path) -> int:
    """A build in this process, up to the verdicts of the stage."""
    from pipeline.corpus import load_corpus
    from pipeline.engine.executor import Inline
    from pipeline.engine.plan import make_plan
    from pipeline.engine.run import Build
    from pipeline.engine.sealed import arrow_table
    from pipeline.engine.store import Store
    from pipeline.events import Events

    config = folder / "corpus.yaml"
    config.write_text(
        f"name: bench\nsources: {{web: {{path: {path}}}}}\nstages: [minhash-dedup: {{max_loss: 100%}}]\n"
        "tokenizer: {vocab_size: 300}\noutput: {path: out}\n"
    )
    plan = make_plan(load_corpus(config))
    plan.out.mkdir()
    with Store(plan.out) as store:
        state = Build(plan, store, Inline(), Events(None, ())).run("minhash-dedup").state
        facts = state.boundaries[0].facts.facts.values()
        dropped = sum(arrow_table(store.path(file)).num_rows for file in facts)
    return sum(part.record.part.rows for part in state.parts) - dropped


def datatrove(path: Path, folder: Path) -> int:
    """Its four stages, each by a local executor with one worker."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    def reader() -> JsonlReader:
        return JsonlReader(str(path.parent), glob_pattern=path.name)

    at = [str(folder / name) for name in ("signatures", "buckets", "remove", "kept")]
    stages = [
        (1, [reader(), MinhashDedupSignature(at[0])]),
        (14, [MinhashDedupBuckets(at[0], at[1])]),
        (1, [MinhashDedupCluster(at[1], at[2])]),
        (1, [reader(), MinhashDedupFilter(at[2]), JsonlWriter(at[3], compression=None)]),
    ]
    for number, (tasks, steps) in enumerate(stages):
        logs = str(folder / f"logs-{number}")
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=logs).run()
    return sum(1 for file in Path(at[3]).glob("*.jsonl") for _ in file.open())


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def rensa(path: Path, folder: Path) -> int:  # noqa: ARG001
    """Digests of Python shingles, then its one-shot LSH: flags of documents that share a band with any other one."""
    from rensa import RMinHash, RMinHashLSH

    from benchmarks.minhash import shingles

    digests = RMinHash.digest_matrix_from_token_sets([shingles(t, False) for t in _texts(path)], 112, 1)
    flags = RMinHashLSH(0.8, 112, 14).query_duplicate_flags_matrix_one_shot(digests)
    return len(flags) - sum(flags)


def datasketch(path: Path, folder: Path) -> int:  # noqa: ARG001
    """MinHashLSH: a document stays when the index of those that stay knows nothing like it."""
    from datasketch import MinHash, MinHashLSH

    from benchmarks.minhash import shingles

    index, kept = MinHashLSH(threshold=0.8, num_perm=112), 0
    for number, text in enumerate(_texts(path)):
        sketch = MinHash(num_perm=112, seed=1)
        sketch.update_batch([s.encode() for s in shingles(text, False)])
        if not index.query(sketch):
            index.insert(number, sketch)
            kept += 1
    return kept


CONTENDERS: dict[str, Callable[[Path, Path], int]] = {
    "ours": ours,
    "datatrove": datatrove,
    "rensa": rensa,
    "datasketch": datasketch,
}


def contend(name: str, path: Path) -> tuple[float, float, int]:
    """`(CPU seconds, peak MB, kept)` of a contender in a process of its own, imports not counted as time."""
    command = [sys.executable, "-m", "benchmarks.dedup", "--contender", name, "--file", str(path)]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(f"{name} failed:\n{found.stderr[-2000:]}")
    seconds, megabytes, kept = json.loads(found.stdout.splitlines()[-1])
    return seconds, megabytes, kept


def run_contender(name: str, path: Path) -> None:
    """Prints what `contend` reads. A first run over a few documents loads libraries and compiled code."""
    work = CONTENDERS[name]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        small = Path(folder) / "small.jsonl"
        with path.open("rb") as file:
            small.write_bytes(b"".join(line for line, _ in zip(file, range(20), strict=False)))
        for run, source in (("warm", small), ("run", path)):
            (Path(folder) / run).mkdir()
            started = time.process_time()
            kept = work(source, Path(folder) / run)
            seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak, kept]))


def whole(report: Report, quick: bool) -> None:
    """Everybody on the same documents, then ours on many."""
    documents, many = (1_000, 20_000) if quick else (20_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder:
        path = Path(folder) / "texts.jsonl"
        make_texts(path, documents)
        mine, memory, kept = contend("ours", path)
        report.accuracy("dedup.all.ours", "kept", kept, documents)
        for name in ("datatrove", "rensa", "datasketch"):
            theirs, their_memory, kept = contend(name, path)
            report.rate(f"dedup.all.{name}", documents / mine, "documents/s", documents / theirs, name)
            report.rate(f"dedup.all.{name}.memory", memory, "MB", their_memory, name)
            report.accuracy(f"dedup.all.{name}", "kept", kept, documents)
        path.unlink()
        many_path = Path(folder) / "many.jsonl"
        size = make_texts(many_path, many)
        seconds, memory, _ = contend("ours", many_path)
        report.rate("dedup.all.many", many / seconds, "documents/s")
        report.rate("dedup.all.many.text", size / seconds, "MB/s")
        report.accuracy("dedup.all.many.memory", "peak MB", memory, many)


def growth(report: Report, quick: bool) -> None:
    """The exchange over synthetic rows, and with the cost of signatures added: that is what must not grow."""
    from benchmarks.rows import exchange, signature_seconds

    sizes = (20_000, 200_000) if quick else (100_000, 1_000_000, 10_000_000)
    each = signature_seconds(2_000 if quick else 10_000)
    costs = []
    for documents in sizes:
        with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder:
            ran = exchange(Path(folder), documents, PART_ROWS)
        costs.append(each + ran.seconds / documents)
        report.rate(f"dedup.rows.{documents}", documents / ran.seconds, "documents/s")
        report.accuracy(f"dedup.rows.{documents}", "peak MB of a task", ran.peak_mb, documents)
        report.accuracy(f"dedup.rows.{documents}", "bytes exchanged per document", ran.bytes / documents, documents)
        report.accuracy(f"dedup.rows.{documents}", "share dropped", ran.dropped / documents, documents)
    report.accuracy("dedup.growth", "cost ratio", costs[-1] / costs[0], sizes[-1])


def main() -> None:
    """All of it, or one contender in this process."""
    options = parser(__doc__)
    options.add_argument("--contender", choices=CONTENDERS, help="run one of them over --file in this process")
    options.add_argument("--file", type=Path)
    chosen = options.parse_args()
    if chosen.contender:
        run_contender(chosen.contender, chosen.file)
        return
    report = Report("dedup", chosen)
    whole(report, chosen.quick)
    growth(report, chosen.quick)
    report.close()


if __name__ == "__main__":
    main()
