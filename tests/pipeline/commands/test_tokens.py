"""`pipeline tokenize` and what `pipeline inspect` says of tokens and of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from tests.pipeline.corpora import make_inputs, run_build, write_config


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    make_inputs(folder / "in", files=2)
    run_build(write_config(folder, folder / "in", "  - normalize\n  - language\n"))
    return folder / "out"


def call(*arguments: object) -> tuple[int, str, dict]:
    words = [str(a) for a in arguments]
    plain, parsed = CliRunner().invoke(main, words), CliRunner().invoke(main, [*words, "--json"])
    lines = parsed.stdout.splitlines()
    return plain.exit_code, plain.output, json.loads(lines[-1])["result"] if plain.exit_code == 0 else {}


def test_a_file_in_tokens(built: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("River lamp\n山水 \u202e\x1b[31m", encoding="utf-8")
    for tokenizer in (built, built / "manifest.json", built / "tokenizer" / "tokenizer.json"):
        code, text, data = call("tokenize", file, "--tokenizer", tokenizer)
        assert code == 0
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "·lamp" in text
        assert data["roundtrip"]
        assert data["tokens"] == len(data["ids"]) == len(data["pieces"]) > 3
        assert data["bytes"] == len(file.read_bytes())


def test_files_that_are_no_text(built: Path, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    code, text, _ = call("tokenize", tmp_path / "bytes", "--tokenizer", built)
    assert code == 2
    assert "byte 2 is 0xFF" in text
    assert call("tokenize", tmp_path / "none", "--tokenizer", built)[0] == 2


def test_kept_documents_in_tokens(built: Path) -> None:
    code, text, data = call("inspect", built, "--tokens", "--source", "books", "-n", 2)
    assert code == 0
    assert len(data["kept"]) == 2
    assert all(row["roundtrip"] for row in data["kept"])
    assert "bytes per token" in text


def test_the_report_after_training_and_on_demand(built: Path, tmp_path: Path) -> None:
    made = json.loads((built / "tokenizer" / "tokenizer-report.json").read_bytes())
    assert made["roundtrip"]["failures"] == 0
    assert {group["source"] for group in made["measured"]} == {"web", "books"}
    assert {group["language"] for group in made["measured"]} >= {"en", "zh"}
    assert b"<script" not in (built / "tokenizer" / "report.html").read_bytes()
    page = tmp_path / "report.html"
    own = built / "tokenizer" / "tokenizer.json"
    code, text, data = call("inspect", built, "--tokenizer", "--compare", own, "--html", page)
    assert code == 0
    assert "round trip    0 of" in text
    assert data["others"][0]["measured"] == data["measured"]
    assert data["sizes"][-1]["vocab_size"] == data["vocab_size"] == 400
    assert "<svg" in page.read_text(encoding="utf-8")


def test_an_end_token_of_an_unusual_name_is_known_to_every_command(built: Path, tmp_path: Path) -> None:
    spec = json.loads((built / "tokenizer" / "tokenizer.json").read_bytes())
    for token in spec["added_tokens"]:
        token["content"] = token["content"].replace("endoftext", "fin")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps(spec), encoding="utf-8")
    config = write_config(tmp_path, built.parent / "in", "  - normalize\n")
    text = config.read_text(encoding="utf-8").replace("{vocab_size: 400}", f'{{path: {tokenizer}, eos: "<|fin|>"}}')
    config.write_text(text, encoding="utf-8")
    out = run_build(config).manifest.parent
    assert call("inspect", out, "--tokens", "-n", 1)[0] == 0
    assert call("inspect", out, "--kept", "-n", 1)[0] == 0
    assert call("inspect", out, "--tokenizer")[0] == 0
    assert call("tokenize", tokenizer, "--tokenizer", out)[0] == 0
    shard = json.loads((out / "manifest.json").read_bytes())["sources"]["web"]["shards"][0]["name"]
    ids = tmp_path / "ids.bin"
    ids.write_bytes((out / f"{shard}.tok").read_bytes())
    take = ["import", f"web={ids}", "--from", "nanogpt", "--tokenizer", tokenizer, "--out"]
    assert call(*take, tmp_path / "no")[0] == 2
    again = CliRunner().invoke(main, [*map(str, take), str(tmp_path / "taken"), "--eos", "<|fin|>"])
    assert again.exit_code == 0, again.output
