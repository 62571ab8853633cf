from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.trainer.tiny import corpus, overrides, planned
from trainer.loop.schedule import rate, rate_at
from trainer.planning.plan import SchedulePlan

KINDS = ("cosine", "linear", "constant", "inverse-sqrt", "wsd")


def schedule(decay, warmup=100, decay_tokens=None, total=1000, peak=1e-3, low=1e-4):
    length = decay_tokens if decay_tokens is not None else total - warmup
    return SchedulePlan(
        peak_lr=peak, min_lr=low, warmup_tokens=warmup, decay=decay, decay_tokens=length, total_tokens=total
    )


@pytest.mark.parametrize("decay", KINDS)
def test_warmup_is_a_line_from_zero_to_the_peak(decay):
    plan = schedule(decay)
    assert rate(plan, 0) == 0.0
    assert rate(plan, 50) == pytest.approx(5e-4)
    assert rate(plan, 100) == pytest.approx(1e-3)


def test_named_points_of_each_decay():
    assert rate(schedule("cosine"), 550) == pytest.approx(1e-4 + 9e-4 / 2)
    assert rate(schedule("linear"), 550) == pytest.approx(5.5e-4)
    assert rate(schedule("constant"), 999) == 1e-3
    assert rate(schedule("inverse-sqrt"), 400) == pytest.approx(5e-4)
    wsd = schedule("wsd", decay_tokens=200)
    assert [rate(wsd, t) for t in (101, 500, 800)] == [1e-3] * 3
    assert rate(wsd, 900) == pytest.approx(5.5e-4)
    for decay in ("cosine", "linear", "wsd"):
        assert rate(schedule(decay, decay_tokens=200 if decay == "wsd" else None), 1000) == pytest.approx(
            1e-4
        )


@pytest.mark.parametrize("decay", KINDS)
def test_no_jumps_and_bounds(decay):
    plan = schedule(decay, decay_tokens=200 if decay == "wsd" else None)
    rates = [rate(plan, t) for t in range(1001)]
    assert max(abs(a - b) for a, b in pairwise(rates)) <= 1.01e-5
    assert max(rates) == pytest.approx(1e-3)
    assert min(rates[100:]) >= 1e-4 * (1 - 1e-12)
    assert rates[100:] == sorted(rates[100:], reverse=True)


def test_without_warmup_the_first_step_has_the_peak():
    for decay in KINDS:
        assert math.isclose(rate(schedule(decay, warmup=0, decay_tokens=10), 0), 1e-3)


@pytest.mark.parametrize(("rule", "power"), [("none", 0.0), ("sqrt", 0.5), ("linear", 1.0)])
def test_the_rate_follows_the_batch_of_a_phase(tmp_path, rule, power):
    path = corpus(tmp_path / "corpus")
    phases = "[{name: a, tokens: 2560}, {name: b, tokens: 2560, global_tokens: 1024}, {name: c, tokens: 2560, lr: 2e-2}]"
    sets = [text for text in overrides(1) if not text.startswith("data.total")]
    plan, _ = planned(path, *sets, f"data.phases={phases}", f"lr_schedule.batch_rule={rule}", "lr_schedule.decay=constant",
                      "lr_schedule.warmup_steps=0")  # fmt: skip
    rates = {phase.name: rate_at(plan, phase.first_step) for phase in plan.phases}
    assert rates["a"] == pytest.approx(1e-2)
    assert rates["b"] == pytest.approx(1e-2 * 4**power)
    assert rates["c"] == pytest.approx(2e-2)
