"""The life of one document, clusters, and the guards as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.commands.why import word_diff
from pipeline.engine.sealed import arrow_table
from stages.contract.problem import RunError, SpecError
from tests.pipeline.corpora import document, make_inputs, run_build, write_config, write_jsonl


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a build with exact and near copies."""
    folder = tmp_path_factory.mktemp("why")
    make_inputs(folder / "in", files=3)
    run_build(write_config(folder, folder / "in"))
    return folder / "out"


def call(*arguments: object) -> tuple[int, str, list[dict]]:
    """`(exit code, text, JSON lines)` of a command; the text is that of a second call without --json."""
    words = [str(a) for a in arguments]
    plain, parsed = CliRunner().invoke(main, words), CliRunner().invoke(main, [*words, "--json"])
    return plain.exit_code, plain.output, [json.loads(line) for line in parsed.stdout.splitlines()]


def near(built: Path) -> dict:
    rows = arrow_table(built / "dropped" / "web" / "00000.arrow").to_pylist()
    return next(row for row in rows if row["stage"] == "minhash-dedup")


def test_why_a_near_copy_went_with_both_texts(built: Path) -> None:
    row = near(built)
    for query in (row["id"].hex(), row["user_id"], row["text"][:60]):
        code, text, lines = call("why", built, query)
        assert code == 0
        assert "dropped by minhash-dedup: minhash-dedup.near-duplicate" in text
        assert f"kept instead: {row['survivor'].hex()}, similarity {row['similarity']:.3f}" in text
        assert "{+" in text
        assert "One more sentence.+}" in text
        assert "books: all.jsonl" in text
        told = lines[-1]["result"]["documents"]
        assert told[0]["id"] == row["id"].hex()
        assert told[0]["survivor_document"]["fate"] in ("kept", "held out")


def test_why_a_document_was_kept_and_what_went_for_it(built: Path) -> None:
    survivor = near(built)["survivor"].hex()
    code, text, _ = call("why", built / "manifest.json", survivor)
    assert code == 0
    assert "documents were dropped for it" in text
    assert "tokens" in text
    beginning = document(0)[:50]
    assert "  kept: shards/books/00000" in call("why", built, beginning)[1] or "held out" in call("why", built, beginning)[1]


def test_a_document_that_is_not_there(built: Path) -> None:
    code, _, lines = call("why", built, "no such beginning")
    assert code == SpecError.exit_code
    assert lines[-1]["problem"]["code"] == "D005"


def test_the_largest_clusters_with_samples(built: Path) -> None:
    code, text, lines = call("inspect", built, "--clusters", "-n", 2)
    assert code == 0
    assert "documents became one, by exact-dedup; kept: " in text
    found = lines[-1]["result"]["clusters"]
    assert [one["documents"] for one in found] == sorted((one["documents"] for one in found), reverse=True)
    assert len(found) == 2
    assert found[0]["examples"]


def test_diff_of_words_and_of_characters() -> None:
    assert word_diff("one two three", "one 2 three") == "one [-two -]{+2 +}three"
    assert word_diff("我们在学习", "我们不学习") == "我们[-在-]{+不+}学习"
    assert word_diff("same", "same") == "(the same text)"
    long = " ".join(f"w{i}" for i in range(100))
    assert word_diff(f"{long} a", f"{long} b").startswith(" ... w94 ")


def templated(folder: Path, pages: int) -> Path:
    """A source whose pages are one template with a word or two of their own, and one ordinary source."""
    frame = document(1, 150)
    write_jsonl(folder / "in" / "web" / "shop.jsonl", [f"{frame} Item {n}." for n in range(pages)])
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(100 + i) for i in range(5)])
    return write_config(folder, folder / "in", "  - minhash-dedup\n")


def test_a_source_that_is_one_template_stops_the_build_with_three_pairs(tmp_path: Path) -> None:
    config = templated(tmp_path, 120)
    with pytest.raises(RunError) as error:
        run_build(config)
    text = str(error.value)
    assert "minhash-dedup dropped 119 of 120 documents of web (99.2 %), more than its max_loss of 60 %" in text
    assert text.count("dropped: shop.jsonl, record ") == 3
    assert text.count("kept instead: shop.jsonl, record 0: ") == 3
    assert "--set stages.minhash-dedup.max_loss=100%" in text
    run_build(config, ["stages.minhash-dedup.max_loss=100%"])
    run_build(templated(tmp_path / "few", 15))  # a default limit is not for a handful of documents


def test_a_cluster_alarm_and_the_audit_stand_in_the_report(tmp_path: Path) -> None:
    heard: list = []
    config = templated(tmp_path, 40)
    settings = ["stages.minhash-dedup.max_loss=100%", "stages.minhash-dedup.cluster_alarm=30"]
    run_build(config, settings, heard=heard)
    warned = [event.message for event in heard if event.kind == "warning"]
    assert any("a cluster of 40 documents was reduced to one" in message for message in warned)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a cluster of 40 documents was reduced to one" in page
    assert "100.0 % (91.0 to 100.0, n = 39) of removals reach the threshold by exact similarity" in page


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ("[minhash-dedup: {survivor: lang_score}, language]", "needs the column `lang_score`, which language adds only later"),
        ("[minhash-dedup: {survivor: beauty}]", "needs the column `beauty`, which no stage adds"),
    ],
)
def test_a_column_of_a_later_stage_is_an_error_at_check(tmp_path: Path, stages: str, sentence: str) -> None:
    (tmp_path / "in.txt").write_text("text")
    config = tmp_path / "corpus.yaml"
    config.write_text(f"name: x\nsources: {{a: {{path: in.txt}}}}\nstages: {stages}\noutput: {{path: out}}\n")
    code, text, _ = call("check", config)
    assert code == SpecError.exit_code
    assert sentence in " ".join(text.split())
    config.write_text("name: x\nsources: {a: {path: in.txt}}\nstages: [language, minhash-dedup: {survivor: lang_score}]\noutput: {path: out}\n")
    assert call("check", config)[0] == 0
