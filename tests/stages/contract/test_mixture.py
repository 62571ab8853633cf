"""Mixtures: weights are positions, whole numbers are exact, limits hold over the run, repairs work when followed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stages.contract.mixture import Phase, Request, resolve_mixture
from stages.contract.problem import SpecError
from tests.trainer.corpora import make_corpus


def request(**changes):
    base = Request(
        sources={"web": 100_000, "books": 20_000},
        seq_len=100,
        global_tokens=1_000,
        total_tokens=50_000,
        mix={"web": 0.8, "books": 0.2},
    )
    return replace(base, **changes)


def refused(asked, code):
    with pytest.raises(SpecError) as caught:
        resolve_mixture(asked)
    assert code in {problem.code for problem in caught.value.problems}, caught.value
    return [problem for problem in caught.value.problems if problem.code == code]


def test_weights_are_shares_of_positions():
    mixture = resolve_mixture(request())
    (phase,) = mixture.phases
    assert (phase.steps, phase.batch, phase.tokens) == (50, 10, 50_000)
    assert phase.samples == {"web": 400, "books": 100}
    assert mixture.uses["books"].epochs == 0.5
    assert mixture.warnings == ()


@pytest.mark.parametrize(
    "mix", [{"web": 0.802, "books": 0.2}, {"web": 0.798, "books": 0.2}, {"web": 8, "books": 2}]
)
def test_rounding_and_amounts_are_scaled(mix):
    mixed = resolve_mixture(request(mix=mix)).phases[0].mix
    assert sum(mixed.values()) == pytest.approx(1)
    assert mixed["web"] == pytest.approx(0.8, abs=0.001)


def test_weights_that_do_not_add_up_are_an_error_with_the_sum():
    (problem,) = refused(request(mix={"web": 0.8, "books": 0.25}), "C007")
    assert "weights in data.mix add up to 1.05, not 1: 0.8 + 0.25" in problem.message
    assert problem.repairs == ("scaled to 1: {web: 0.7619, books: 0.2381}",)


def test_unknown_and_forgotten_sources_come_together():
    with pytest.raises(SpecError) as caught:
        resolve_mixture(request(mix={"web": 0.8, "boks": 0.2}))
    unknown, forgotten = caught.value.problems
    assert unknown.code == "M003"
    assert unknown.repairs[0] == "did you mean `books`?"
    assert forgotten.code == "C018"
    assert "books was built (20,000 tokens) but has no weight" in forgotten.message
    assert resolve_mixture(request(mix={"web": 1, "books": 0})).uses["books"].samples == 0


def test_a_name_means_all_its_tiers_by_their_tokens():
    sources = {"web.0": 30_000, "web.1": 10_000, "books": 20_000}
    mix = resolve_mixture(request(sources=sources)).phases[0].mix
    assert mix == pytest.approx({"web.0": 0.6, "web.1": 0.2, "books": 0.2})
    mix = (
        resolve_mixture(request(sources=sources, mix={"web.1": 0.8, "books": 0.2, "web.0": 0})).phases[0].mix
    )
    assert mix == pytest.approx({"web.0": 0, "web.1": 0.8, "books": 0.2})


@pytest.mark.parametrize(("small", "zero"), [(0.001, False), (1e-9, True)])
def test_extreme_weights_work_and_a_source_without_a_sequence_is_named(small, zero):
    asked = request(
        sources={"p": 20_000, "q": 20_000}, mix={"p": small, "q": 1 - small}, total_tokens=300_000
    )
    mixture = resolve_mixture(asked)
    assert mixture.uses["p"].samples == (0 if zero else 3)
    named = [warning.message for warning in mixture.warnings if "gets no sequence" in warning.message]
    assert [message.split()[0] for message in named] == (["p"] if zero else [])
    assert any("q is read 15.00 times" in warning.message or "q is read 14.98 times" in warning.message
               for warning in mixture.warnings)  # fmt: skip


def test_a_mix_of_the_data_itself(tmp_path, shared):
    folder = shared / "cases" / "inputs" / "mix_lengths"
    sources = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text("utf-8").splitlines()
        sources[path.name[0]] = [
            [1 + byte % 255 for byte in json.loads(line)["text"].encode()] for line in lines
        ]
    from stages.contract.manifest import load_manifest

    manifest = load_manifest(make_corpus(tmp_path, sources))
    tokens = {name: entry.tokens for name, entry in manifest.sources.items()}
    mixture = resolve_mixture(
        request(sources=tokens, mix={"A": 0.5, "B": 0.5}, seq_len=64, global_tokens=640, total_tokens=64_000)
    )
    assert mixture.uses["A"].read == mixture.uses["B"].read == 32_000


PHASES = (
    Phase(name="short", share=0.1, seq_len=50, mix={"web": 1, "books": 0}),
    Phase(name="main", share=0.7, mix={"web": 0.8, "books": 0.2}),
    Phase(name="refine", share=0.2, ramp=0.5, global_tokens=500, mix={"web": 0.5, "books": 0.5}),
)


def test_phases_have_their_own_length_batch_and_mix():
    mixture = resolve_mixture(request(phases=PHASES, mix=None))
    short, main, *refine = mixture.phases
    assert (short.seq_len, short.batch, short.steps) == (50, 20, 5)
    assert (main.seq_len, main.batch, main.steps) == (100, 10, 35)
    assert {phase.name for phase in refine} == {"refine"}
    assert sum(phase.steps for phase in refine) == 20
    assert mixture.tokens == 50_000
    weights = [phase.mix["books"] for phase in refine]
    assert weights == sorted(weights)
    assert len(weights) == 11
    assert (weights[0], weights[-1]) == (pytest.approx(0.2 + 0.3 * 0.05), 0.5)


def test_a_given_mix_is_checked_against_the_phases():
    real = 0.7 * 0.2 + 0.1 * 0.35 + 0.1 * 0.5
    good = {"web": 1 - real, "books": real}
    assert resolve_mixture(request(phases=PHASES, mix=good)).tokens == 50_000
    problems = refused(request(phases=PHASES, mix={"web": 0.7, "books": 0.3}), "M002")
    assert "data.mix gives web 70.00%, but the phases average to 77.50%" in problems[0].message
    resolve_mixture(request(phases=PHASES, mix={"web": 0.7, "books": 0.3}, mix_is_default=True))


@pytest.mark.parametrize(
    ("phases", "code"),
    [
        ([Phase(name="a", share=0.5), Phase(name="b", share=0.6)], "C007"),
        ([Phase(name="a", tokens=20_000), Phase(name="b", tokens=20_000)], "C007"),
        ([Phase(name="a"), Phase(name="b")], "P002"),
        ([Phase(name="a", share=0.5, tokens=9), Phase(name="b")], "C017"),
        ([Phase(name="a", ramp=0.5)], "C017"),
        ([Phase(name="a", share=0.5, seq_len=60), Phase(name="b")], "C005"),
        ([Phase(name="a", mix={"web": 0.5, "books": 0.4})], "C007"),
    ],
)
def test_phases_that_contradict(phases, code):
    refused(request(phases=phases), code)


def test_phases_may_say_the_length_of_the_run():
    phases = [Phase(name="a", tokens=20_000), Phase(name="b", tokens=30_000)]
    assert resolve_mixture(request(phases=phases, total_tokens=None)).tokens == 50_000
    refused(request(phases=[Phase(name="a", share=1.0)], total_tokens=None), "P002")
    assert (
        resolve_mixture(request(phases=[Phase(name="a", tokens=10_000), Phase(name="b")])).phases[1].tokens
        == 40_000
    )


def test_two_and_a_half_epochs_are_planned_as_such():
    mixture = resolve_mixture(request(mix={"web": 0, "books": 1}, limit=3.0))
    assert mixture.uses["books"].epochs == 2.5
    refused(request(mix={"web": 0, "books": 1}, limit=1.0), "M001")


def test_following_any_repair_makes_the_plan_hold():
    asked = request(total_tokens=200_000, limit=1.5, mix={"web": 0.7, "books": 0.3})
    (problem,) = refused(asked, "M001")
    assert (
        "books cannot give 60,000 tokens: it has 20,000 and may be read 1.5 times (30,000)" in problem.message
    )
    limit, total, weight, exhaust = problem.repairs
    resolve_mixture(replace(asked, limits={"books": float(re.search(r"to ([\d.]+)$", limit)[1])}))
    shorter = resolve_mixture(replace(asked, total_tokens=int(total.rsplit(" ", 1)[1])))
    assert shorter.tokens == 100_000
    share = float(weight.rsplit(" ", 1)[1])
    resolve_mixture(replace(asked, mix={"web": 1 - share, "books": share}, limits={"web": 9.0}))
    assert "redistribute" in exhaust
    moved = resolve_mixture(replace(asked, on_exhaust="redistribute", limits={"web": 9.0}))
    assert moved.uses["books"].read == 30_000
    assert moved.tokens == 200_000
    assert "books 30.00% -> 15.00%" in moved.warnings[0].message
    short = resolve_mixture(replace(asked, on_exhaust="shorten"))
    assert short.tokens == 100_000
    assert "shortened from 200,000 to 100,000" in short.warnings[0].message


def test_when_every_source_is_exhausted_nothing_can_take_the_rest():
    asked = request(total_tokens=500_000, limit=1.0, on_exhaust="redistribute")
    (problem,) = refused(asked, "M001")
    assert "no source is left" in problem.message


def test_a_source_smaller_than_a_sequence_is_an_error_only_when_it_is_read():
    sources = {"web": 100_000, "books": 70}
    (problem,) = refused(request(sources=sources), "M001")
    assert problem.repairs[0] == "lower the sequence length to 64"
    mixture = resolve_mixture(request(sources=sources, mix={"web": 1, "books": 0}))
    assert mixture.uses["books"].unused == 70


sizes = st.integers(1_000, 100_000)


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(sizes, min_size=1, max_size=5),
    weights=st.lists(st.floats(0, 1), min_size=15, max_size=15),
    lengths=st.lists(st.sampled_from([25, 50, 100]), min_size=1, max_size=3),
    total=st.integers(1_000, 300_000),
    limit=st.floats(0.5, 3),
    how=st.sampled_from(["redistribute", "shorten"]),
)
def test_whatever_is_asked_limits_hold_and_samples_fill_the_steps(
    tokens, weights, lengths, total, limit, how
):
    names = [f"s{i}" for i in range(len(tokens))]
    phases = []
    for p, length in enumerate(lengths):
        part = weights[p * 5 : p * 5 + len(tokens)]
        assume(sum(part) > 0.01)
        mix = {name: weight / sum(part) for name, weight in zip(names, part, strict=True)}
        phases.append(
            Phase(name=f"p{p}", share=1 / len(lengths), seq_len=length, ramp=0.3 if p else 0, mix=mix)
        )
    asked = Request(
        dict(zip(names, tokens, strict=True)), 100, 1_000, total, None, phases, limit, {}, how
    )  # fmt: skip
    try:
        mixture = resolve_mixture(asked)
    except SpecError as error:
        assert all(problem.code == "M001" for problem in error.problems)  # noqa: PT017 - most examples raise nothing
        return
    for phase in mixture.phases:
        assert sum(phase.samples.values()) == phase.steps * phase.batch
        assert all(count == 0 for name, count in phase.samples.items() if phase.mix[name] == 0)
    for name, use in mixture.uses.items():
        ratios = [mixture.longest // phase.seq_len for phase in mixture.phases]
        assert use.drawn == sum(
            -(-phase.samples[name] // ratio) for phase, ratio in zip(mixture.phases, ratios, strict=True)
        )
        assert use.room is not None
        assert use.drawn <= use.room
        assert use.read <= use.drawn * mixture.longest
    if how == "redistribute":
        assert (
            abs(mixture.tokens - total) <= 500
            or mixture.tokens == mixture.phases[0].batch * mixture.phases[0].seq_len
        )
    else:
        assert mixture.tokens <= total + 500
