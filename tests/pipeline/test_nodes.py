"""Several nodes, each a raylet of its own: builds on them, nodes that are lost, tasks that hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine import cluster as on_ray
from pipeline.engine.cluster import OnRay
from pipeline.engine.executor import Needs
from pipeline.events import Event, PassStarted, Quarantined, TaskDone, WorkerDied
from stages.contract.manifest import load_manifest
from tests.pipeline.corpora import document, make_inputs, run_build, snapshot, write_config, write_jsonl

pytestmark = pytest.mark.ray

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "memory": 4 << 30}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes of one CPU each."""
    for name, value in {**on_ray.QUIET, "RAY_AUTH_MODE": "disabled", "RAY_health_check_period_ms": "500"}.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


class Losing(list[Event]):
    """Hears the events of a build, and takes a node away in each pass once a task of it is done; another one comes."""

    def __init__(self, nodes: Any) -> None:
        super().__init__()
        self._nodes = nodes
        self._pass = ""

    def append(self, event: Event) -> None:
        super().append(event)
        if isinstance(event, PassStarted) and not event.minor:
            self._pass = event.name
        elif isinstance(event, TaskDone) and event.name == self._pass:
            self._pass = ""
            victim = sorted(self._nodes.worker_nodes, key=id)[0]
            self._nodes.remove_node(victim, allow_graceful=False)
            self._nodes.add_node(**NODE)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("one")
    make_inputs(folder / "in", files=9, documents=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.engine.inputs.TASK_BYTES", 6000)
        run_build(write_config(folder, folder / "in"))
    return folder / "in", snapshot(folder / "out")


@pytest.mark.long
def test_a_node_lost_in_each_pass_changes_nothing(
    nodes: Any, reference: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 6000)
    inputs, expected = reference
    heard = Losing(nodes)
    run_build(write_config(tmp_path, inputs), executor=OnRay(nodes.address), heard=heard)
    assert snapshot(tmp_path / "out") == expected
    passes = [e for e in heard if isinstance(e, PassStarted) and not e.minor and e.tasks]
    assert len(passes) >= 4
    assert any(isinstance(e, WorkerDied) and e.detail == "its node was lost" for e in heard)
    assert not any(isinstance(e, Quarantined) for e in heard)


@pytest.mark.long
def test_the_tokenizer_with_nodes_that_go(
    nodes: Any, reference: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 6000)
    inputs, expected = reference
    config = write_config(tmp_path, inputs)
    run_build(config, executor=OnRay(nodes.address), heard=Losing(nodes), until="tokenizer")
    found = snapshot(tmp_path / "out")
    assert found["tokenizer/tokenizer.json"] == expected["tokenizer/tokenizer.json"]
    run_build(config, executor=OnRay(nodes.address), heard=Losing(nodes))
    assert snapshot(tmp_path / "out") == expected


@pytest.mark.long
def test_a_document_that_never_ends_is_found_and_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time its task takes, against what others of its size took."""
    monkeypatch.setattr(on_ray, "LEAST", 4.0)
    monkeypatch.setattr(on_ray, "UNMEASURED", 30.0)
    monkeypatch.setattr(on_ray, "PATIENCE", 2.0)
    monkeypatch.setattr(on_ray, "LOOK", 0.5)
    monkeypatch.setattr("pipeline.engine.inputs.TASK_BYTES", 4000)
    texts = [document(i) for i in range(40)]
    texts[17] = "HANG " + texts[17]
    write_jsonl(tmp_path / "in" / "web" / "a.jsonl", texts)
    write_jsonl(tmp_path / "in" / "books" / "b.jsonl", [document(900 + i) for i in range(5)])
    config = write_config(tmp_path, tmp_path / "in", "  - normalize\n  - tests.pipeline.poison:Hangs\n")
    heard: list[Event] = []
    result = run_build(config, executor=OnRay(workers=2), heard=heard)
    assert result.exit_code == 3
    deaths = [e for e in heard if isinstance(e, WorkerDied)]
    assert len(deaths) == 3
    assert all("it said nothing for" in e.detail for e in deaths)
    assert [(q.source, q.uri) for q in load_manifest(tmp_path / "out").quarantine] == [("web", "a.jsonl")]


def test_silence_is_measured_by_size() -> None:
    executor = OnRay()
    small, large = Sized(1000), Sized(1_000_000)
    assert executor.allowed(small) == on_ray.UNMEASURED
    executor._finished(on_ray._Running(small, sent=on_ray.time.monotonic() - 2.0))
    assert executor.allowed(small) == on_ray.LEAST
    assert executor.allowed(large) == pytest.approx(20 * 2.0 / 1000 * 1_000_000, rel=0.01)


class Sized:
    """A task of some bytes."""

    def __init__(self, size: int) -> None:
        self.bytes = size


def test_a_pass_asks_for_what_its_stages_need(tmp_path: Path) -> None:
    from pipeline.engine.origin import ReadOrigin
    from pipeline.engine.task import BATCH_COPIES, WORKER_BYTES, PassTask
    from pipeline.engine.uses import StageUse
    from stages.readers import ReadSettings
    from tests.pipeline.poison import Heavy

    plain = PassTask("k", "n", "web", str(tmp_path), ReadOrigin(ReadSettings(source="web"), ()))
    batch = ReadSettings(source="web").batch_bytes
    assert plain.needs == Needs(1.0, 0.0, WORKER_BYTES + BATCH_COPIES * batch)
    heavy = PassTask("k", "n", "web", str(tmp_path), plain.origin, rows=(StageUse("heavy", Heavy()),))
    assert heavy.needs == Needs(2.0, 0.5, plain.needs.memory + (3 << 30))
