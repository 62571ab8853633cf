"""Inputs drawn from public bug reports about mixing and reading, from raw files through a build to batches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from stages.contract.manifest import load_manifest
from stages.contract.problem import RunError, SpecError
from tests.pipeline.corpora import run_build
from trainer.config import read_plan
from trainer.loader import Loader
from trainer.planning.plan import Machine, Plan, resolve

pytestmark = pytest.mark.data


@pytest.fixture
def inputs(shared: Path) -> Path:
    return shared / "cases" / "inputs"


def build(folder: Path, sources: dict[str, Path], *more: str) -> Path:
    """The folder of a corpus made of these files, nothing dropped or held out."""
    listed = ", ".join(f"{name}: {{path: {json.dumps(str(path))}}}" for name, path in sources.items())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.yaml").write_text(
        f"name: case\nsources: {{{listed}}}\nstages: []\ntokenizer: {{vocab_size: 300}}\n"
        "holdout: {share: 0}\noutput: {path: out}\n",
        encoding="utf-8",
    )
    run_build(folder / "corpus.yaml", more)
    return folder / "out"


def plan_of(out: Path, *sets: str) -> Plan:
    return resolve(read_plan(None, sets), [load_manifest(out)], Machine())


@pytest.fixture
def lengths(inputs: Path, tmp_path: Path) -> Path:
    """A hundred short documents, and ten long ones."""
    folder = inputs / "mix_lengths"
    return build(tmp_path, {"A": folder / "A_short.jsonl", "B": folder / "B_long.jsonl"},
                 "mix={A: 0.5, B: 0.5}", "output.packing.lengths=[64]")  # fmt: skip


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_weights_are_tokens_whatever_the_length_of_documents(lengths: Path, packing: str) -> None:
    assert load_manifest(lengths).mixture == {"A": 0.5, "B": 0.5}
    plan = plan_of(lengths, "model.seq_len=64", "batch.global_tokens=1024", "data.total_tokens=102_400", f"data.packing={packing}")
    with Loader([lengths], plan) as loader:
        for first in (0, 50):
            read = [loader.batch(step).tokens for step in range(first, first + 50)]
            share = sum(one["A"] for one in read) / sum(sum(one.values()) for one in read)
            assert share == pytest.approx(0.5, abs=0.02)
    if packing == "best-fit":
        a, b = plan.sources
        assert a.epochs > 3 * b.epochs


def test_extreme_weights_on_small_sources(inputs: Path, tmp_path: Path) -> None:
    folder = inputs / "mix_extreme"
    out = build(tmp_path, {"p": folder / "p.jsonl", "q": folder / "q.jsonl"})
    sets = ("model.seq_len=16", "batch.global_tokens=256", "data.total_tokens=256_000")
    plan = plan_of(out, *sets, "data.mix={p: 0.001, q: 0.999}")
    with Loader([out], plan) as loader:
        read = [batch.tokens for batch in loader.batches(0)]
    found = sum(one.get("p", 0) for one in read)
    assert found == 16 * {source.name: source.samples for source in plan.sources}["p"]
    assert found / sum(sum(one.values()) for one in read) == pytest.approx(0.001, abs=0.0002)
    none = plan_of(out, *sets, "data.mix={p: 1e-9, q: 1.0}")
    assert any("p gets no sequence at all" in problem.message for problem in none.problems)


def test_three_phases_each_with_a_source_of_its_own(inputs: Path, tmp_path: Path) -> None:
    folder = inputs / "three_phases"
    out = build(tmp_path, {x: folder / f"phase_{x}.jsonl" for x in "abc"})
    phases = ", ".join(f"{{name: p{x}, tokens: 1280, mix: {{{x}: 1}}}}" for x in "abc")
    plan = plan_of(out, "model.seq_len=64", "batch.global_tokens=256", f"data.phases=[{phases}]")
    with Loader([out], plan) as loader:
        seen = [(plan.phase_at(batch.step).name, list(batch.tokens)) for batch in loader.batches(0)]
    assert seen == [(f"p{x}", [x]) for x in "abc" for _ in range(5)]


@pytest.fixture
def small(inputs: Path, tmp_path: Path) -> Path:
    return build(tmp_path, {"web": inputs / "small_corpus.jsonl"}, "output.packing.lengths=[64]")


def test_the_end_of_a_small_corpus_is_stated_and_short_of_one_sequence(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = (inputs / "five_docs.jsonl").read_text("utf-8").splitlines()
    for number in range(4):
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    out = build(tmp_path, {"web": tmp_path / "in" / "*.jsonl"}, "output.shard_tokens=1024")
    tokens = load_manifest(out).sources["web"].tokens
    stated = set()
    for world in (1, 2, 4):
        machine = Machine(world=world)
        sets = ("model.seq_len=256", "batch.global_tokens=512", f"data.total_tokens={tokens // 512 * 512}")
        plan = resolve(read_plan(None, sets), [load_manifest(out)], machine)
        stated.add(plan.sources[0].unused)
        with Loader([out], plan) as loader:
            parts = [loader.batch(step, rank, world) for step in range(plan.steps) for rank in range(world)]
        assert sum(sum(part.tokens.values()) for part in parts) == plan.total_tokens
    assert stated == {tokens % 256}


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_two_and_a_half_epochs_are_planned_and_read_with_new_shuffles(small: Path, packing: str) -> None:
    manifest = load_manifest(small)
    rows = manifest.sources["web"].packed()[64].total if packing == "best-fit" else manifest.sources["web"].tokens // 64
    batch = math.gcd(rows * 5 // 2, 8) or 1
    sets = ("model.seq_len=64", f"batch.global_tokens={64 * batch}", f"data.packing={packing}",
            f"data.total_tokens={rows * 5 // 2 * 64}")  # fmt: skip
    plan = plan_of(small, *sets)
    assert plan.sources[0].epochs == pytest.approx(2.5, abs=0.05)
    samples = np.concatenate([plan.order.batch_samples(step) for step in range(plan.steps)])["offset"]
    first, second = samples[:rows], samples[rows : 2 * rows]
    assert sorted(first) == sorted(second)
    assert not np.array_equal(first, second)
    with pytest.raises(SpecError, match="web cannot give"):
        plan_of(small, *sets, "data.repeat_limit=1")


def test_sorted_documents_give_ranks_the_same_work_in_shuffled_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    texts = [" ".join(["word"] * n) for n in range(1, 200)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out = build(tmp_path, {"web": tmp_path / "in" / "a.jsonl"})
    plan = plan_of(out, "model.seq_len=32", "batch.global_tokens=288", "data.total_tokens=17_280")
    with Loader([out], plan) as loader:
        work = np.array([
            [sum(loader.batch(step, rank, 2).tokens.values()) for rank in range(2)] for step in range(plan.steps)
        ])  # fmt: skip
        starts = [[loader.batch(step, rank, 2).micros[0]["span_document"][0] for step in range(plan.steps)] for rank in (0, 1)]
    assert np.abs(work[:, 0] - work[:, 1]).max() <= 32
    for mine in starts:
        assert abs(np.corrcoef(mine, np.arange(len(mine)))[0, 1]) < 0.4
    assert abs(np.mean(starts[0]) - np.mean(starts[1])) < 40


def test_a_stopped_run_goes_on_with_the_same_samples_for_other_ranks_and_micro_batches(small: Path) -> None:
    plan = plan_of(small, "model.seq_len=64", "batch.global_tokens=640", "data.total_tokens=38_400")

    def documents(step: int, world: int, micro: int) -> list[tuple[str, bytes]]:
        with Loader([small], plan) as loader:
            parts = [loader.batch(step, rank, world, micro) for rank in range(world)]
        return [
            (plan.phase_at(step).name, name.tobytes())
            for part in parts
            for one in part.micros
            for name, number in zip(one["span_id"], one["span_document"], strict=True)
            if number >= 0
        ]

    straight = [documents(step, 1, 4) for step in range(plan.steps)]
    assert plan.steps == 60
    resumed = [documents(step, 2 if step % 2 else 3, 2) for step in range(30, 60)]
    assert resumed == straight[30:]


def test_a_cut_shard_stops_before_step_0_with_its_name_and_sizes(small: Path) -> None:
    plan = plan_of(small, "model.seq_len=64", "batch.global_tokens=640", "data.total_tokens=6_400")
    shard = small / "shards" / "web" / "00000.tok"
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:-100])
    with pytest.raises(RunError, match=f"00000.tok has {len(data) - 100:,} bytes, but the manifest states {len(data):,}"):
        Loader([small], plan)
    shard.write_bytes(data[:-2] + b"\xff\xff")
    with pytest.raises(RunError, match=r"00000\.tok is damaged"):
        Loader([small], plan)
    shard.write_bytes(data)
    Loader([small], plan, deep=True).close()


def test_layouts_and_tiers_give_the_batches_that_plain_shards_give(inputs: Path, tmp_path: Path) -> None:
    sources = {"web": inputs / "small_corpus.jsonl", "five": inputs / "five_docs.jsonl"}
    sets = ("model.seq_len=64", "batch.global_tokens=640", "data.total_tokens=12_800")
    outs = [build(tmp_path / layout, sources, f"output.layout={layout}", "output.packing.lengths=[64]") for layout in ("memmap", "arrow")]
    for packing in ("concat", "best-fit"):
        digests = []
        for out in outs:
            plan = plan_of(out, *sets, f"data.packing={packing}")
            with Loader([out], plan) as loader:
                digests.append([batch.digest for batch in loader.batches(0)])
        assert digests[0] == digests[1]
    tiers = build(tmp_path / "tiers", sources, "buckets.web={by: length, quantiles: [50%]}", "output.packing.lengths=[64]")
    plan = plan_of(tiers, *sets, "data.mix={web: 0.8, five: 0.2}")
    mix = plan.phases[0].mix
    assert mix["web.0"] + mix["web.1"] == pytest.approx(0.8)
    limited = "data.repeat_limits={web.0: 1}"
    with pytest.raises(SpecError, match=r"web\.0 cannot give"):
        plan_of(tiers, *sets, "data.mix={web.0: 0.8, web.1: 0, five: 0.2}", limited)


def test_a_materialized_mixture_trains_as_one_source(lengths: Path, tmp_path: Path, inputs: Path) -> None:
    folder = inputs / "mix_lengths"
    out = build(tmp_path / "mixed", {"A": folder / "A_short.jsonl", "B": folder / "B_long.jsonl"},
                "mix={A: 0.5, B: 0.5}", "output.mixture={materialized: {tokens: 40_000}}")  # fmt: skip
    plan = plan_of(out, "model.seq_len=64", "batch.global_tokens=640", "data.total_tokens=32_000")
    assert {source.name: source.samples for source in plan.sources} == {"A": 0, "B": 0, "mixed": 500}
    with Loader([out], plan) as loader:
        assert {name for batch in loader.batches(0) for name in batch.tokens} == {"mixed"}
