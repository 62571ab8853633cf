"""The command line: plans and runs (`plan`, `fit`, `verify` …), looks at the data, and the tools of `trainer/tools/`.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 the run failed (what is done stays), 2 the
plan or the command line is wrong (nothing was started), 75 preempted, 130 interrupted (state saved, run again).
torch is imported by commands that need a model alone, after everything that can be checked without it has been.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainer.command import (
    Output,
    accelerators,
    arguments_of,
    inputs_of,
    needs_torch,
    options_of_a_plan,
    plan_of,
    ranks_of,
    reported,
    show_plan,
    smoke_folder,
)
from trainer.tools.commands import COMMANDS

if TYPE_CHECKING:
    from stages.contract.manifest import Manifest
    from trainer.planning.plan import Plan


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gristmill")
def cli() -> None:
    """Plan and train a language model on a corpus made by `pipeline build`."""


@cli.command()
@functools.partial(options_of_a_plan, corpus=False)
@click.option("--gpus", type=click.IntRange(min=1), help="Plan for this many GPUs instead of this machine.")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of one of them, such as 80GiB.")
@click.option("--explain", "fields", metavar="FIELD", multiple=True, help="Say why a value is what it is.")
@click.option(
    "--what-if", "changes", metavar="a.b=c", multiple=True, help="Show what another value would change."
)
@click.option("--init", is_flag=True, help="Write a complete plan.yaml, to PLAN or ./plan.yaml.")
@click.option("--params", metavar="N", help="With --init: the size of the model, such as 1B.")
@click.option(
    "--fit-runs",
    "runs",
    metavar="RUN",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Fit the loss law of run folders, and say what it means for the plan.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write plan.html and plan.png there: curves, mixture, memory, readings.",
)
@click.option(
    "--fit-memory", is_flag=True, help="Find the largest micro-batch that fits, and what else frees memory."
)
@click.option(
    "--trace", is_flag=True, help="Check the memory ledger by PyTorch's tracer; needs torch, but no GPU."
)
@click.option("--strict", is_flag=True, help="Exit with 3 when there is a warning.")
@reported
def plan(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    gpus: int | None,
    gpu_memory: str | None,
    fields: tuple[str, ...],
    changes: tuple[str, ...],
    init: bool,
    params: str | None,
    runs: tuple[Path, ...],
    page: Path | None,
    fit_memory: bool,
    trace: bool,
    strict: bool,
) -> int:
    """Solve the plan and print what `fit` would run; without a manifest, all that needs no corpus."""
    from trainer.planning import plan_command

    hardware = [f"hardware.gpus={gpus}"] if gpus else []
    hardware += [f"hardware.gpu_memory={gpu_memory}"] if gpu_memory else []
    hardware += [f"model.params={params}"] if params else []
    overrides = (*overrides, *hardware)

    def work_out(path: Path | None, more: Sequence[str] = ()) -> Any:
        loaded, manifests, machine, _ = inputs_of(path, manifest_paths, (*overrides, *more), None)
        return plan_command.study(loaded, manifests, machine)

    if init:
        path = plan_path or Path("plan.yaml")
        code = plan_command.init(output, work_out(None), path, lambda: work_out(path))
        output.next(["trainer", "plan", *arguments_of(path, manifest_paths, ())])
        return code
    if changes:
        return plan_command.what_if(output, changes, lambda more: work_out(plan_path, more))
    found = work_out(plan_path)
    code = plan_command.exit_code(found, strict)
    if fields:
        plan_command.explain_all(output, found, fields)
        return code
    if runs:
        return plan_command.fit_runs(output, found, runs)
    if fit_memory:
        return plan_command.fit_memory(output, found)
    if trace:
        return plan_command.trace(output, found)
    if page is not None:
        plan_command.page(output, found, page)
    plan_command.show(output, found, code)
    if not found.failed and manifest_paths:
        output.next(["trainer", "fit", *arguments_of(plan_path, manifest_paths, overrides)])
    return code


@cli.command()
@options_of_a_plan
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run folder; left out: runs/<name of the plan>."
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Processes to train with; left out: one per GPU, else as many as a copy of the model takes.",
)
@click.option("--check-data", is_flag=True, help="Compare every byte of the shards with the manifest first.")
@click.option("--after-smoke", is_flag=True, help="Only if `trainer smoke` of this very plan has passed.")
@click.option("--rendezvous", hidden=True, help="File at which the ranks of one machine meet.")
@reported
def fit(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    ranks: int | None,
    check_data: bool,
    after_smoke: bool,
    rendezvous: str | None,
) -> int:
    """Train, from the newest checkpoint of the run folder if it has one."""
    from stages.contract.names import path_name
    from trainer.launch import Stop, lock, run_ranks

    a_rank = "RANK" in os.environ
    world = int(os.environ["WORLD_SIZE"]) if a_rank else ranks or ranks_of(plan_path, overrides)
    stop = Stop().listen()
    solved, manifests, folders = plan_of(plan_path, manifest_paths, overrides, world)
    out = out or Path("runs") / path_name(solved.name)
    leads = not a_rank or os.environ["RANK"] == "0"
    if after_smoke:
        with needs_torch():
            from trainer.tools.smoke import NAME, require
        require(smoke_folder(solved) / NAME, solved)
    if leads and rendezvous is None:
        show_plan(output, solved, err=True)
    # The watchman's lock is inherited by its ranks; torchrun's first rank takes it itself.
    held = lock(out) if leads and rendezvous is None else None
    command = ["fit", *arguments_of(plan_path, manifest_paths, overrides), "--out", str(out)]
    if world > 1 and held is not None and not a_rank:
        switches = [f"--{name}" for name, on in (("json", output.as_json), ("quiet", output.quiet)) if on]
        switches += ["--check-data"] if check_data else []
        code = run_ranks([sys.executable, "-m", "trainer.cli", *command, *switches], world, held)
        command += ["--ranks", str(world)]
    else:
        code = _train(output, solved, manifests, folders, out, stop, rendezvous, check_data)
    if leads and rendezvous is None:
        output.next(["trainer", *command] if code else ["open", str(out / "loss.svg")])
    return code


def _train(
    output: Output,
    solved: Plan,
    manifests: Sequence[Manifest],
    folders: Sequence[Path],
    out: Path,
    stop: Any,
    rendezvous: str | None,
    check_data: bool,
) -> int:
    """This process as one rank, from start to end: the exit code."""
    from stages.contract.problem import Problem, RunError
    from trainer.launch import watch_parent
    from trainer.loader import Loader

    if rendezvous is not None:
        watch_parent()
    with Loader(folders, solved, manifests, deep=check_data) as loader:
        # Read once, when torch first touches the device: without it cuBLAS may give other bits from run to run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Threads that wait sleep: spinning ones make a step ten times slower where other programs share the cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        with needs_torch():
            from trainer.checkpoint.runfolder import describe_run
            from trainer.loop import parallel
            from trainer.loop.fit import Fit
            from trainer.loop.metrics import read, summary
        world = parallel.join("cuda" if accelerators() else "cpu", rendezvous)
        emit = (lambda record: output.emit(record["kind"], record)) if output.as_json else None
        run = Fit(solved, loader, out, world, stop, emit=emit, quiet=output.quiet)
        try:
            run.resume()
            if world.first:
                describe_run(out, run.plan, world, run.state.step, folders)
            end = run.run()
        except RuntimeError as error:  # what gloo and NCCL raise
            if world.size == 1:
                raise
            message = (
                f"rank {world.rank} lost its peers at step {run.state.step:,}: {str(error).splitlines()[0]}"
            )
            raise RunError(Problem("T004", message)) from error
        finally:
            run.close()
            parallel.leave()
    if world.first:
        output.say(f"{out}: {run.state.step:,} of {run.plan.steps:,} steps done, {end.why}")
        if said := summary(read(out / "metrics.jsonl")):
            output.say(said)
        if run.state.skipped:
            output.say(f"{run.state.skipped:,} steps were skipped; see {out}/incident-*.json")
        if output.as_json:
            output.emit(
                "result", {"exit": end.code, "run": str(out), "why": end.why} | run.state.model_dump()
            )
    return end.code


@cli.command()
@options_of_a_plan
@click.option("--step", type=click.IntRange(min=0), required=True, help="A step of the run, from 0.")
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Only what this rank reads.")
@click.option("--world", type=click.IntRange(min=1), default=1, help="Of so many ranks.")
@reported
def batch(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    step: int,
    rank: int,
    world: int,
) -> int:
    """Name the documents of a step, row by row."""
    from trainer.loader import Loader
    from trainer.look import batch_documents, batch_text

    solved, manifests, folders = plan_of(plan_path, manifest_paths, overrides, None)
    with Loader(folders, solved, manifests) as loader:
        found = batch_documents(loader, manifests, folders, step, rank, max(world, rank + 1))
    if output.as_json:
        output.emit(
            "result", {"exit": 0, "step": step, "phase": solved.phase_at(step).name, "documents": found}
        )
    else:
        click.echo(batch_text(found))
    return 0


@cli.command()
@options_of_a_plan
@click.argument("document", metavar="DOC", required=False)
@reported
def where(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    document: str | None,
) -> int:
    """List the steps that read a document; DOC is its id, 32 hex digits."""
    from trainer.loader import Loader
    from trainer.look import where_is, where_text

    if document is None:  # of two arguments of which the first may be left out, the first is filled first
        if plan_path is None:
            raise click.UsageError("Missing argument 'DOC'.")
        document, plan_path = str(plan_path), None
    solved, manifests, folders = plan_of(plan_path, manifest_paths, overrides, None)
    with Loader(folders, solved, manifests) as loader:
        found = where_is(loader, document)
    if output.as_json:
        output.emit("result", {"exit": 0, "document": document, "readings": found})
    else:
        click.echo(where_text(found))
    return 0


@cli.command("order-check")
@options_of_a_plan
@reported
def order_check(
    output: Output, plan_path: Path | None, manifest_paths: tuple[Path, ...], overrides: tuple[str, ...]
) -> int:
    """Prove that the data order keeps its word: shares, limits, coverage, and the same batches for any ranks."""
    from dataclasses import asdict

    from trainer.look import check_order, check_text

    solved, _, _ = plan_of(plan_path, manifest_paths, overrides, None)
    checks, findings, whole = check_order(solved)
    code = 3 if findings else 0
    if output.as_json:
        sources = [asdict(check) for check in checks]
        output.emit("result", {"exit": code, "sources": sources, "findings": findings, "every_step": whole})
    else:
        click.echo(check_text(checks, findings, whole, solved.steps))
    return code


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
@reported
def schema(output: Output) -> int:
    """Print the JSON Schema of plan.yaml, for editors."""
    from trainer.config import plan_schema

    made = plan_schema()
    if output.as_json:
        output.emit("result", {"exit": 0, "schema_of_plan": made})
    else:
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
    return 0


@cli.command()
@options_of_a_plan
@click.option(
    "--address",
    metavar="URL",
    help="The head's dashboard, http://head:8265; left out: RAY_API_SERVER_ADDRESS.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), required=True, help="Processes to train with, over all nodes."
)
@click.option("--gpus", is_flag=True, help="A GPU for each rank; left out: a CPU.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The run folder; every node has to see it."
)
@click.option(
    "--patience", default=300.0, show_default=True, help="Seconds to wait for a lost node's replacement."
)
@click.option("--no-wait", is_flag=True, help="Come back as soon as the job is sent.")
@click.option(
    "--installed", is_flag=True, help="Use the program that the nodes have installed; it must be this one."
)
@reported
def submit(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    address: str | None,
    ranks: int,
    **how: Any,
) -> int:
    """Train on a Ray cluster as a job, and watch it. It goes on from the last checkpoint when a node is lost."""
    from trainer.submit import submit as send

    solved, _, _ = plan_of(plan_path, manifest_paths, overrides, ranks)
    show_plan(output, solved, err=True)
    return send(output, solved, plan_path, manifest_paths, overrides, address, ranks, **how)


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The console command."""
    cli(prog_name="trainer")


if __name__ == "__main__":
    main()
