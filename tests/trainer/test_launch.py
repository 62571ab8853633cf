from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from stages.contract.problem import RunError
from trainer.launch import lock


def script(tmp_path, body: str, name: str = "script.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(body))
    return [sys.executable, str(path)]


def watchman(tmp_path, rank_body: str, ranks: int = 2) -> subprocess.Popen:
    """A process that runs `rank_body` as ranks, prints the exit code or the error, and can be signalled."""
    command = script(tmp_path, rank_body, "rank.py")
    body = f"""
        import os, sys
        from pathlib import Path
        from stages.contract.problem import RunError
        from trainer.launch import lock, run_ranks
        held = lock(Path({str(tmp_path / "run")!r}))
        try:
            print("code", run_ranks({command!r}, {ranks}, held))
        except RunError as error:
            print(error)
    """
    return subprocess.Popen(script(tmp_path, body), stdout=subprocess.PIPE, text=True)


def test_ranks_know_their_place_and_share_a_meeting_point(tmp_path):
    body = f"""
        import os, sys
        place = [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] + sys.argv[1:]
        open({str(tmp_path)!r} + "/seen-" + os.environ["RANK"], "w").write(" ".join(place))
    """
    out, _ = watchman(tmp_path, body).communicate(timeout=30)
    assert out.strip() == "code 0"
    seen = [(tmp_path / f"seen-{r}").read_text().split() for r in (0, 1)]
    assert [line[:4] for line in seen] == [["0", "2", "0", "--rendezvous"], ["1", "2", "1", "--rendezvous"]]
    assert seen[0][4] == seen[1][4]


def test_a_rank_that_is_killed_ends_the_others_and_is_named(tmp_path):
    body = """
        import os, signal, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """
    began = time.monotonic()
    out, _ = watchman(tmp_path, body).communicate(timeout=30)
    assert "rank 1 of 2 was ended by SIGKILL" in out
    assert "run the command again" in out
    assert time.monotonic() - began < 15


def test_an_exit_code_of_a_rank_is_the_exit_code_of_all(tmp_path):
    out, _ = watchman(
        tmp_path, "import os, sys; sys.exit(2 if os.environ['RANK'] == '0' else 0)"
    ).communicate()
    assert out.strip() == "code 2"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals_reach_every_rank(tmp_path, number, code):
    body = f"""
        import os, sys, time
        from trainer.launch import Stop
        stop = Stop().listen()
        open({str(tmp_path)!r} + "/ready-" + os.environ["RANK"], "w").close()
        while not stop.code:
            time.sleep(0.01)
        sys.exit(stop.code)
    """
    process = watchman(tmp_path, body)
    _wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert out.strip() == f"code {code}"


def test_a_second_signal_stops_now(tmp_path):
    body = f"""
        import time
        from trainer.launch import Stop
        stop = Stop().listen()
        open({str(tmp_path / "ready")!r}, "w").close()
        while True:
            time.sleep(0.01)
            if stop.code:
                open({str(tmp_path / "heard")!r}, "w").close()
    """
    process = subprocess.Popen(script(tmp_path, body))
    _wait_for((tmp_path / "ready").exists)
    process.send_signal(signal.SIGINT)
    _wait_for((tmp_path / "heard").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130


def test_ranks_end_and_the_lock_opens_when_the_watchman_is_killed(tmp_path):
    body = f"""
        import os, time
        from trainer.launch import watch_parent
        watch_parent()
        open({str(tmp_path)!r} + "/ready-" + os.environ["RANK"], "w").write(str(os.getpid()))
        time.sleep(60)
    """
    process = watchman(tmp_path, body)
    _wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    with pytest.raises(RunError, match=f"in use by process {process.pid} on"):
        lock(tmp_path / "run", patience=0.0)
    process.kill()
    process.communicate()
    os.close(lock(tmp_path / "run", patience=10.0))


def test_a_lock_of_a_process_that_ended_is_free(tmp_path):
    held = lock(tmp_path)
    with pytest.raises(RunError, match=f"process {os.getpid()}"):
        lock(tmp_path, patience=0.0)
    os.close(held)
    os.close(lock(tmp_path, patience=0.0))


def _wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.05)
