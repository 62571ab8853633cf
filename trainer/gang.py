"""Ranks over the nodes of a Ray cluster: placed together, watched, started again when one is lost.

What a job of `trainer submit` runs:

    python -m trainer.gang --ranks 4 --out RUN -- fit plan.yaml --manifest M …

Each rank is a process `trainer fit` with the environment that torchrun would give it, on a node that a placement group
has chosen. When a rank or its node is lost, the others are ended and all begin again from the last checkpoint: with as
many ranks if the cluster gives them within a while, else with the largest smaller number that divides the rows of every
step. The batches do not depend on it. The run folder must be one that every node sees.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.contract.problem import Problem, RunError
from trainer.launch import INTERRUPTED, PREEMPTED

#: Seconds: for a placement, for a rank to say where it is, between looks at the ranks, and from one end to that of all.
PLACE = 60.0
ANSWER = 120.0
LOOK = 1.0
GRACE = 5.0
#: Starts without a step of progress in between, after which the run is given up.
TRIES = 3


@dataclass(frozen=True)
class Ended:
    """How a gang came to its end: an exit code, or the loss of a rank (`code` is None)."""

    code: int | None
    detail: str = ""


def allowed(rows: Sequence[int], most: int, least: int = 1) -> int:
    """The largest number of ranks up to `most` whose groups of `least`, each with a copy of the model, divide the rows of a
    step of every phase; one group always does."""
    return least * max(n for n in range(1, max(most // least, 1) + 1) if all(count % n == 0 for count in rows))


class Rank:
    """Lives on the node of one rank and holds its process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> tuple[str, str, int]:
        """`(node, its address, a free port there)`."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port

    def start(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Starts the process; it dies with this actor."""
        command = [sys.executable, "-m", "trainer.cli", *arguments]
        self._process = subprocess.Popen(command, env=os.environ | environment, preexec_fn=_die_with_parent)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Hands a signal on."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Gang:
    """Some ranks of one run."""

    def __init__(self, ranks: int, gpus: bool) -> None:
        import ray
        from ray.util.placement_group import placement_group

        bundle = {"GPU": 1, "CPU": 1} if gpus else {"CPU": 1}
        self.ranks = ranks
        self._group = placement_group([bundle] * ranks, strategy="PACK")
        self._actors: list[Any] = []
        if not self._group.wait(PLACE):
            self.close()
            raise TimeoutError(f"the cluster has no room for {ranks} ranks of {bundle}")
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(Rank)
        for number in range(ranks):
            where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            self._actors.append(remote.options(scheduling_strategy=where).remote())

    def start(self, arguments: list[str]) -> None:
        """Starts the process of every rank."""
        import ray

        places = ray.get([actor.place.remote() for actor in self._actors], timeout=ANSWER)
        nodes = [node for node, _, _ in places]
        alone = len({address for _, address, _ in places}) == 1
        for rank, (node, _, _) in enumerate(places):
            names = {
                "RANK": rank,
                "WORLD_SIZE": self.ranks,
                "LOCAL_RANK": nodes[:rank].count(node),
                "LOCAL_WORLD_SIZE": nodes.count(node),
                "MASTER_ADDR": "127.0.0.1" if alone else places[0][1],
                "MASTER_PORT": places[0][2],
            }
            environment = {name: str(value) for name, value in names.items()}
            if alone and sys.platform == "linux":
                environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
            ray.get(self._actors[rank].start.remote(arguments, environment), timeout=ANSWER)

    def watch(self, stop: list[int]) -> Ended:
        """Waits for the end of all; a signal number in `stop` is handed to every rank, once."""
        import ray

        told, first, deadline = 0, None, float("inf")
        while True:
            try:
                codes = ray.get([actor.poll.remote() for actor in self._actors], timeout=ANSWER)
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
                return Ended(None, f"a rank is gone: {type(error).__name__}")
            if None not in codes:
                break
            bad = [code for code in codes if code not in (None, 0, PREEMPTED, INTERRUPTED)]
            if bad and first is None:
                first, deadline = bad[0], time.monotonic() + GRACE
            if time.monotonic() > deadline:
                break
            if stop and told < len(stop):
                for actor in self._actors:
                    actor.signal.remote(stop[told])
                told += 1
            time.sleep(LOOK)
        return self._judge([code for code in codes if code is not None])

    def _judge(self, codes: list[int]) -> Ended:
        """A rank ended by a signal is a loss; one that says what is wrong ends the run; the others only echo it."""
        killed = [code for code in codes if code < 0]
        if killed:
            return Ended(None, f"a rank was ended by {signal.Signals(-killed[0]).name}")
        wrong = [code for code in codes if code not in (0, PREEMPTED, INTERRUPTED)]
        return Ended(max(wrong) if wrong else max(codes, default=1))

    def close(self) -> None:
        """Ends all ranks and gives the place back."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)


def run(
    ranks: int, out: Path, arguments: list[str], rows: Sequence[int], gpus: bool, patience: float, least: int = 1
) -> int:
    """Trains to the end, over as many losses as there are steps of progress between them: the exit code."""
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _frame: stop.append(n))
    size, tries = ranks, TRIES
    while True:
        before = _progress(out)
        ended = _attempt(size, arguments, gpus, stop)
        if ended.code is not None:
            return ended.code
        if stop:
            return PREEMPTED
        tries = TRIES if _progress(out) > before else tries - 1
        if not tries:
            message = f"{TRIES} starts in a row came to no checkpoint; the last one: {ended.detail}"
            raise RunError(Problem("T004", message, repairs=("run it again: it goes on from the last checkpoint",)))
        _say(f"{ended.detail}; beginning again from the last checkpoint")
        size = _room(ranks, rows, gpus, patience, least)
        _say(f"{size} of {ranks} ranks")


def _attempt(size: int, arguments: list[str], gpus: bool, stop: list[int]) -> Ended:
    import ray

    try:
        gang = Gang(size, gpus)
    except TimeoutError as error:
        return Ended(None, str(error))
    try:
        gang.start(arguments)
        return gang.watch(stop)
    except ray.exceptions.RayError as error:
        return Ended(None, f"a rank is gone: {type(error).__name__}")
    finally:
        gang.close()


def _room(ranks: int, rows: Sequence[int], gpus: bool, patience: float, least: int) -> int:
    """How many ranks to go on with: all, if there is room within `patience` seconds, else the largest allowed number."""
    import ray

    kind, until = "GPU" if gpus else "CPU", time.monotonic() + patience
    while True:
        room = int(ray.cluster_resources().get(kind, 0))
        if room >= ranks or (time.monotonic() > until and room >= least):
            return allowed(rows, min(room, ranks), least)
        time.sleep(LOOK)


def _progress(out: Path) -> int:
    """The newest checkpoint's step, or -1."""
    steps = [int(path.name[5:]) for path in (out / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    return max(steps, default=-1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """The job: the exit code of the run."""
    parser = argparse.ArgumentParser(prog="trainer.gang")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=json.loads, required=True, help="rows of a step of each phase, a JSON list")
    parser.add_argument("--least", type=int, default=1, help="ranks that one copy of the model takes")
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    from stages.contract.problem import GristmillError
    from stages.jobs.bundle import check_program

    try:
        check_program(options.program)
        import ray

        ray.init(address="auto", log_to_driver=True, logging_level=logging.ERROR, namespace="gristmill")
        arguments = [word for word in options.arguments if word != "--"]
        return run(options.ranks, options.out, arguments, options.rows, options.gpus, options.patience, options.least)
    except GristmillError as error:
        _say(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
