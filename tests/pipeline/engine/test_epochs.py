"""What `pipeline plan` says about epochs, before and after there are tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.corpus import load_corpus
from pipeline.engine.epochs import reading
from pipeline.engine.plan import make_plan
from stages.contract.manifest import load_manifest
from tests.pipeline.corpora import document, run_build, write_jsonl

PHASES = """phases:
  - {name: first, share: 75%, mix: {web: 0.8, books: 0.2}}
  - {name: second, share: 25%, mix: {web: 0.4, books: 0.6}}
"""


def config(folder: Path, rest: str) -> Path:
    write_jsonl(folder / "in" / "web.jsonl", [document(i) for i in range(60)])
    write_jsonl(folder / "in" / "books.jsonl", [document(900 + i) for i in range(20)])
    path = folder / "corpus.yaml"
    path.write_text(
        f"name: small\nsources:\n  web: {{path: {folder}/in/web.jsonl}}\n  books: {{path: {folder}/in/books.jsonl}}\n"
        f"tokenizer: {{vocab_size: 300}}\noutput: {{path: {folder}/out}}\nholdout: {{share: 0}}\n{rest}"
    )
    return path


def test_epochs_are_estimated_before_the_build_and_counted_after_it(tmp_path: Path) -> None:
    path = config(tmp_path, PHASES)
    before = reading(make_plan(load_corpus(path)))
    assert before is not None
    assert not before.measured
    assert before.tokens["web"] == (tmp_path / "in" / "web.jsonl").stat().st_size // 4
    run_build(path)
    after = reading(make_plan(load_corpus(path)))
    assert after is not None
    assert after.measured
    tokens = {name: source.tokens for name, source in load_manifest(tmp_path / "out").sources.items()}
    assert after.tokens == tokens
    assert after.total == sum(tokens.values())
    assert after.shares == {"first": {"web": 0.8, "books": 0.2}, "second": {"web": 0.4, "books": 0.6}}
    assert after.epochs["books"] == pytest.approx((0.75 * 0.2 + 0.25 * 0.6) * after.total / tokens["books"])
    assert sum(after.epochs[name] * n for name, n in tokens.items()) == pytest.approx(after.total)


def test_a_mixture_that_repeats_a_small_source_is_said(tmp_path: Path) -> None:
    path = config(tmp_path, "mix: {web: 0.2, books: 0.8}\n")
    shown = CliRunner().invoke(main, ["plan", str(path), "--set", "output.mixture={materialized: {tokens: 1M}}"])
    assert shown.exit_code == 0, shown.output
    assert "a run of about 1,000,000 tokens, as the config says" in shown.output
    assert "warning  web, books: read more than 4 times" in shown.output


def test_a_ramp_reads_what_lies_between_the_phases(tmp_path: Path) -> None:
    path = config(tmp_path, PHASES.replace("share: 25%", "share: 25%, ramp: 100%"))
    found = reading(make_plan(load_corpus(path)))
    assert found is not None
    assert found.shares["second"]["web"] == pytest.approx(0.6)


def test_tiers_are_estimated_by_their_quantiles(tmp_path: Path) -> None:
    rest = "stages:\n  - normalize\n  - language\nbuckets: {web: {by: lang_score, quantiles: [50%, 80%]}}\nmix: {web: 0.5, books: 0.5}\n"
    found = reading(make_plan(load_corpus(config(tmp_path, rest))))
    assert found is not None
    parts = [found.tokens[f"web.{i}"] for i in range(3)]
    assert [round(part / sum(parts), 2) for part in parts] == [0.5, 0.3, 0.2]
    assert found.epochs["web.0"] == pytest.approx(found.epochs["web.2"], rel=0.01)


def test_without_weights_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert reading(make_plan(load_corpus(config(tmp_path, "")))) is None
