"""What all tests share: the shared data, a clean environment, the golden files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = "GRISTMILL_DATA"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden message files anew")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees settings of the machine it runs on, but for the place of the shared data."""
    for name in list(os.environ):
        if name == "RAY_ADDRESS" or (name.startswith("GRISTMILL_") and name != DATA):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that holds `data/` and `cases/`: skips without GRISTMILL_DATA, fails if that names no such folder."""
    named = os.environ.get(DATA)
    if not named:
        pytest.skip(f"{DATA} is not set")
    folder = Path(named)
    for part in ("data", "cases"):
        if not (folder / part).is_dir():
            pytest.fail(f"{DATA} is {named}, but there is no folder {part} in it")
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares a text with a file below tests/golden; `--update-golden` writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; look at the text and run with --update-golden:\n{text}"
        assert text == path.read_text(encoding="utf-8")

    return compare
