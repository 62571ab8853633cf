"""Tasks on Ray. Documents never go through Ray: a task is a small value, its result a smaller one, the rest is files.

`address`: `local` starts an embedded Ray that ends with this process; `cluster` joins the one that RAY_ADDRESS
names (set inside a Ray job); `host:port` joins that one. Ray is imported and started when the first task is
submitted, so that a build that finds everything done never pays for it.

No wait is without a limit. A task says when it begins, and is ended when it then says nothing for much longer than
others of its kind and size took; what follows is what follows the death of a worker.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Any

from pipeline.engine.executor import Failed, Finished, Happening, Needs, Yielded, return_memory
from pipeline.engine.head import Head
from stages.contract.problem import Problem, RunError
from stages.storage.cache import release

#: Ray refuses less. Results are a few kilobytes, so more is never needed.
OBJECT_STORE_BYTES = 80 << 20

#: Silence that is allowed: so many times what tasks of this kind took, by size; never less than `LEAST` seconds, and
#: `UNMEASURED` until one has finished.
PATIENCE = 20.0
LEAST = 600.0
UNMEASURED = 7200.0

#: Seconds between looks at the size of the cluster and at tasks that hang, and for nodes that have nothing running.
LOOK = 5.0
#: A cluster that runs none of our tasks for so long is not coming back (autoscaling has had its time).
IDLE = 1800.0

#: Set for an embedded Ray, unless the user has set them.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Began:
    """The first word of a task: it runs, on this node."""

    node: str


@dataclass
class _Running:
    task: Any
    sent: float
    heard: float | None = None  # when it said something last; None: it waits for a CPU
    node: str = ""
    overdue: str = ""  # why it was ended


class OnRay:
    """Runs tasks as Ray tasks; notices dead workers, lost nodes and tasks that hang; never lets Ray retry on its own."""

    def __init__(self, address: str = "local", workers: int | None = None, dashboard: bool = False) -> None:
        self._address = address
        self._workers = workers
        self._dashboard = dashboard
        self._remote: Any = None
        self._head: Head | None = None
        self._callers: dict[tuple[str, float, float, int], Any] = {}
        self._running: dict[Any, _Running] = {}
        self._ready: deque[Any] = deque()  # of those that have something to say; asking after all of them takes a while
        self._shared: tuple[Any, Any] = (None, None)  # what tasks have in common, and where Ray has it
        self._seconds: dict[str, float] = defaultdict(float)  # by kind of task
        self._amounts: dict[str, float] = defaultdict(float)
        self._looked = self._alive = time.monotonic()
        self._largest = 0  # memory of the largest node
        count = workers or os.cpu_count() or 1
        self.slots = 2 * count
        self.workers = f"{count} workers" if address == "local" else f"Ray at {address}"

    def _start(self) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        import ray

        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "namespace": "gristmill",
        }
        if self._address == "local":
            options |= {
                "address": "local",
                "num_cpus": self._workers or os.cpu_count() or 1,
                "num_gpus": 0,
                "include_dashboard": self._dashboard,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        else:
            options["address"] = "auto" if self._address == "cluster" else self._address
        try:
            ray.init(**options)
        except Exception as error:
            raise RunError(
                Problem(
                    "R006",
                    f"Ray at {self._address} did not start: {type(error).__name__}: {error}",
                    repairs=(
                        "run with --inline to use no Ray",
                        "check run.address and that the cluster is up",
                    ),
                )
            ) from error
        self._remote = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_run)
        local = str(ray._private.worker._global_node.raylet_socket_name)  # type: ignore[attr-defined]
        self._head = Head(ray.get_runtime_context().gcs_address, local, spoken_for=self._address != "local")
        self._looked = time.monotonic()
        self._measure()

    @property
    def _joined(self) -> Head:
        assert self._head is not None
        return self._head

    def _measure(self) -> None:
        """Notes how large the cluster is now; nodes come and go."""
        if self._address == "local":
            return
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.slots = 2 * max(1, self._workers or cpus)
        self._largest = max((int(n["Resources"].get("memory", 0)) for n in ray.nodes() if n["Alive"]), default=0)

    def submit(self, task: Any) -> None:
        """Sends a task; starts Ray if this is the first."""
        if self._remote is None:
            self._start()
        self._joined.check_line()
        needs: Needs = getattr(task, "needs", Needs())
        # An embedded Ray has the workers that the user asked for, whatever they need.
        memory = min(needs.memory, int(0.9 * self._largest)) if self._largest else 0
        sent, common = self._split(task)
        stream = self._caller(_kind(task).strip(), needs.cpus, needs.gpus, memory)(sent, common)
        self._running[stream] = _Running(task, time.monotonic())

    def _caller(self, name: str, cpus: float, gpus: float, memory: int) -> Any:
        """What sends a task of such needs. Ray takes longer to check the needs of a task than to send it."""
        key = name, cpus, gpus, memory
        if key not in self._callers:
            options: dict[str, Any] = {"name": name, "num_cpus": cpus}
            options |= {"num_gpus": gpus} if gpus else {}
            options |= {"memory": memory} if memory else {}
            self._callers[key] = self._remote.options(**options).remote
        return self._callers[key]

    def _split(self, task: Any) -> tuple[Any, list[Any]]:
        """The task without what it has in common with others, and where Ray has that; it is put there once."""
        common = getattr(task, "common", None)
        if common is None:
            return task, []
        if self._shared[0] is not common:
            import ray

            self._shared = common, ray.put(common)
        return replace(task, common=None), [self._shared[1]]

    def running(self) -> int:
        """Tasks sent and not finished."""
        return len(self._running)

    def next(self, timeout: float) -> Happening | None:
        """The next happening within `timeout` seconds."""
        if not self._running:
            return None
        import ray

        self._joined.check_line()
        if time.monotonic() - self._looked > LOOK:
            self._look()
        if not self._ready:
            streams = list(self._running)
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0)
            if not ready:
                ready, _ = ray.wait(streams, num_returns=1, timeout=timeout)
            self._ready.extend(ready)
        return self._hear(self._ready.popleft()) if self._ready else None

    def _hear(self, stream: Any) -> Happening | None:
        import ray

        one = self._running[stream]
        try:
            result = ray.get(next(stream), timeout=LEAST)
        except StopIteration:
            del self._running[stream]
            return self._finished(one)
        except ray.exceptions.RayTaskError as error:
            del self._running[stream]
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Failed(one.task, cause, f"{type(cause).__name__}: {cause}")
        except ray.exceptions.RayError as error:
            del self._running[stream]
            return Failed(one.task, None, one.overdue or _first_line(error), lost=not one.overdue and self._lost(one, error))
        now = time.monotonic()
        seconds = now - (one.heard or now)
        self._alive = one.heard = now
        if isinstance(result, Began):
            one.node = result.node
            return None
        return Yielded(one.task, result, seconds)

    def _finished(self, one: _Running) -> Finished:
        seconds = time.monotonic() - one.sent
        kind = _kind(one.task)
        self._seconds[kind] += seconds
        self._amounts[kind] += _amount(one.task)
        return Finished(one.task, seconds)

    def _lost(self, one: _Running, error: BaseException) -> bool:
        """Whether it was not the worker alone that died, but its node."""
        import ray

        if isinstance(error, ray.exceptions.NodeDiedError):
            return True
        return any(node["NodeID"] == one.node and not node["Alive"] for node in ray.nodes())

    def _look(self) -> None:
        """Looks at the cluster, and ends tasks that have been silent for too long."""
        import ray

        self._looked = now = time.monotonic()
        if not self._joined.answers():
            return
        self._measure()
        for stream, one in self._running.items():
            if one.heard is None or one.overdue:
                continue
            allowed = self.allowed(one.task)
            if now - one.heard > allowed:
                one.overdue = f"it said nothing for {now - one.heard:,.0f} s; {allowed:,.0f} s are allowed"
                ray.cancel(stream, force=True)
        waiting = all(one.heard is None for one in self._running.values())
        if self._running and waiting and now - self._alive > IDLE:
            needs = getattr(next(iter(self._running.values())).task, "needs", Needs())
            raise RunError(
                Problem(
                    "R006",
                    f"the cluster has not begun any of {len(self._running)} tasks for {IDLE:g} s",
                    repairs=(f"it must have a node with {needs.cpus:g} CPUs, {needs.gpus:g} GPUs, {needs.memory >> 20} MiB free",),
                )
            )

    def allowed(self, task: Any) -> float:
        """Seconds of silence after which a task is taken to hang, by the rate of those of its kind that have finished."""
        kind = _kind(task)
        if not self._amounts[kind]:
            return max(LEAST, UNMEASURED)
        return max(LEAST, PATIENCE * self._seconds[kind] / self._amounts[kind] * _amount(task))

    def close(self) -> None:
        """Ends running tasks and an embedded Ray."""
        if self._remote is None:
            return
        import ray

        self._joined.leave()
        if not self._joined.gone:
            for stream in self._running:
                ray.cancel(stream, force=True)
            ray.shutdown()
        self._running.clear()
        self._ready.clear()
        self._shared = (None, None)
        self._remote = None


def _kind(task: Any) -> str:
    """Tasks of one kind are comparable: the same class, and of a superstep the same step."""
    step = getattr(getattr(task, "common", None), "step", None)
    return f"{type(task).__name__} {step.name if step is not None else ''}"


def _amount(task: Any) -> float:
    return max(1.0, float(getattr(task, "bytes", 1)))


_common: tuple[str, Any] = ("", None)  # of this worker: the last that a task had


def _run(task: Any, common: list[Any]) -> Any:
    """In a worker: first a word that it runs, then what the task yields."""
    import ray

    return_memory()
    yield Began(ray.get_runtime_context().get_node_id())
    if common:
        global _common
        if _common[0] != common[0].hex():
            _common = common[0].hex(), ray.get(common[0], timeout=LEAST)
        task = replace(task, common=_common[1])
    try:
        yield from task.run()
    finally:
        release()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
