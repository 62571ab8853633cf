"""Ranks over several nodes: one is lost, and the run goes on with fewer ranks and the same batches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import corpus, lines, overrides
from trainer.gang import Ended, Gang, allowed

STEPS = 24
SETS = overrides(
    STEPS,
    "batch.micro_batch_size=1",
    "checkpoint.save_every_steps=4",
    "checkpoint.keep_last=100",
    "monitoring.eval_every_steps=100",
    "monitoring.log_every_steps=100",
    "checkpoint.keep_best=false",
)


def test_groups_that_hold_a_copy_of_the_model_stay_whole() -> None:
    assert allowed([12], 7, least=2) == 6
    assert allowed([8], 7, least=2) == 4
    assert allowed([8], 1, least=4) == 4


@pytest.mark.parametrize(("rows", "most", "expected"), [([8], 4, 4), ([8], 3, 2), ([12, 8], 4, 4), ([12, 8], 3, 2), ([7], 3, 1), ([8], 0, 1)])
def test_allowed_numbers_of_ranks(rows: list[int], most: int, expected: int) -> None:
    assert allowed(rows, most) == expected


def test_how_a_gang_ended() -> None:
    judge = Gang._judge
    assert judge(None, [0, 0]) == Ended(0)  # type: ignore[arg-type]
    assert judge(None, [0, 75]).code == 75  # type: ignore[arg-type]
    assert judge(None, [1, 2]).code == 2  # type: ignore[arg-type]
    assert judge(None, [1, -9]).code is None  # type: ignore[arg-type]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Four nodes of one CPU each, and a head without."""
    for name, value in {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    try:
        for _ in range(4):
            made.add_node(num_cpus=1, **store)
        yield made
    finally:
        made.shutdown()


@pytest.mark.ray
@pytest.mark.long
def test_four_ranks_lose_a_node_and_go_on_as_two(nodes: Any, tmp_path: Path) -> None:
    manifest = corpus(tmp_path / "corpus")
    pairs = [part for text in SETS for part in ("--set", text)]
    fit = ["fit", "--manifest", str(manifest), *pairs]
    whole = subprocess.run(
        [sys.executable, "-m", "trainer.cli", *fit, "--out", str(tmp_path / "whole"), "--ranks", "1"], capture_output=True, text=True, check=False
    )
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "run"
    gang = subprocess.Popen(
        [sys.executable, "-m", "trainer.gang", "--ranks", "4", "--out", str(out), "--rows", "[8]", "--patience", "3",
         "--", *fit, "--out", str(out)],
        env=os.environ | {"RAY_ADDRESS": nodes.address}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 240
    while not list((out / "checkpoints").glob("step-*8")):
        assert gang.poll() is None, gang.stderr.read() if gang.stderr else ""
        assert time.monotonic() < until
        time.sleep(0.1)
    nodes.remove_node(nodes.worker_nodes[0] if isinstance(nodes.worker_nodes, list) else next(iter(nodes.worker_nodes)), allow_graceful=False)
    _, said = gang.communicate(timeout=300)
    assert gang.returncode == 0, said
    assert "2 of 4 ranks" in said
    assert [r["digest"] for r in lines(out)] == [r["digest"] for r in lines(tmp_path / "whole")]
    for a, b in zip(lines(out), lines(tmp_path / "whole"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
