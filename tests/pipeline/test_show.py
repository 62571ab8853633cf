"""What a person sees while a build runs, where there is no terminal."""

from __future__ import annotations

import io
import re
import threading

import pytest

from pipeline import show
from pipeline.events import PassStarted, TaskDone


class Log(io.StringIO):
    """A log file that tells when a line with `awaited` in it was written."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.awaited = awaited
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.awaited in text:
            self.seen.set()
        return written


def test_a_long_pass_says_every_while_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "HEARTBEAT_SECONDS", 0.01)
    log = Log("driver")
    display = show.Display(log, live=False)
    try:
        display(PassStarted("minhash-dedup: band keys", 8, 2, False))
        display(TaskDone("minhash-dedup: band keys", "web: a.jsonl", 0.0, 500, 2_000_000))
        assert log.seen.wait(20), "no line came from a pass that runs"
    finally:
        display.close()
    line = next(line for line in log.getvalue().splitlines() if "driver" in line)
    assert line.lstrip().startswith("minhash-dedup: band keys: 3/8 tasks after ")
    assert re.search(r"about [\d.]+ s left", line)
    assert re.search(r"documents/s .*MiB/s, driver [\d.]+ (MiB|GiB)", line)
    assert line.endswith("last: web: a.jsonl")


def test_a_pass_whose_first_task_has_not_ended_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "HEARTBEAT_SECONDS", 0.01)
    log = Log("0/1 tasks after")
    display = show.Display(log, live=False)
    try:
        display(PassStarted("tokenizer: learning merges", 1, 0, True))
        assert log.seen.wait(20)
    finally:
        display.close()
    assert "tokenizer: learning merges: 0/1 tasks after" in log.getvalue()


def test_the_beat_is_every_thirty_seconds() -> None:
    assert show.HEARTBEAT_SECONDS <= 30
