"""The plan: contradictions are found with repairs that work, and what is left out is derived by a stated rule."""

from __future__ import annotations

import json
import re

import pytest

from stages.contract.manifest import Manifest, SourceEntry, TokenizerEntry, load_manifest, source_uid
from stages.contract.problem import SpecError, render
from tests.trainer.corpora import make_corpus, random_documents
from trainer.config import read_plan
from trainer.planning.plan import Machine, resolve
from trainer.shape import Given, find_shape

ARTICLE = """\
model:
  params: 7B
  seq_len: 4096
data:
  total_tokens: 140B
  mix: {web: 0.70, books: 0.15, code: 0.10, dialogue: 0.05}
  repeat_limit: 2
lr_schedule: {peak_lr: 2e-4, warmup_steps: 2000, total_steps: 35000, decay: cosine, min_lr_ratio: 0.1}
batch: {global_tokens: 4M, micro_batch_size: 4, grad_accum_steps: 61, data_parallel: 8}
parallel: {tensor_parallel: 1, pipeline_parallel: 1}
"""


def manifest(sha="0" * 64, **tokens):
    tokenizer = TokenizerEntry(
        path="tokenizer.json", sha256=sha, vocab_size=50_257, eos_id=0, largest_id=50_256
    )
    sources = {
        name: SourceEntry(
            uid=source_uid(name), digest=name, documents=1, tokens=int(count), text_bytes=1, largest_id=9
        )
        for name, count in tokens.items()
    }
    return Manifest(name="m", seed=0, config_digest="", dtype="uint16", tokenizer=tokenizer, sources=sources)


BIG = manifest(web=74.1e9, books=12e9, code=20e9, dialogue=8e9)
SMALL = manifest(web=200_000, books=50_000)


def article(tmp_path, *overrides, corpus=BIG):
    (tmp_path / "plan.yaml").write_text(ARTICLE)
    return resolve(read_plan(tmp_path / "plan.yaml", overrides), [corpus], Machine("cuda", 8, 8))


def small(*overrides, corpus=SMALL, machine=None):
    return resolve(read_plan(None, overrides), [corpus], machine or Machine())


def refused(make, *args, **kwargs):
    with pytest.raises(SpecError) as caught:
        make(*args, **kwargs)
    return {problem.code: problem for problem in caught.value.problems}


# ---- the equations ---------------------------------------------------------------------------------------------


def test_the_template_of_the_article_trains_twice_what_it_says(tmp_path, golden):
    found = refused(article, tmp_path)
    assert set(found) == {"P001", "W001"}
    text = "\n\n".join(render(problem) for problem in found.values())
    golden("plan/article.txt", text.replace(f"{tmp_path}/", "") + "\n")


def test_each_repair_of_the_step_re_runs_clean(tmp_path):
    repairs = refused(article, tmp_path)["P001"].repairs[1:]
    assert len(repairs) == 6
    for repair in repairs:
        changes = re.findall(r"([a-z_]+\.[a-z_]+): ([\d_]+)", repair)
        sets = [f"{name}={value}" for name, value in changes]
        plan = article(tmp_path, *sets, "lr_schedule.warmup_share=", "lr_schedule.warmup_steps=", "data.repeat_limit=4")
        assert not [problem for problem in plan.problems if problem.code == "P001"]
        step = plan.phases[0].tokens_per_step
        assert step == pytest.approx(7_995_392 if "batch.global_tokens" in dict(changes) else 4_000_000, rel=0.02)


def test_a_repair_names_its_place(tmp_path):
    repairs = refused(article, tmp_path)["P001"].repairs
    lines = (tmp_path / "plan.yaml").read_text().splitlines()
    for name, line, column in re.findall(r"([a-z_]+): [\d_]+ .* at [^:]+:(\d+):(\d+)$", "\n".join(repairs), re.MULTILINE):
        assert lines[int(line) - 1][: int(column) - 1].rstrip().endswith(f"{name}:")


def test_a_step_in_decimal_is_a_target_and_one_in_binary_is_met(tmp_path):
    free = ("batch.grad_accum_steps=", "lr_schedule.total_steps=")
    plan = article(tmp_path, *free, "batch.global_tokens=4_194_304")
    assert plan.phases[0].tokens_per_step == 4_194_304
    assert plan.steps == 33_379
    assert plan.accumulation(0, world=8, micro=4) == 32
    plan = article(tmp_path, *free)
    assert plan.phases[0].batch == 977
    assert plan.phases[0].tokens_per_step == 977 * 4096


def test_steps_and_tokens_of_the_run_must_agree():
    found = refused(small, "data.total_tokens=100_000", "batch.global_tokens=1_000", "model.seq_len=100",
                    "lr_schedule.total_steps=50")  # fmt: skip
    assert "50 x 1,000 = 50,000, but data.total_tokens is 100,000" in found["P001"].message
    assert [repair.split("  ")[1] for repair in found["P001"].repairs[1:]] == [
        "lr_schedule.total_steps: 100", "batch.global_tokens: 2_000", "data.total_tokens: 50_000",
    ]  # fmt: skip
    plan = small("batch.global_tokens=1_000", "model.seq_len=100", "lr_schedule.total_steps=50")
    assert (plan.steps, plan.total_tokens) == (50, 50_000)


def test_a_warm_up_of_the_whole_run_is_refused():
    found = refused(
        small, "lr_schedule.warmup_steps=50", "lr_schedule.total_steps=50", "batch.global_tokens=1_024"
    )
    assert "leaves nothing of a run of 50" in found["P001"].message
    both = refused(small, "lr_schedule.warmup_steps=50", "lr_schedule.warmup_share=1%", "lr_schedule.total_steps=1000",
                   "batch.global_tokens=256")  # fmt: skip
    assert "warm-up does not agree: 1 % x 1,000 = 10, but lr_schedule.warmup_steps is 50" in both["P001"].message


def test_best_fit_needs_rows_of_every_length():
    found = refused(small, "data.packing=best-fit", "model.seq_len=128")
    assert "books, web have no rows of 128, of no length" in found["P002"].message
    assert found["P002"].repairs == ("run pipeline pack MANIFEST --length 128", "write data.packing: concat")
    assert small().packing == "concat"


def test_a_model_too_large_for_its_devices_is_refused(tmp_path):
    found = refused(
        article, tmp_path, "batch.grad_accum_steps=31", "hardware.gpu_memory=80GiB"
    )
    assert "a device needs " in found["P003"].message
    assert found["P003"].where is not None
    keys = [repair.split(":")[0].strip() for repair in found["P003"].repairs[1:]]
    assert keys == ["batch.micro_batch_size", "parallel.activation_checkpointing", "parallel.activation_checkpointing",
                    "model.seq_len", "batch.data_parallel", "parallel.tensor_parallel", "optimizer.type"]  # fmt: skip


# ---- what is derived -------------------------------------------------------------------------------------------


def test_without_a_plan_everything_is_derived_and_says_how():
    plan = small()
    origins = {note.key: note.origin for note in plan.notes}
    assert set(origins.values()) == {"derived", "default"}
    assert all(note.why for note in plan.notes)
    assert 100 <= plan.steps <= 1_100
    assert plan.model.seq_len == 256
    assert (plan.model.width, plan.model.layers) == (128, 4)
    assert (
        plan.schedule.total_tokens
        == plan.total_tokens
        == pytest.approx(30e12 / 6 / plan.model.parameters, rel=0.01)
    )
    assert [source.epochs for source in small("model.params=4M").sources] == pytest.approx([4, 4], rel=0.02)
    assert plan.compute == "fp32"
    given = {note.key: note for note in small("data.total_tokens=500_000").notes}
    assert given["data.total_tokens"].origin == "given"


def test_the_machine_does_not_reach_the_order():
    plan = small(machine=Machine("cpu", 1, 1))
    other = small(machine=Machine("cpu", 64, 7))
    assert plan.digest == other.digest
    assert plan.chain == other.chain


def test_a_length_nobody_asked_for_gives_way_to_a_limit():
    plan = small("data.repeat_limit=2")
    assert max(source.epochs for source in plan.sources) <= 2
    assert plan.total_tokens > 450_000
    assert "shortened" in plan.problems[0].message
    assert "M001" in refused(small, "data.repeat_limit=2", "data.total_tokens=1M")


@pytest.mark.parametrize(
    ("target", "vocab"), [(1e6, 8_192), (1e7, 16_384), (124e6, 50_257), (1e9, 65_536), (7e9, 65_536)]
)
def test_a_shape_is_near_its_size_and_has_no_faults(target, vocab):
    shape = find_shape(Given(), int(target), vocab, 1024, 1e4, 1e-5)
    assert shape.parameters == pytest.approx(target, rel=0.05)
    assert list(shape.faults()) == []
    assert shape.vocab_size % 64 == 0
    assert shape.vocab_size >= vocab


def test_the_number_of_parameters_is_exact():
    shape = find_shape(
        Given(width=8, layers=2, heads=2, kv_heads=1, ffn=16, tie_embeddings=False), 1, 64, 16, 1e4, 1e-5
    )
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8
    assert shape.parameters == 2 * 64 * 8 + 2 * (attention + 3 * 8 * 16 + 2 * 8) + 8
    assert shape.matmul_parameters == 64 * 8 + 2 * (attention + 3 * 8 * 16)


def test_a_shape_that_cannot_work_is_refused():
    assert "do not divide the width" in refused(small, "model.width=100", "model.heads=3")["P001"].message
    assert (
        "do not divide"
        in refused(small, "model.heads=4", "model.kv_heads=3", "model.width=128")["P001"].message
    )


# ---- phases ----------------------------------------------------------------------------------------------------

THREE = (
    "data.phases=[{name: a, share: 20%, seq_len: 64, lr: 1e-3, mix: {web: 1, books: 0}}, "
    "{name: b, share: 60%, mix: {web: 0.8, books: 0.2}}, {name: c, share: 20%, ramp: 50%, mix: {web: 0.5, books: 0.5}}]"
)


def test_steps_tokens_and_phases_fit_together():
    plan = small(THREE, "model.seq_len=128", "data.total_tokens=200_000", "batch.global_tokens=1_024",
                 "lr_schedule.peak_lr=2e-3", "lr_schedule.warmup_steps=50")  # fmt: skip
    assert plan.model.seq_len == 128
    assert plan.steps == 195
    assert plan.phases[0].lr_factor == 0.5
    seen = 0
    for step in range(plan.steps):
        phase = plan.phase_at(step)
        assert phase.first_step <= step < phase.end
        assert plan.tokens_at(step) == seen
        seen += phase.tokens_per_step
    assert plan.tokens_at(plan.steps) == seen == plan.total_tokens == plan.schedule.total_tokens
    assert plan.schedule.warmup_tokens == plan.tokens_at(50)
    assert [plan.phase_at(step).name for step in (0, 38, 39, 155, 156, 194)] == ["a", "a", "b", "b", "c", "c"]
    for step in (-1, 195):
        with pytest.raises(IndexError):
            plan.phase_at(step)
    assert len(plan.chain) == len(plan.phases) + 1


def test_the_plan_of_the_manifest_is_the_default(tmp_path):
    path = make_corpus(
        tmp_path,
        {"web": random_documents(200, 100), "books": random_documents(100, 100, seed=1)},
        mixture={"web": 0.9, "books": 0.1},
    )
    plan = resolve(read_plan(None, ["data.total_tokens=5000"]), [load_manifest(path)], Machine())
    assert plan.phases[0].mix == pytest.approx({"web": 0.9, "books": 0.1})


def test_manifests_are_read_together_only_with_one_tokenizer():
    other = manifest(code=90_000)
    plan = resolve(None, [SMALL, other], Machine())
    assert [source.name for source in plan.sources] == ["books", "code", "web"]
    assert len(plan.manifests) == 2
    foreign = manifest(sha="1" * 64, code=90_000)
    assert "different tokenizers" in refused(resolve, None, [SMALL, foreign], Machine())["C017"].message
    assert "two manifests" in refused(resolve, None, [SMALL, manifest(web=9)], Machine())["C017"].message
    assert "no tokens at all" in refused(resolve, None, [manifest(web=0)], Machine())["M001"].message


def test_the_digest_covers_what_decides_and_nothing_else():
    base = small("data.total_tokens=500_000")
    for same in ("name=x", "checkpoint.keep_last=9", "monitoring.log_every_steps=1", "stop.max_time=1h"):
        assert small("data.total_tokens=500_000", same).digest == base.digest
    for other in (
        "seed=1",
        "data.seed=1",
        "data.total_tokens=600_000",
        "optimizer.beta2=0.99",
        "data.mask_documents=false",
    ):
        assert small("data.total_tokens=500_000", other).digest != base.digest


def test_the_plan_is_plain_json():
    tree = json.loads(json.dumps(small().to_json()))
    assert tree["steps"] == small().steps
    assert tree["stretches"][0]["samples"]
    assert tree["model"]["parameters"] == small().model.parameters


def test_tokens_that_fill_no_sequence_are_stated():
    corpus = manifest(web=1_030)
    plan = small("model.seq_len=256", "data.total_tokens=2048", "batch.global_tokens=512", corpus=corpus)
    assert plan.sources[0].unused == 6
    assert {note.key: note.value for note in plan.notes}["data.tokens_unused"] == "6"
