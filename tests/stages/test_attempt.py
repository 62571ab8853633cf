"""One text through one stage: what is shown, and from where it can be asked."""

from __future__ import annotations

import io
import json
import sys

import pytest
from click.testing import CliRunner

from pipeline.cli import main
from stages.attempt import attempt, make_stage, shown
from stages.attempt import main as program
from tests.pipeline.corpora import document, write_jsonl

ZH = "村口那座石桥是用青石砌成的，桥面不宽。"


def test_what_is_shown_says_why():
    text = f"{ZH} 电话13800138000"
    result = attempt(make_stage("pii", []), text)
    assert result["text"] == f"{ZH} 电话<PHONE>"
    assert result["columns"]["pii.phone"] == 1
    assert "phone at 22 to 33: 13800138000" in shown(text, result)
    rules = attempt(make_stage("rules", ["preset=null", "min_words=100"]), ZH)
    assert (rules["kept"], rules["reason"], rules["value"]) == (False, "rules.gopher_short_doc", "17 < 100")
    assert rules["why"] == ["a script without spaces: characters count for words", "gopher_short_doc: 17, FAILS (fails if < 100)"]
    long = "a line\n" * 1000 + "trailing \n"
    said = shown(long, attempt(make_stage("normalize", []), long))
    assert "-trailing " in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("rles", [], "nearest is rules"), ("exact-dedup", [], "comparing documents"), ("pii", ["x"], "not key=value"),
        ("pii", ["kinds=[fax]"], "kinds.0"), ("pii", ["nothing=1"], "nothing"), ("language", ["keep=[yue]"], "yue"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_said(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_stage(name, settings)


def test_the_command_reads_stdin_and_speaks_json():
    ran = CliRunner().invoke(main, ["try", "language", "--json"], input=ZH.encode())
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["result"]["columns"]["lang"] == "zh"
    ran = CliRunner().invoke(main, ["try", "rules", "--set", "preset=c5", "text"])
    assert ran.exit_code == 2


def test_the_module_of_a_stage_is_a_program(monkeypatch, capsysbinary):
    monkeypatch.setattr(sys, "argv", ["normalize", "a  \r\n"])
    program("normalize")
    assert capsysbinary.readouterr().out == b"normalize: kept\nthe text is now:\na\n"
    monkeypatch.setattr(sys, "argv", ["normalize"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ZH.encode())))
    program("normalize")
    assert b"unchanged" in capsysbinary.readouterr().out
    monkeypatch.setattr(sys, "argv", ["pii", "--set", "kinds=fax", "x"])
    with pytest.raises(SystemExit, match="pii: kinds"):
        program("pii")


def test_a_classifier_from_files(tmp_path):
    write_jsonl(tmp_path / "good.jsonl", [document(i) for i in range(60)])
    write_jsonl(tmp_path / "bad.jsonl", [f"buy cheap {i} pills now " * 8 for i in range(60)])
    good, bad, model = (str(tmp_path / name) for name in ("good.jsonl", "bad.jsonl", "m.bin"))
    ran = CliRunner().invoke(main, ["train-quality", "--good", good, "--bad", bad, "--out", model, "--epochs", "20"])
    assert ran.exit_code == 0, ran.output
    assert "precision  recall" in ran.stdout
    shown_score = CliRunner().invoke(main, ["try", "quality", "--set", f"model={model}", document(500)])
    assert "score 0." in shown_score.stdout
    ran = CliRunner().invoke(main, ["train-quality", "--good", good, "--bad", str(tmp_path / "no.jsonl"), "--out", model])
    assert ran.exit_code == 2
