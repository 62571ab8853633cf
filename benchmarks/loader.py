"""Token loaders on the same corpus, one core each: speed, time to the first batch, time to resume, memory.

    python -m benchmarks.loader [--quick] [--json] [--install FOLDER] [--peers FOLDER]

Rows of 2,048 tokens from three sources, mixed 0.5 : 0.3 : 0.2 and shuffled, batches of 128 rows in micro-batches of 8.

    ours       packed rows (and windows): token ids, labels, positions, borders of documents, all int64, checksums
    megatron   memory map, a shuffled index of windows, weights by a list of draws; ids and labels, no borders (our own
               few lines after megatron/core/datasets: the package needs a GPU build)
    hf         datasets, to_iterable_dataset, shuffle buffer of 1,000, interleave_datasets; ids only
    litdata    StreamingDataset with TokensLoader, shuffled, CombinedStreamingDataset; ids only
    mds        mosaicml-streaming, StreamingDataset with proportions, shuffled; ids only

Tokens/s are per second of CPU time. `first` is from opening to the first batch, `resume` from opening to the batch
behind 100 others, in seconds of wall time; `memory` is the peak of the process in MB. Peers that are not installed are
left out, with a word on stderr; --install puts them, without their dependencies, into a folder that --peers names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from benchmarks.measure import Report, one_core, parser

one_core()

import numpy as np  # noqa: E402

LENGTH, BATCH, MICRO = 2048, 128, 8
SOURCES = {"web": 0.5, "books": 0.3, "code": 0.2}
RESUME_AT = 100
PEERS = {
    "megatron": (),
    "hf": ("datasets", "dill", "multiprocess", "xxhash", "huggingface-hub", "pandas", "python-dateutil", "six", "pytz",
           "httpx", "anyio", "httpcore", "h11"),
    "litdata": ("litdata", "lightning-utilities", "boto3", "botocore", "s3transfer", "jmespath", "obstore"),
    "mds": ("mosaicml-streaming", "python-snappy", "cramjam", "brotli", "zstd"),
}  # fmt: skip


# ---- the corpus ------------------------------------------------------------------------------------------------


def make_corpus(folder: Path, tokens: int) -> None:
    """Three sources of log-normal documents, shards of a quarter each, with packed rows; ids below 32,000."""
    from stages.contract import manifest as m
    from stages.contract.rows import rows_kind
    from stages.contract.shard import Documents, write_shard
    from stages.shards.pack import pack_shard

    rng = np.random.default_rng(0)
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")

    def entry(data: bytes | Any) -> m.FileEntry:
        if isinstance(data, bytes):
            return m.FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        return m.FileEntry(bytes=data.bytes, sha256=data.sha256)

    entries = {}
    for name, share in SOURCES.items():
        shards, every = [], []
        for number in range(4):
            size = int(tokens * share / 4)
            lengths = np.clip(rng.lognormal(6.3, 1.0, size // 880), 20, 100_000).astype(np.int64)
            ids = np.frombuffer(rng.bytes(16 * len(lengths)), "V16")
            values = rng.integers(1, 32_000, int(lengths.sum()), dtype=np.uint16)
            values[np.cumsum(lengths) - 1] = 0
            base = f"shards/{name}/{number:05d}"
            facts = write_shard(folder / base, [Documents(values, lengths, ids)], 32_000, 0)
            packing = pack_shard(lengths, ids, LENGTH)
            data = packing.rows.to_bytes()
            (folder / f"{base}.{rows_kind(LENGTH)}").write_bytes(data)
            files = {"tok": entry(facts.tok), "idx": entry(facts.idx), "crc": entry(facts.crc), rows_kind(LENGTH): entry(data)}
            shards.append(m.ShardEntry(name=base, documents=facts.documents, tokens=facts.tokens, files=files,
                                       rows={str(LENGTH): packing.groups}))  # fmt: skip
            every.append(lengths)
        lengths = np.concatenate(every)
        entries[name] = m.SourceEntry(
            uid=m.source_uid(name), digest=m.source_digest(shards), documents=len(lengths), tokens=int(lengths.sum()),
            text_bytes=0, largest_id=31_999, lengths=m.Lengths.of(lengths), shards=tuple(shards),
        )  # fmt: skip
    tokenizer = m.TokenizerEntry(path="tokenizer/tokenizer.json", sha256=hashlib.sha256(b"{}").hexdigest(),
                                 vocab_size=32_000, eos_id=0, largest_id=31_999)  # fmt: skip
    m.save(folder, m.Manifest(name="bench", seed=0, config_digest="", dtype="uint16", tokenizer=tokenizer, sources=entries))


def windows(folder: Path, name: str) -> np.ndarray:
    """All windows of a source, uint16 of shape (N, LENGTH): what peers are given."""
    parts = [np.fromfile(path, "<u2") for path in sorted((folder / "shards" / name).glob("*.tok"))]
    flat = np.concatenate(parts)
    return flat[: len(flat) // LENGTH * LENGTH].reshape(-1, LENGTH)


# ---- contenders: each yields batches from batch number `start` on; an array of token ids each ------------------

Batches = Iterator[Any]


def open_plan(folder: Path, packing: str, batch: int = BATCH) -> Any:
    """`(manifest, plan)` of a run that is long enough for everything here."""
    from stages.contract.manifest import load_manifest
    from trainer.config import read_plan
    from trainer.planning.plan import Machine, resolve

    manifest = load_manifest(folder)
    mix = ", ".join(f"{name}: {share}" for name, share in SOURCES.items())
    sets = [f"model.seq_len={LENGTH}", f"data.packing={packing}", f"batch.global_tokens={batch * LENGTH}",
            f"data.total_tokens={200_000 * batch * LENGTH}", f"data.mix={{{mix}}}", "model.width=64", "model.layers=1"]  # fmt: skip
    return manifest, resolve(read_plan(None, sets), [manifest], Machine())


def ours(folder: Path, packing: str, start: int, batch: int = BATCH) -> Batches:
    from trainer.loader import Loader

    manifest, plan = open_plan(folder, packing, batch)
    loader = Loader([folder], plan, [manifest])
    for step in range(start, plan.steps):
        yield loader.batch(step, micro=MICRO).micros[0]["input_ids"]


def megatron(folder: Path, start: int) -> Batches:
    rng = np.random.default_rng(0)
    maps, orders = [], []
    for name in SOURCES:
        files = [np.memmap(path, "<u2", "r") for path in sorted((folder / "shards" / name).glob("*.tok"))]
        index = np.concatenate([[(i, o) for o in range(0, len(one) - LENGTH - 1, LENGTH)] for i, one in enumerate(files)])
        maps.append(files)
        orders.append(rng.permutation(index))
    draws = rng.choice(len(SOURCES), 4_000_000, p=list(SOURCES.values()))
    taken = np.zeros(len(SOURCES), np.int64)
    for source, count in zip(*np.unique(draws[: start * BATCH], return_counts=True), strict=True):
        taken[source] = count
    for first in range(start * BATCH, len(draws), BATCH):
        rows = np.empty((BATCH, LENGTH + 1), np.int64)
        for i, source in enumerate(draws[first : first + BATCH].tolist()):
            shard, offset = orders[source][taken[source] % len(orders[source])]
            rows[i] = maps[source][shard][offset : offset + LENGTH + 1]
            taken[source] += 1
        yield rows[:, :-1], np.ascontiguousarray(rows[:, 1:])


def _stacked(items: Iterator[Any], take: Callable[[Any], np.ndarray]) -> Batches:
    while True:
        yield np.stack([np.asarray(take(next(items))).astype(np.int64) for _ in range(BATCH)])


def hf(folder: Path, start: int) -> Batches:
    import datasets

    parts = []
    for name in SOURCES:
        stored = folder / "hf" / name
        if not stored.exists():
            datasets.Dataset.from_dict({"t": list(windows(folder, name))}).save_to_disk(str(stored), num_shards=4)
        loaded = datasets.load_from_disk(str(stored)).with_format("numpy").to_iterable_dataset(num_shards=4)
        parts.append(loaded.shuffle(seed=0, buffer_size=1000))
    mixed = datasets.interleave_datasets(parts, probabilities=list(SOURCES.values()), seed=0, stopping_strategy="all_exhausted")
    return _stacked(iter(mixed.repeat(None).skip(start * BATCH)), lambda row: row["t"])


def litdata(folder: Path, start: int) -> Batches:
    import torch
    from litdata import CombinedStreamingDataset, StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    parts = []
    for name in SOURCES:
        stored = folder / "litdata" / name
        if not stored.exists():
            stored.mkdir(parents=True)
            writer = BinaryWriter(str(stored), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH))
            for i, row in enumerate(windows(folder, name)):
                writer[i] = torch.from_numpy(row.astype(np.int32))
            writer.done()
            writer.merge()
        parts.append(StreamingDataset(str(stored), item_loader=TokensLoader(block_size=LENGTH), shuffle=True, drop_last=False))
    mixed = CombinedStreamingDataset(parts, weights=list(SOURCES.values()), seed=0, iterate_over_all=False)
    items = iter(mixed)
    for _ in range(start * BATCH):
        next(items)
    return _stacked(items, lambda row: row)


def mds(folder: Path, start: int) -> Batches:
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
        stub = types.ModuleType(name)
        stub.__getattr__ = lambda item: type(item, (), {})  # type: ignore[method-assign]
        stub.__path__, stub.__file__, stub.__spec__ = [], __file__, ModuleSpec(name, None)
        sys.modules.setdefault(name, stub)  # it is imported for pictures alone
    from streaming import MDSWriter, Stream, StreamingDataset

    streams = []
    for name, share in SOURCES.items():
        stored = folder / "mds" / name
        if not stored.exists():
            with MDSWriter(out=str(stored), columns={"t": f"ndarray:uint16:{LENGTH}"}, size_limit=1 << 26) as writer:
                for row in windows(folder, name):
                    writer.write({"t": row})
        streams.append(Stream(local=str(stored), proportion=share))
    data = StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH, epoch_size=4_000_000)
    if start:
        data.load_state_dict({"epoch": 0, "sample_in_epoch": start * BATCH, "num_canonical_nodes": 1, "shuffle_seed": 9176,
                              "initial_physical_nodes": 1})  # fmt: skip
    return _stacked(iter(data), lambda row: row["t"])


CONTENDERS: dict[str, Callable[[Path, int], Batches]] = {
    "ours": lambda folder, start: ours(folder, "best-fit", start),
    "ours-windows": lambda folder, start: ours(folder, "concat", start),
    "megatron": megatron,
    "hf": hf,
    "litdata": litdata,
    "mds": mds,
}


def child(name: str, folder: Path, batches: int) -> dict[str, float]:
    """The measures of one contender, in a process of its own. Files are made first, and not counted."""
    next(CONTENDERS[name](folder, 0))
    began = time.perf_counter()
    items = CONTENDERS[name](folder, 0)
    next(items)
    first = time.perf_counter() - began
    for _ in range(3):
        next(items)
    used = time.process_time()
    for _ in range(batches):
        next(items)
    seconds = time.process_time() - used
    began = time.perf_counter()
    next(CONTENDERS[name](folder, RESUME_AT))
    resume = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": batches * BATCH * LENGTH / seconds, "first": first, "resume": resume, "memory": peak}


# ---- what only we are asked ------------------------------------------------------------------------------------


def memory_growth(folder: Path, steps: int) -> float:
    """MB that the process grows from a tenth of these steps to their end, in batches of 8 rows."""
    rss = Path("/proc/self/statm")
    start = 0
    for step, _ in zip(range(steps), ours(folder, "best-fit", 0, 8), strict=False):
        if step == steps // 10:
            start = int(rss.read_text().split()[1])
    return (int(rss.read_text().split()[1]) - start) * os.sysconf("SC_PAGE_SIZE") / 2**20


def waiting(folder: Path, steps: int, seconds: float) -> float:
    """The share of a training step of so many seconds that is spent waiting for its batch of 128 rows."""
    from trainer.loader import Loader

    manifest, plan = open_plan(folder, "best-fit")
    with Loader([folder], plan, [manifest]) as loader:
        batches = loader.batches(0, micro=MICRO)
        next(batches)
        before = loader.waits.waiting
        for _ in range(steps):
            time.sleep(seconds)
            next(batches)
        spent = loader.waits.waiting - before
        batches.close()
    return spent / (steps * seconds)


def large_plan() -> tuple[float, float]:
    """Seconds to plan a run over 10 T tokens in 1,000 sources, and to its first batch of samples."""
    from stages.contract.manifest import Manifest, SourceEntry, TokenizerEntry, source_uid
    from trainer.config import read_plan
    from trainer.planning.plan import Machine, resolve

    tokenizer = TokenizerEntry(path="t", sha256="0", vocab_size=50_000, eos_id=0, largest_id=1)
    names = [f"s{i}" for i in range(1_000)]
    sources = {
        name: SourceEntry(uid=source_uid(name), digest=name, documents=1, tokens=10**10, text_bytes=0, largest_id=1)
        for name in names
    }
    manifest = Manifest(name="m", seed=0, config_digest="", dtype="uint16", tokenizer=tokenizer, sources=sources)
    sets = ["model.seq_len=4096", "batch.global_tokens=4_194_304", "data.total_tokens=10T", "model.width=4096", "model.layers=32"]
    began = time.perf_counter()
    plan = resolve(read_plan(None, sets), [manifest], Machine("cuda", 1, 8))
    planned = time.perf_counter() - began
    began = time.perf_counter()
    plan.order.batch_samples(plan.steps // 2)
    return planned, time.perf_counter() - began


def run_child(name: str, folder: Path, batches: int, peers: Path | None) -> dict[str, float] | None:
    """The measures of a contender, or None, with a word on stderr, where it cannot run."""
    command = [sys.executable, "-m", "benchmarks.loader", "--child", name, "--folder", str(folder), "--batches", str(batches)]
    command += ["--peers", str(peers)] if peers else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"{name} is left out: {last[0]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main(options: argparse.Namespace) -> None:
    """All contenders, then what only we are asked."""
    report = Report("loader", options)
    tokens, batches = (40_000_000, 20) if options.quick else (200_000_000, 200)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "corpus"
        make_corpus(folder, tokens)
        own = run_child("ours", folder, batches, None)
        assert own is not None
        plain = run_child("ours-windows", folder, batches, None)
        assert plain is not None
        for name in PEERS:
            peer = run_child(name, folder, max(5, batches // 20) if name in ("hf", "mds", "litdata") else batches, options.peers)
            if peer is None:
                continue
            report.rate(f"loader.tokens.{name}", own["rate"], "tokens/s of CPU", peer["rate"], name)
            report.rate(f"loader.windows.{name}", plain["rate"], "tokens/s of CPU", peer["rate"], name)
            for word, unit in (("first", "s"), ("resume", "s"), ("memory", "MB")):
                report.rate(f"loader.{word}.{name}", own[word], unit, peer[word], name)
        steps = 2_000 if options.quick else 100_000
        report.accuracy("loader.memory.growth", "MB", memory_growth(folder, steps), steps)
        report.accuracy("loader.wait", "share of a step of 100 ms", waiting(folder, 20 if options.quick else 100, 0.1), 100)
    planned, first = large_plan()
    report.rate("loader.plan.10T", planned, "s")
    report.rate("loader.plan.10T.batch", first, "s")
    report.close()


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--peers", type=Path, help="a folder with packages of peers")
    arguments.add_argument("--install", type=Path, metavar="FOLDER", help="put the peers into this folder and end")
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peers is not None:
        sys.path.append(str(given.peers))
    if given.install is not None:
        packages = [package for names in PEERS.values() for package in names]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(given.install), *packages]
        sys.exit(subprocess.run(command).returncode)
    if given.child:
        print(json.dumps(child(given.child, given.folder, given.batches)))
    else:
        main(given)
