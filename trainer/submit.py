"""`trainer submit`: a training run as a job on a Ray cluster.

The job gets the program and the plan as one file; corpora and the run folder stay where they are. Its lines are shown
as they come; `pipeline jobs` shows, follows and stops it like any other job.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages.contract.problem import Problem, RunError, SpecError
from stages.contract.scalars import FilePath
from stages.contract.tree import Text, leaves
from stages.jobs.bundle import code_package, pack
from stages.jobs.client import Client, job_address
from stages.jobs.config import one_file
from trainer.config import read_plan

if TYPE_CHECKING:
    from trainer.command import Output
    from trainer.planned import Plan

PLAN = "plan.yaml"
INTERRUPTED = 130


def submit(
    output: Output,
    solved: Plan,
    plan_path: Path | None,
    manifests: Sequence[Any],
    overrides: Sequence[str],
    address: str | None,
    ranks: int,
    *,
    gpus: bool,
    out: Path,
    patience: float,
    no_wait: bool,
    installed: bool,
) -> int:
    """Sends a run to a cluster and, unless told otherwise, watches it. The exit code is that of the run."""
    rows, least = [phase.batch for phase in solved.phases], solved.tensor_parallel * solved.pipeline_parallel
    if any(count % (ranks // least) for count in rows):
        raise SpecError(
            Problem("P003", f"{ranks} ranks do not divide the {', '.join(map(str, rows))} rows of a step evenly",
                    repairs=(f"take {_near(rows, ranks, least)} ranks",))
        )  # fmt: skip
    client = Client(job_address(address))
    loaded = read_plan(plan_path, overrides)
    values = {}
    for path, value in leaves(loaded.tree):
        if isinstance(value, Text) and path[-1] == "tombstones":
            values[path] = str(FilePath.at(str(value), value.folder))
    own, code = pack({PLAN: one_file(loaded.tree, values)}), code_package()
    for package in (own,) if installed else (code, own):
        there = client.has(package)
        output.say(f"{len(package.content) / 1024:,.1f} KiB in {len(package.files)} files{', there already' if there else ''}")
        if not there:
            client.send(package)
    where = [str(m) if "://" in str(m) else os.path.abspath(m) for m in manifests]
    folder = os.path.abspath(out)
    fit = ["fit", PLAN, *(part for m in where for part in ("--manifest", m)), "--out", folder]
    command = ["python", "-m", "trainer.gang", "--ranks", str(ranks), "--out", folder, "--rows", json.dumps(rows)]
    command += ["--least", str(least), "--patience", str(patience), "--program", code.name, *(["--gpus"] if gpus else []), "--", *fit]
    job = client.submit(
        f"train-{secrets.token_hex(4)}",
        shlex.join(command),
        {"working_dir": own.uri, **({} if installed else {"py_modules": [code.uri]})},
        {"kind": "trainer", "out": folder},
    )
    follow = ["pipeline", "jobs", "logs", job, "--address", client.address]
    if no_wait:
        click.echo(f"job {job}")
        output.next(follow)
        return 0
    output.say(f"job {job}   follow it from anywhere: {shlex.join(follow)}")
    return _watch(output, client, job)


def _watch(output: Output, client: Client, job: str) -> int:
    """Shows the lines of a job until it ends: its exit code. Ctrl-C leaves it running."""
    try:
        for line in client.follow(job):
            click.echo(line, err=not line.startswith("{"))
    except KeyboardInterrupt:
        output.say(f"the job goes on. stop it with: pipeline jobs stop {job} --address {client.address}")
        return INTERRUPTED
    ended = client.job(job)
    if ended.status == "FAILED" and ended.code is None:
        raise RunError(Problem("R010", f"job {job} failed: {ended.message}"))
    return {"SUCCEEDED": 0, "STOPPED": INTERRUPTED}.get(ended.status, ended.code or 1)


def _near(rows: Sequence[int], ranks: int, least: int) -> int:
    from trainer.gang import allowed

    return allowed(rows, ranks, least)
