"""Requests to a store: tried again while the store is busy or away, given up after a limit.

What is tried again: throttling (429, "slow down"), 5xx, connections that break or time out. What is not: files that
are not there, rights, names, a full disk. Pauses double from a quarter of a second to fifteen.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from typing import TypeVar

from stages.contract.problem import Problem, RunError
from stages.contract.scalars import secret_name
from stages.storage.access import known_secrets

#: Seconds after which a store that does not answer is an error: longer than the outages that stores have every day.
LIMIT = 300.0
_FIRST, _MOST = 0.25, 15.0

_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_FINAL_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG}
#: Libraries below fsspec raise their own kinds; these words in the name of a class mean "the line broke".
_BROKEN = ("Connection", "Connector", "Timeout", "HTTPClient", "Payload", "Disconnected", "IncompleteRead", "SSL")

T = TypeVar("T")


def patiently(ask: Callable[[], T], what: str, limit: float = LIMIT) -> T:
    """What `ask` returns. RunError, naming `what`, when the store gave no answer within `limit` seconds."""
    began, pause = time.monotonic(), _FIRST
    while True:
        try:
            return ask()
        except Exception as error:
            if not passing(error):
                raise
            if time.monotonic() - began + pause > limit:
                text = f"{what}: the store gave no answer for {limit:g} s: {without_secrets(str(error))}"
                raise RunError(Problem("R011", text, repairs=("run again: what is done stays",))) from error
        time.sleep(pause)
        pause = min(2 * pause, _MOST)


def passing(error: BaseException) -> bool:
    """Whether an error is one of a busy or absent store, which may well be over in a moment."""
    if isinstance(error, _FINAL):
        return False
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status == 429 or status >= 500
    if isinstance(error, OSError):
        return error.errno not in _FINAL_NUMBERS and not _denied(error)
    if isinstance(error, asyncio.TimeoutError):
        return True
    return any(word in type(error).__name__ for word in _BROKEN)


def _denied(error: OSError) -> bool:
    """Whether an OSError without a kind of its own wraps an answer that will not change (4xx)."""
    cause = error.__cause__
    response = getattr(cause, "response", None)
    if not isinstance(response, dict):
        return False
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 400 <= status < 500 and status not in (408, 429)


def without_secrets(text: str) -> str:
    """The text with the secrets of this process's environment, and of the options of its sources, as stars."""
    told = (value for name, value in os.environ.items() if secret_name(name))
    for value in (*told, *known_secrets()):
        if len(value) >= 8:
            text = text.replace(value, "***")
    return text
