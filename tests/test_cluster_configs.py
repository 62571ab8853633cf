"""The files in configs/cluster: they parse, name commands that exist, and agree with the versions that are pinned."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from pipeline.cli import main
from pipeline.corpus import load_corpus

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "configs" / "cluster"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def test_the_ray_job_runs_a_command_that_exists() -> None:
    job = next(one for one in documents("rayjob.yaml") if one["kind"] == "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "pipeline.cli"]
    command = main.get_command(click.Context(main), words[3])
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_the_ray_job_has_the_pinned_ray_and_places_for_its_volumes() -> None:
    spec = next(one for one in documents("rayjob.yaml") if one["kind"] == "RayJob")["spec"]["rayClusterSpec"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert spec["rayVersion"] == pins["ray"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        inside = group["template"]["spec"]
        named = {volume["name"] for volume in inside["volumes"]}
        for container in inside["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= named


def test_the_corpus_of_the_ray_job_loads(tmp_path: Path) -> None:
    text = next(one for one in documents("rayjob.yaml") if one["kind"] == "ConfigMap")["data"]["corpus.yaml"]
    (tmp_path / "corpus.yaml").write_text(text, encoding="utf-8")
    assert str(load_corpus(tmp_path / "corpus.yaml").output.path).startswith("s3://")


def test_the_cluster_of_machines_is_complete() -> None:
    found = documents("ray-up.yaml")[0]
    assert {"cluster_name", "provider", "auth", "head_start_ray_commands", "worker_start_ray_commands"} <= set(found)
    assert found["max_workers"] == len(found["provider"]["worker_ips"])
