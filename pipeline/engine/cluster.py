"""Tasks on Ray. Documents never go through Ray: a task is a small value, its result a smaller one, the rest is files.

`address`: `local` starts an embedded Ray that ends with this process; `cluster` joins the one that RAY_ADDRESS
names (set inside a Ray job); `host:port` joins that one. Ray is imported and started when the first task is
submitted, so that a build that finds everything done never pays for it.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from pipeline.engine.executor import Failed, Finished, Happening, Yielded
from stages.contract.problem import Problem, RunError
from stages.storage.cache import release

#: Ray refuses less. Results are a few kilobytes, so more is never needed.
OBJECT_STORE_BYTES = 80 << 20

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


class OnRay:
    """Runs tasks as Ray tasks, one CPU each; notices dead workers; never lets Ray retry on its own."""

    def __init__(self, address: str = "local", workers: int | None = None, dashboard: bool = False) -> None:
        self._address = address
        self._workers = workers
        self._dashboard = dashboard
        self._remote: Any = None
        self._running: dict[Any, tuple[Any, float]] = {}
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
        if self._address != "local":
            cpus = int(ray.cluster_resources().get("CPU", 1))
            self.slots = 2 * (self._workers or cpus)
        self._remote = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_run)

    def submit(self, task: Any) -> None:
        """Sends a task; starts Ray if this is the first."""
        if self._remote is None:
            self._start()
        self._running[self._remote.options(name=task.name).remote(task)] = task, time.monotonic()

    def running(self) -> int:
        """Tasks sent and not finished."""
        return len(self._running)

    def next(self, timeout: float) -> Happening | None:
        """The next happening within `timeout` seconds."""
        if not self._running:
            return None
        import ray

        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        if not ready:
            return None
        stream: Any = ready[0]
        task, started = self._running[stream]
        try:
            return Yielded(task, ray.get(next(stream)))
        except StopIteration:
            del self._running[stream]
            return Finished(task, time.monotonic() - started)
        except ray.exceptions.RayTaskError as error:
            del self._running[stream]
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Failed(task, cause, f"{type(cause).__name__}: {cause}")
        except ray.exceptions.RayError as error:
            del self._running[stream]
            return Failed(task, None, _first_line(error))

    def close(self) -> None:
        """Ends running tasks and an embedded Ray."""
        if self._remote is None:
            return
        import ray

        for stream in self._running:
            ray.cancel(stream, force=True)
        self._running.clear()
        ray.shutdown()
        self._remote = None


def _run(task: Any) -> Any:
    try:
        yield from task.run()
    finally:
        release()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
