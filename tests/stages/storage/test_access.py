"""Options are found by place, the longest first, and never shown."""

from __future__ import annotations

import pickle

import pytest

from stages.contract.scalars import Secret, StorageOptions
from stages.storage import access
from stages.storage.access import Access, options_of, place_of
from stages.storage.patience import without_secrets


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_allowed", {})
    monkeypatch.setattr(access, "_secrets", set())


def test_the_place_of_a_pattern() -> None:
    assert place_of("s3://b/raw/2024-*/x.jsonl") == "s3://b/raw/"
    assert place_of("s3://b/raw/{a,b}.jsonl") == "s3://b/raw/"
    assert place_of("s3://b/raw/one.jsonl") == "s3://b/raw/one.jsonl"


def test_the_longest_place_decides() -> None:
    Access(("s3://b/",), StorageOptions(anon=True)).allow()
    Access(("s3://b/mine/",), StorageOptions(profile="me")).allow()
    assert options_of("s3://b/x") == {"anon": True}
    assert options_of("s3://b/mine/x") == {"profile": "me"}
    assert options_of("s3://other/x") == {}


def test_local_paths_need_none() -> None:
    assert Access.to(["/data/*.jsonl"], StorageOptions(anon=True)) is None
    assert Access.to(["s3://b/*.jsonl"], StorageOptions()) is None
    assert Access.to(["/data/a", "s3://b/*.jsonl"], StorageOptions(anon=True)) == Access(("s3://b/",), StorageOptions(anon=True))


def test_a_secret_travels_and_is_not_shown() -> None:
    given = Access(("s3://b/",), StorageOptions(secret=Secret("hidden-1"), client_kwargs={"token": Secret("hidden-2")}))
    assert "hidden" not in repr(given)
    pickle.loads(pickle.dumps(given)).allow()
    assert options_of("s3://b/x") == {"secret": "hidden-1", "client_kwargs": {"token": "hidden-2"}}
    assert without_secrets("no entry for hidden-1 or hidden-2") == "no entry for *** or ***"
