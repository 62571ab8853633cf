"""What is asked again, what is not, and that nothing waits for ever."""

from __future__ import annotations

import errno

import pytest

from stages.contract.problem import RunError
from stages.storage import patience
from stages.storage.patience import passing, patiently, without_secrets


class ReadTimeoutError(Exception):
    """As a library below fsspec would call it."""


class ClientError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def wrapped(status: int) -> OSError:
    error = OSError(errno.EIO, "as fsspec wraps it")
    error.__cause__ = ClientError(status)
    return error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ClientError(503), True), (ClientError(429), True), (ClientError(500), True), (ClientError(404), False),
        (wrapped(503), True), (wrapped(400), False), (ConnectionResetError(), True), (TimeoutError(), True),
        (ReadTimeoutError(), True), (FileNotFoundError(), False), (PermissionError(), False), (ValueError(), False),
        (OSError(errno.ENOSPC, "full"), False),
    ],
)  # fmt: skip
def test_what_may_be_over_in_a_moment(error: Exception, again: bool) -> None:
    assert passing(error) is again


def test_asked_again_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", pauses.append)
    answers = iter([ConnectionResetError(), ClientError(503), ClientError(503), "here"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask, "s3://b/a") == "here"
    assert pauses == [0.25, 0.5, 1.0]


def test_given_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience.time, "sleep", lambda _seconds: None)

    def ask() -> None:
        raise ClientError(503)

    with pytest.raises(RunError, match="s3://b/a: the store gave no answer for 0 s: status 503"):
        patiently(ask, "s3://b/a", limit=0)


def test_an_error_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-0123456789")
    assert without_secrets("signed with planted-0123456789") == "signed with ***"
