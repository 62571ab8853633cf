"""The messages of a wrong corpus.yaml, word by word: tests/golden/config/NAME.yaml gives NAME.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.corpus import load_corpus
from stages.contract.problem import SpecError

FOLDER = Path(__file__).parents[1] / "golden" / "config"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_messages(name, golden, monkeypatch):
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SpecError) as error:
        load_corpus(f"{name}.yaml")
    golden(f"config/{name}.txt", f"{error.value}\n")


def test_no_message_shows_a_secret(monkeypatch):
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SpecError) as error:
        load_corpus("secrets.yaml")
    text = str(error.value) + repr(error.value) + repr(error.value.problems)
    for secret in ("tok_example", "EXAMPLEKEY", "exampleSecret", "0000example", "hunter2", "example5555"):
        assert secret not in text
    assert "num_special_tokens: 5" in text
    assert "use_cls_token: false" in text
