"""What the commands of `trainer` share: output, options, errors, and the plan that they are about."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from stages.contract.manifest import Manifest
    from trainer.planning.draft import Machine
    from trainer.planning.plan import Plan

SCHEMA = 1

#: Problems that all ranks raise together, so that the first rank alone need show them.
SHARED = frozenset({"P004", "T002", "T003"})


class Output:
    """Where words and results go: JSON lines on stdout with `--json`, else text."""

    def __init__(self, as_json: bool, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet

    def emit(self, kind: str, record: dict[str, Any]) -> None:
        """One JSON line on stdout."""
        click.echo(json.dumps({"schema": SCHEMA, "kind": kind} | record, ensure_ascii=False, sort_keys=True))

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if not self.quiet:
            click.echo(text, err=True)

    def next(self, command: Sequence[str]) -> None:
        """What to do now."""
        self.say(f"next: {shlex.join(command)}")


def reported(command: Callable[..., int]) -> Callable[..., None]:
    """Runs a command: its return value is the exit code; a GristmillError is shown and gives its own."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        from stages.contract.problem import GristmillError, printable, problem_json, render

        output = Output(options.pop("as_json"), options.pop("quiet", False))
        try:
            code = command(output, **options)
        except GristmillError as error:
            code = error.exit_code
            rank = int(os.environ.get("RANK", 0))
            if rank == 0:
                color = sys.stderr.isatty() and "NO_COLOR" not in os.environ
                click.echo("\n\n".join(render(problem, color) for problem in error.problems), err=True)
                if output.as_json:
                    problems = [problem_json(problem) for problem in error.problems]
                    output.emit("result", {"exit": code, "problems": problems})
                if not options.get("rendezvous"):  # else the watchman has the last word
                    output.next(["trainer", "--help"] if code == 2 else ["trainer", *sys.argv[1:]])
            elif error.problems[0].code not in SHARED:
                repairs = [f"\n = {printable(repair)}" for repair in error.problems[0].repairs]
                click.echo(f"rank {rank}: {printable(error.problems[0].message)}{''.join(repairs)}", err=True)
        sys.exit(code)

    return run


class Place(click.ParamType):
    """A file or folder on a disk, or an address of a store."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if not isinstance(value, str) or "://" not in value:
            return Path(value)
        from stages.storage.address import located

        return located(value)


def options_of_a_plan(command: Callable[..., Any], corpus: bool = True) -> Callable[..., Any]:
    """What every command that needs a plan takes; `corpus` says whether it needs one."""
    found = command
    for decorator in reversed(
        (
            click.argument("plan_path", metavar="[PLAN]", required=False, type=click.Path(path_type=Path)),
            click.option(
                "--manifest",
                "manifest_paths",
                metavar="M",
                multiple=True,
                required=corpus,
                type=Place(),
                help="manifest.json of a built corpus, its folder, or an address of either; may be repeated.",
            ),
            click.option(
                "--set", "overrides", metavar="a.b=c", multiple=True, help="Override a value of the plan."
            ),
            click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout."),
            click.option("-q", "--quiet", is_flag=True, help="Only errors."),
        )
    ):
        found = decorator(found)
    return found


def options_of_a_checkpoint(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which checkpoint a command looks at."""
    run = click.option(
        "--out", type=click.Path(path_type=Path), help="The run folder; left out: runs/<name of the plan>."
    )
    step = click.option(
        "--step", type=click.IntRange(min=0), help="The checkpoint of this step; left out: the newest."
    )
    return run(
        step(click.option("--best", is_flag=True, help="The one with the best holdout loss.")(command))
    )


def options_of_a_tool(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that looks at a run folder takes."""
    as_json = click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
    return as_json(click.option("-q", "--quiet", is_flag=True, help="Only errors.")(command))


MANIFESTS = click.option(
    "--manifest", "manifest_paths", metavar="M", multiple=True, type=Place(),
    help="manifest.json of the run's corpus, its folder, or an address of either; left out: where the run found it.",
)  # fmt: skip


def plan_of(
    plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str], world: int | None
) -> tuple[Plan, list[Manifest], list[Path]]:
    """`(plan, manifests, their folders)` for a number of ranks here; None = for the hardware that the plan names."""
    from trainer.planning.plan import resolve
    from trainer.planning.ranks import check_groups, check_passes

    loaded, manifests, machine, folders = inputs_of(plan_path, manifest_paths, overrides, world)
    if world:
        check_groups(loaded, world)
    solved = resolve(loaded, manifests, machine)
    if world:
        check_passes(solved, world)
    return solved, manifests, folders


def plan_alone(
    plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str]
) -> tuple[Plan, list[Manifest], list[Path]]:
    """`(plan, manifests, their folders)` for a look by this process alone, which holds the whole model however the plan
    spreads it."""
    from trainer.planning.plan import resolve
    from trainer.planning.ranks import least_devices

    loaded, manifests, machine, folders = inputs_of(plan_path, manifest_paths, overrides, 1)
    return resolve(loaded, manifests, replace(machine, world=least_devices(loaded.value))), manifests, folders


def ranks_of(plan_path: Path | None, overrides: Sequence[str]) -> int:
    """Processes to train with where nobody says how many: one for each GPU, or those that one copy of the model takes."""
    from trainer.config import read_plan
    from trainer.planning.ranks import least_devices

    return accelerators() or least_devices(read_plan(plan_path, overrides).value)


def inputs_of(
    plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str], world: int | None
) -> tuple[Any, list[Manifest], Machine, list[Path]]:
    """`(plan.yaml, manifests, machine, folders of the manifests)`, all that a plan is worked out from.

    Without a manifest nothing can run here, so the plan is one for GPUs.
    """
    from stages.contract.manifest import load_manifest
    from trainer.config import read_plan
    from trainer.launch import cores
    from trainer.planning.devices import gpu_here
    from trainer.planning.draft import Machine
    from trainer.planning.ranks import least_devices

    loaded = read_plan(plan_path, overrides)
    manifests = [load_manifest(path) for path in manifest_paths]
    hardware = loaded.value.hardware
    gpus = accelerators() if world else hardware.gpus or accelerators()
    device: Literal["cpu", "cuda"] = (
        "cuda" if gpus or not manifests or (not world and hardware.gpu) else "cpu"
    )
    here = gpu_here() if accelerators() else None
    machine = Machine(device, cores(), world or gpus or least_devices(loaded.value), None, here)
    folders = [path if path.is_dir() else path.parent for path in manifest_paths]
    return loaded, manifests, machine, folders


def show_plan(output: Output, solved: Plan, err: bool = False) -> None:
    """The plan and its warnings: the result of `plan`, a preface of `fit`."""
    from stages.contract.problem import render
    from trainer.planning.show import plan_text

    if output.as_json:
        output.emit("plan", solved.to_json())
        return
    if not (output.quiet and err):
        click.echo(plan_text(solved, brief=err), err=err)
    for problem in solved.problems:
        output.say(render(problem))


def arguments_of(
    plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str]
) -> list[str]:
    arguments = [str(plan_path)] if plan_path else []
    arguments += [part for path in manifest_paths for part in ("--manifest", str(path))]
    return arguments + [part for override in overrides for part in ("--set", override)]


def accelerators() -> int:
    """GPUs that a rank of this machine could train on, without importing torch: 0 with a CPU build of it."""
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return 0
    except importlib.metadata.PackageNotFoundError:
        return 0
    driver = Path("/proc/driver/nvidia/gpus")
    present = len(list(driver.iterdir())) if driver.is_dir() else 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        present if chosen is None else min(present, len([name for name in chosen.split(",") if name.strip()]))
    )


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """Imports of a command that needs more than the base installation."""
    from stages.contract.problem import Problem, RunError

    try:
        yield
    except ImportError as error:
        hint = "pip install 'gristmill[train]'"
        raise RunError(Problem("R007", f"training needs {error.name}", repairs=(hint,))) from error


def smoke_folder(solved: Plan) -> Path:
    """Where `trainer smoke` leaves what it found."""
    from stages.contract.names import path_name

    return Path("runs") / f"{path_name(solved.name)}-smoke"
