"""plan.yaml: what people write is read as they mean it, and what is not there is said to be not there."""

from __future__ import annotations

import pytest

from stages.contract.config import json_schema
from stages.contract.problem import SpecError
from trainer.config import PlanConfig, read_plan


def test_the_examples_are_valid(shared):
    examples = shared / "examples"
    if not examples.is_dir():
        pytest.skip("the data folder has no examples")
    article = read_plan(examples / "article_template.yaml").value
    assert (article.model.params, article.optimizer.eps, article.lr_schedule.peak_lr) == (
        7_000_000_000,
        1e-8,
        2e-4,
    )
    assert article.batch.global_tokens == 4_000_000
    plan = read_plan(examples / "plan.yaml").value
    assert plan.batch.global_tokens == 4_194_304
    assert [phase.name for phase in plan.data.phases] == ["short", "foundation", "refine"]
    assert plan.data.repeat_limits == {"books": 3.0}
    assert plan.stop.max_time == 40 * 86_400


def test_values_mean_what_their_field_says(tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "name: no\n"
        "data: {total_tokens: 1.5B, mix: {web: 98B, books: 42B}, repeat_limit: 2}\n"
        "lr_schedule: {peak_lr: 3e-4, warmup_share: 1%}\n"
        "batch: {global_tokens: 4_194_304}\n"
        "hardware: {gpu_memory: 80GiB}\n"
        "checkpoint: {save_every: 30m}\n"
    )
    plan = read_plan(tmp_path / "plan.yaml", ["model.seq_len=4k"]).value
    assert plan.name == "no"
    assert plan.data.total_tokens == 1_500_000_000
    assert plan.data.mix == {"web": 98e9, "books": 42e9}
    assert plan.lr_schedule.peak_lr == 3e-4
    assert plan.lr_schedule.warmup_share == 0.01
    assert plan.batch.global_tokens == 2**22
    assert plan.hardware.gpu_memory == 80 * 2**30
    assert plan.checkpoint.save_every == 1800
    assert plan.model.seq_len == 4000


def test_all_mistakes_come_at_once_with_their_lines(tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "data:\n  totl_tokens: 1B\n  mix: {web: most}\noptimizer: {type: Adam, beta1: 1.0}\nlr_schedule: {decay: cosin}\n"
    )
    with pytest.raises(SpecError) as caught:
        read_plan(tmp_path / "plan.yaml")
    found = {(problem.where.line, problem.code) for problem in caught.value.problems if problem.where}
    assert {line for line, _ in found} == {2, 3, 4, 5}
    assert "did you mean `total_tokens`?" in str(caught.value)


def test_without_a_file_overrides_are_the_plan():
    loaded = read_plan(None, ["data.mix.web=70%", "data.mix.books=30%"])
    assert loaded.value.data.mix == {"web": 0.7, "books": 0.3}
    assert loaded.given(("data", "mix", "web"))
    assert not loaded.given(("data", "total_tokens"))
    assert read_plan(None).value == PlanConfig()
    with pytest.raises(SpecError, match="unknown key"):
        read_plan(None, ["data.mixx.web=70%"])


def test_the_schema_describes_every_section():
    schema = json_schema(PlanConfig)
    assert set(PlanConfig.model_fields) <= set(schema["properties"])
