"""`pipeline submit`: the same build, run by a job on a cluster; and what one does with jobs afterwards.

The job gets the program, the config as one file (`extends` and `--set` are in it) and the small files that the config
names. Sources, earlier corpora and the output stay where they are: their addresses are made absolute. Credentials never
travel: the job finds them in the environment of its node, as every program there does.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from pipeline.corpus import Corpus, load_corpus
from pipeline.events import event_of
from pipeline.show import Display, size, span, table
from stages.contract.config import FilePath, Secret
from stages.contract.problem import Problem, RunError, SpecError, Where
from stages.contract.tree import Table, Text, path_text, place, value_at
from stages.jobs.bundle import Package, code_package, module_files, pack
from stages.jobs.client import Client, Job, job_address
from stages.jobs.config import one_file

if TYPE_CHECKING:
    from pipeline.command import Output

CONFIG = "corpus.yaml"
INTERRUPTED = 130
SAID_LAST = 20  # lines of a job that failed without a word for people


@dataclass(frozen=True)
class Bundle:
    """A corpus ready to be sent. `local` are the addresses on disks, which every node has to see."""

    corpus: Corpus
    code: Package
    own: Package
    local: tuple[str, ...]


@dataclass
class Heard:
    """What a job has said: its problems, its result, the last lines that were neither."""

    problems: list[Problem] = field(default_factory=list)
    result: dict[str, Any] | None = None
    text: str = ""
    next: str = ""
    rest: list[str] = field(default_factory=list)


# -- what is sent ----------------------------------------------------------------------------------------------


def make_bundle(config: Path, overrides: tuple[str, ...]) -> Bundle:
    """The packages of a corpus. SpecError when the config is wrong, holds a secret, or is too much to send."""
    corpus = load_corpus(config, overrides)
    tree = corpus.tree
    _refuse_secrets(corpus, tree)
    files: dict[str, bytes] = {}
    values: dict[tuple[Any, ...], str] = {}
    local = []
    for path, value in _paths(corpus):
        at = _scalar(tree, path)
        if at is None or "://" in value:
            continue
        data = (path[0] == "sources" and path[2] == "path") or path[:2] == ("output", "path") or "against" in path
        if data:
            values[at] = str(value)
            local.append(f"{path_text(path[:3])}: {value}")
        else:
            values[at], carried = _carry(value, len(values), corpus.where(at))
            files |= carried
    for stage in corpus.stages:
        files |= module_files(type(stage).__module__)
    files[CONFIG] = one_file(tree, values)
    return Bundle(corpus, code_package(), pack(files), tuple(local))


def _refuse_secrets(corpus: Corpus, tree: Table) -> None:
    """A config with a secret in it must not be copied to the disks of a cluster."""
    problems = []
    for name, source in corpus.sources.items():
        for key in _secret_keys(source.storage_options):
            at = ("sources", name, "storage_options", *key)
            message = f"{path_text(at)} is a secret: it would be copied to the disks of the cluster"
            repairs = ("remove it, and set it in the environment of the nodes (AWS_SECRET_ACCESS_KEY …)",)
            problems.append(Problem("C021", message, place(tree, at), repairs))
    if problems:
        raise SpecError(*problems)


def _secret_keys(options: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(options, Secret):
        yield path
    elif isinstance(options, dict | list):
        for key, value in options.items() if isinstance(options, dict) else enumerate(options):
            yield from _secret_keys(value, (*path, key))


def _paths(corpus: Corpus) -> Iterator[tuple[tuple[Any, ...], FilePath]]:
    """Every path of a config with its place in the file."""
    yield from _paths_in(corpus, ())
    for index, stage in enumerate(corpus.stages):
        yield from _paths_in(stage, ("stages", index, _stage_key(corpus.tree, index)))


def _stage_key(tree: Table, index: int) -> str:
    """The name under which the file has a stage: a registered one, or the user's own `module:Class`."""
    item = value_at(tree, ("stages", index))
    return next(iter(item), "") if isinstance(item, Table) else str(item or "")


def _paths_in(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], FilePath]]:
    if isinstance(value, FilePath):
        yield path, value
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            if (path, name) != ((), "stages"):
                yield from _paths_in(getattr(value, name), (*path, info.alias or name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths_in(item, (*path, key))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _paths_in(item, (*path, index))


def _scalar(tree: Table, path: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Where the text of a path stands in the file; a list of one may be written without brackets. None: a default."""
    for candidate in (path, path[:-1]):
        if isinstance(value_at(tree, candidate), Text):
            return candidate
    return None


def _carry(path: FilePath, number: int, where: Where | None) -> tuple[str, dict[str, bytes]]:
    """`(the path in the job's folder, the files there)` for a file, folder or glob that the config names.

    Its last component stays, because results may depend on it. A card beside a model comes along.
    """
    from stages.readers import list_files

    try:
        found = list_files([str(path)], os.sep, format="text").files
    except (OSError, ValueError) as error:
        raise SpecError(Problem("D005", str(error), where)) from error
    root = f"files/{number:03d}"
    if len(found) == 1 and found[0].path == os.path.normpath(str(path)):
        beside = [Path(found[0].path), *(p for p in [Path(f"{path}.json")] if p.is_file())]
        return f"{root}/{path.tail}", {f"{root}/{p.name}": p.read_bytes() for p in beside}
    wild = re.search(r"[*?\[{]", path.tail) is not None
    below = root if wild else f"{root}/{path.tail}"
    return f"{root}/{path.tail}", {f"{below}/{one.uri}": Path(one.path).read_bytes() for one in found}


# -- sending and watching ------------------------------------------------------------------------------------


def submit(
    out: Output,
    config: Path,
    overrides: tuple[str, ...],
    address: str | None,
    *,
    until: str | None = None,
    fresh: bool = False,
    wait: bool = True,
    installed: bool = False,
) -> int:
    """Sends a build to a cluster and, unless told otherwise, watches it. The exit code is that of the build.

    installed  the nodes run the program that they have; the job refuses to start when it is not this one
    """
    client = Client(job_address(address))
    bundle = make_bundle(config, overrides)
    running = _running(client, bundle.corpus)
    if running is not None:
        _say(out, f"a job builds this already: {running.id}")
        job = running.id
    else:
        _send(out, client, bundle, installed)
        command = ["python", "-m", "pipeline.job", CONFIG, "--program", bundle.code.name]
        command += [*(["--until", until] if until else []), *(["--fresh"] if fresh else [])]
        job = client.submit(
            f"{_slug(bundle.corpus.name)}-{secrets.token_hex(4)}",
            shlex.join(command),
            {"working_dir": bundle.own.uri, **({} if installed else {"py_modules": [bundle.code.uri]})},
            {"kind": "pipeline", "corpus": bundle.corpus.name, "out": _out(bundle.corpus), "config": bundle.corpus.config_digest()},
        )  # fmt: skip
    commands = [f"pipeline jobs {action} {job} --address {client.address}" for action in ("logs", "status", "stop")]
    if not wait:
        out.result(f"job {job}", {"job": job, "address": client.address})
        out.next(commands[0])
        return 0
    _say(out, f"job {job}   follow it from anywhere: {commands[0]}")
    return watch(out, client, job)


def watch(out: Output, client: Client, job: str) -> int:
    """Shows what a job does as if it ran here, until it ends: its exit code. Ctrl-C leaves the job running."""
    heard = Heard()
    display = Display(quiet=out.quiet or out.as_json, verbose=out.verbose)
    try:
        for line in client.follow(job):
            _hear(out, display, heard, line)
    except KeyboardInterrupt:
        _say(out, f"the job goes on. stop it with: pipeline jobs stop {job} --address {client.address}")
        return INTERRUPTED
    finally:
        display.close()
    return _conclude(out, client.job(job), heard)


def _hear(out: Output, display: Display, heard: Heard, line: str) -> None:
    """Takes one line of a job: an event, a problem, the result, or something else."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or "schema" not in row:
        heard.rest = [*heard.rest, line][-SAID_LAST:]
        if out.verbose:
            click.echo(line, err=True)
        return
    if "problem" in row:
        told = row["problem"]
        where = Where(**told["where"]) if told["where"] else None
        heard.problems.append(Problem(told["code"], told["message"], where, tuple(told["repairs"]), told["severity"]))
    elif "result" in row:
        heard.result, heard.text = row["result"], row.get("text", "")
    elif "next" in row:
        heard.next = row["next"]
    elif (event := event_of(row)) is not None:
        display(event)
        if out.as_json:
            click.echo(line)


def _conclude(out: Output, job: Job, heard: Heard) -> int:
    """Says how a job ended; its exit code."""
    if heard.problems:
        out.problems(tuple(heard.problems))
    if heard.result is not None:
        out.result(heard.text, heard.result)
    if heard.next and heard.result is not None:
        out.next(heard.next)
    if job.status == "SUCCEEDED":
        return 0
    if job.status == "STOPPED":
        _say(out, f"job {job.id} was stopped; what is done stays")
        return INTERRUPTED
    if heard.problems or heard.result is not None:
        return job.code or 1
    last = [line for line in heard.rest if line.strip()] or [job.message]
    said = "\n".join(last)
    raise RunError(Problem("R010", f"job {job.id} failed: {said}", repairs=("run the same command again: what is done stays",)))


def jobs(out: Output, action: str, job: str | None, address: str | None) -> int:
    """`pipeline jobs status|logs|stop`: the exit code."""
    client = Client(job_address(address))
    if action == "status":
        found = [client.job(job)] if job else client.jobs()
        rows = [(one.id, one.status.lower(), _lasted(one), one.metadata.get("out", "")) for one in found]
        out.result(table(("job", "status", "time", "output"), rows, left=(0, 1, 3)), {"jobs": [_plain(one) for one in found]})
        return _code(found[0]) if job else 0
    if job is None:
        raise SpecError(Problem("R010", f"which job? `pipeline jobs {action}` needs an id",
                                repairs=(f"pipeline jobs status --address {client.address} lists them",)))  # fmt: skip
    if action == "logs":
        client.job(job)
        return watch(out, client, job)
    client.stop(job)
    stopped = _until_over(client, job)
    out.result(f"job {job}: {stopped.status.lower()}", _plain(stopped))
    return 0 if stopped.over else 1


def _until_over(client: Client, job: str, patience: float = 60.0) -> Job:
    """The job once it has ended, or as it is after `patience` seconds."""
    until = time.monotonic() + patience
    while not (found := client.job(job)).over and time.monotonic() < until:
        time.sleep(0.5)
    return found


def _code(job: Job) -> int:
    """What a watcher of the job would have returned; 0 while it runs."""
    return {"FAILED": job.code or 1, "STOPPED": INTERRUPTED}.get(job.status, 0)


def _plain(job: Job) -> dict[str, Any]:
    return {"id": job.id, "status": job.status, "code": job.code, "started": job.started, "ended": job.ended,
            "metadata": dict(job.metadata)}  # fmt: skip


def _lasted(job: Job) -> str:
    return span((job.ended or time.time()) - job.started) if job.started else ""


def _running(client: Client, corpus: Corpus) -> Job | None:
    """A job that builds the same output right now."""
    out = _out(corpus)
    return next((one for one in client.jobs() if not one.over and one.metadata.get("out") == out), None)


def _send(out: Output, client: Client, bundle: Bundle, installed: bool) -> None:
    for word, package in (("program", bundle.code), ("config and files", bundle.own))[installed:]:
        there = client.has(package)
        _say(out, f"{word}: {size(len(package.content))} in {len(package.files)} files{', there already' if there else ''}")
        if not there:
            client.send(package)
    for line in bundle.local:
        _say(out, f"on a disk, so every node has to see it: {line}")


def _out(corpus: Corpus) -> str:
    return str(corpus.output.path)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40].strip("-") or "corpus"


def _say(out: Output, text: str) -> None:
    if not (out.quiet or out.as_json):
        click.echo(text, err=True)
