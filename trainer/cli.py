"""The command line: plans and runs (`plan`, `fit`, `verify` …), looks at the data, and the tools of `trainer/tools/`.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 the run failed (what is done stays), 2 the
plan or the command line is wrong (nothing was started), 75 preempted, 130 interrupted (state saved, run again).
torch is imported by commands that need a model alone, after everything that can be checked without it has been.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gristmill")
def cli() -> None:
    """Plan and train a language model on a corpus made by `pipeline build`."""


@cli.command()
@functools.partial(options_of_a_plan, corpus=False)
@click.option("--gpus", type=click.IntRange(min=1), help="Plan for this many GPUs instead of this machine.")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of one of them, such as 80GiB.")
@click.option("--explain", "fields", metavar="FIELD", multiple=True, help="Say why a value is what it is.")
@click.option("--what-if", "changes", metavar="a.b=c", multiple=True, help="Show what another value would change.")
@click.option("--init", is_flag=True, help="Write a complete plan.yaml, to PLAN or ./plan.yaml.")
@click.option("--params", metavar="N", help="With --init: the size of the model, such as 1B.")
@click.option("--fit-runs", "runs", metavar="RUN", multiple=True, type=click.Path(path_type=Path),
              help="Fit the loss law of run folders, and say what it means for the plan.")
@click.option("--page", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Write plan.html and plan.png there: curves, mixture, memory, readings.")
@click.option("--fit-memory", is_flag=True, help="Find the largest micro-batch that fits, and what else frees memory.")
@click.option("--trace", is_flag=True, help="Check the memory ledger by PyTorch's tracer; needs torch, but no GPU.")
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
        loaded, manifests, machine, _ = _inputs(path, manifest_paths, (*overrides, *more), None)
        return plan_command.study(loaded, manifests, machine)

    if init:
        path = plan_path or Path("plan.yaml")
        code = plan_command.init(output, work_out(None), path, lambda: work_out(path))
        output.next(["trainer", "plan", *_arguments(path, manifest_paths, ())])
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
        output.next(["trainer", "fit", *_arguments(plan_path, manifest_paths, overrides)])
    return code


@cli.command()
@options_of_a_plan
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run folder; left out: runs/<name of the plan>."
)
@click.option(
    "--ranks", type=click.IntRange(min=1), help="Processes to train with; left out: one per GPU, or one."
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
    world = int(os.environ["WORLD_SIZE"]) if a_rank else ranks or accelerators() or 1
    stop = Stop().listen()
    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, world)
    out = out or Path("runs") / path_name(solved.name)
    leads = not a_rank or os.environ["RANK"] == "0"
    if after_smoke:
        with needs_torch():
            from trainer.tools.smoke import NAME, require
        require(_smoke_folder(solved) / NAME, solved)
    if leads and rendezvous is None:
        _show(output, solved, err=True)
    # The watchman's lock is inherited by its ranks; torchrun's first rank takes it itself.
    held = lock(out) if leads and rendezvous is None else None
    command = ["fit", *_arguments(plan_path, manifest_paths, overrides), "--out", str(out)]
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


def _smoke_folder(solved: Plan) -> Path:
    """Where `trainer smoke` leaves what it found."""
    from stages.contract.names import path_name

    return Path("runs") / f"{path_name(solved.name)}-smoke"


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


def _resolve(
    plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str], world: int | None
) -> tuple[Plan, list[Manifest], list[Path]]:
    """`(plan, manifests, their folders)` for a number of ranks here; None = for the hardware that the plan names."""
    from trainer.planning.built import check_built
    from trainer.planning.plan import resolve

    loaded, manifests, machine, folders = _inputs(plan_path, manifest_paths, overrides, world)
    if world:
        check_built(loaded)
    return resolve(loaded, manifests, machine), manifests, folders


def _inputs(
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

    loaded = read_plan(plan_path, overrides)
    manifests = [load_manifest(path) for path in manifest_paths]
    hardware = loaded.value.hardware
    gpus = accelerators() if world else hardware.gpus or accelerators()
    device: Literal["cpu", "cuda"] = "cuda" if gpus or not manifests or (not world and hardware.gpu) else "cpu"
    here = gpu_here() if accelerators() else None
    machine = Machine(device, cores(), world or gpus or 1, None, here)
    folders = [path if path.is_dir() else path.parent for path in manifest_paths]
    return loaded, manifests, machine, folders


def _show(output: Output, solved: Plan, err: bool = False) -> None:
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


def _arguments(plan_path: Path | None, manifest_paths: Sequence[Path], overrides: Sequence[str]) -> list[str]:
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


@cli.command()
@options_of_a_plan
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps before and after the save.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, help="Processes to train with.")
@click.option("--world", "worlds", type=click.IntRange(min=1), multiple=True, help="Go on with so many ranks, too.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the runs and verify.json; emptied first.")
@reported
def verify(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    steps: int,
    ranks: int,
    worlds: tuple[int, ...],
    out: Path | None,
) -> int:
    """Prove that a stopped run goes on as if it had not been stopped, bit for bit."""
    from stages.contract.names import path_name

    solved, _, _ = _resolve(plan_path, manifest_paths, overrides, ranks)
    with needs_torch():
        from trainer.checkpoint.verify import proof_text, prove
    folder = out or Path("runs") / f"{path_name(solved.name)}-verify"
    arguments = _arguments(plan_path, manifest_paths, overrides)
    proof = prove(solved, arguments, folder, steps, ranks, worlds, output.say)
    code = 3 if proof.findings else 0
    if output.as_json:
        output.emit("result", {"exit": code} | proof.to_json(solved))
    else:
        click.echo(proof_text(proof))
    output.next(["trainer", "fit", *arguments] if code == 0 else ["open", str(folder / "verify.json")])
    return code


def options_of_a_checkpoint(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which checkpoint a command looks at."""
    run = click.option("--out", type=click.Path(path_type=Path), help="The run folder; left out: runs/<name of the plan>.")
    step = click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; left out: the newest.")
    return run(step(click.option("--best", is_flag=True, help="The one with the best holdout loss.")(command)))


@cli.command("eval")
@options_of_a_plan
@options_of_a_checkpoint
@click.option("--rows", type=click.IntRange(min=1), help="Sequences of each source at most; left out: all.")
@reported
def evaluate(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    step: int | None,
    best: bool,
    rows: int | None,
) -> int:
    """Measure a checkpoint on the holdout: loss and bits per byte of each source."""
    from trainer.loader import Loader

    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, 1)
    with Loader(folders, solved, manifests) as loader, _attached(solved, out, step, best) as (model, found, world):
        from trainer.loop.evaluate import evaluate as measure
        from trainer.loop.evaluate import held_text

        held = measure(model, loader, world, solved.model.seq_len, solved.micro_batch or 1, rows)
    if output.as_json:
        sources = {
            name: {"loss": one.loss, "bits_per_byte": one.bits_per_byte, "targets": one.targets, "bytes": one.bytes}
            for name, one in held.items()
        }
        output.emit("result", {"exit": 0, "checkpoint": str(found.path), "step": found.step, "sources": sources})
    else:
        click.echo(held_text(held, found.step))
    return 0


@cli.command()
@options_of_a_plan
@options_of_a_checkpoint
@click.option("--prompt", required=True, help="What the text begins with.")
@click.option("--tokens", type=click.IntRange(min=1), default=100, help="Tokens to write at most.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.8, help="0 takes the likeliest each time.")
@click.option("--seed", type=int, default=0, help="Another seed, another text.")
@reported
def sample(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    step: int | None,
    best: bool,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
) -> int:
    """Let a checkpoint write on behind a prompt."""
    from stages.contract.problem import printable

    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, 1)
    tokenizer = manifests[0].tokenizer
    with _attached(solved, out, step, best) as (model, found, world):
        from trainer.model.sample import Codec, continued

        codec = Codec(folders[0] / tokenizer.path)
        ids = codec.ids(prompt)
        sizes = (tokenizer.eos_id, tokenizer.vocab_size)
        text = codec.text([*ids, *continued(model, ids, tokens, temperature, seed, *sizes, world.device)])
    if output.as_json:
        output.emit("result", {"exit": 0, "checkpoint": str(found.path), "step": found.step, "text": text})
    else:
        click.echo("\n".join(printable(line) for line in text.split("\n")))
    return 0


@contextlib.contextmanager
def _attached(solved: Plan, out: Path | None, step: int | None, best: bool) -> Iterator[tuple[Any, Any, Any]]:
    """`(model, checkpoint, world)`: this process alone with the weights of a checkpoint."""
    from stages.contract.names import path_name

    with needs_torch():
        from trainer.checkpoint.attach import chosen, with_weights
        from trainer.loop import parallel
    found = chosen(out or Path("runs") / path_name(solved.name), step, best)
    world = parallel.join("cuda" if accelerators() else "cpu")
    try:
        yield with_weights(solved, found, world), found, world
    finally:
        parallel.leave()


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """Imports of a command that needs more than the base installation."""
    from stages.contract.problem import Problem, RunError

    try:
        yield
    except ImportError as error:
        hint = "pip install 'gristmill[train]'"
        raise RunError(Problem("R007", f"training needs {error.name}", repairs=(hint,))) from error


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

    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, None)
    with Loader(folders, solved, manifests) as loader:
        found = batch_documents(loader, manifests, folders, step, rank, max(world, rank + 1))
    if output.as_json:
        output.emit("result", {"exit": 0, "step": step, "phase": solved.phase_at(step).name, "documents": found})
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
    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, None)
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

    solved, _, _ = _resolve(plan_path, manifest_paths, overrides, None)
    checks, findings, whole = check_order(solved)
    code = 3 if findings else 0
    if output.as_json:
        sources = [asdict(check) for check in checks]
        output.emit("result", {"exit": code, "sources": sources, "findings": findings, "every_step": whole})
    else:
        click.echo(check_text(checks, findings, whole, solved.steps))
    return code


def options_of_a_tool(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that looks at a run folder takes."""
    as_json = click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
    return as_json(click.option("-q", "--quiet", is_flag=True, help="Only errors.")(command))


MANIFESTS = click.option(
    "--manifest", "manifest_paths", metavar="M", multiple=True, type=click.Path(path_type=Path),
    help="manifest.json of the run's corpus, or its folder; left out: where the run found it.",
)  # fmt: skip


@cli.command()
@click.argument("source", metavar="RUN|CHECKPOINT", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@MANIFESTS
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; left out: the newest.")
@click.option("--best", is_flag=True, help="The one with the best holdout loss.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", help="Format of the weights.")
@options_of_a_tool
@reported
def export(
    output: Output, source: Path, folder: Path, manifest_paths: tuple[Path, ...], step: int | None, best: bool, dtype: str
) -> int:
    """Write a checkpoint as a folder that transformers loads: weights, tokenizer, card with where the data come from."""
    with needs_torch():
        from trainer.tools.export import command
    return command(output, source, folder, manifest_paths, step, best, dtype)


@cli.command("import")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write; left out: imports/<name of DIR>.")
@options_of_a_tool
@reported
def bring(output: Output, source: Path, out: Path | None) -> int:
    """Take over a Llama- or Qwen3-style model folder, to go on training it."""
    with needs_torch():
        from trainer.tools.bring import command
    return command(output, source, out or Path("imports") / source.resolve().name)


@cli.command()
@options_of_a_plan
@click.option("--steps", type=click.IntRange(min=2), help="Steps of the rehearsal; left out: a hundredth of the plan.")
@click.option("--ranks", type=click.IntRange(min=1), help="Processes of the rehearsal; left out: one per GPU, or one.")
@click.option("--quick", is_flag=True, help="Only the data and one batch by heart, no rehearsal.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for what it makes; emptied first.")
@reported
def smoke(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    steps: int | None,
    ranks: int | None,
    quick: bool,
    out: Path | None,
) -> int:
    """Rehearse a plan: one batch learned by heart, a hundredth of the run, resume, export. A gate that fails says why."""
    ranks = ranks or accelerators() or 1
    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, ranks)
    with needs_torch():
        from trainer.tools.smoke import command
    arguments = _arguments(plan_path, manifest_paths, overrides)
    device: Literal["cpu", "cuda"] = "cuda" if accelerators() else "cpu"
    return command(output, solved, manifests, folders, arguments, out or _smoke_folder(solved), ranks, steps, device, quick)


@cli.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@MANIFESTS
@options_of_a_tool
@reported
def doctor(output: Output, run: Path, manifest_paths: tuple[Path, ...]) -> int:
    """Say what ails a run, running, finished or dead: causes with evidence, and what to change."""
    with needs_torch():
        from trainer.tools.doctor import command
    return command(output, run, manifest_paths)


@cli.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=1), required=True, help="The step, counted from 1 as in metrics.jsonl.")
@MANIFESTS
@click.option("--top", type=click.IntRange(min=1), default=10, help="Documents to show.")
@options_of_a_tool
@reported
def spikes(output: Output, run: Path, step: int, manifest_paths: tuple[Path, ...], top: int) -> int:
    """Name the documents that made a step bad, and write what masks them."""
    with needs_torch():
        from trainer.tools.spikes import command
    return command(output, run, manifest_paths, step, top, "cuda" if accelerators() else "cpu")


@cli.command()
@click.argument("one", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("other", metavar="RUN_B", type=click.Path(path_type=Path))
@options_of_a_tool
@reported
def diff(output: Output, one: Path, other: Path) -> int:
    """Compare two runs: plan, data, versions, curves; the first step where they part, and why."""
    from trainer.tools.diff import command

    return command(output, one, other)


@cli.command()
@options_of_a_plan
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps that are measured of each setting.")
@click.option("--most", type=click.IntRange(min=1), help="Largest micro-batch; left out: the batch of the plan.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json and bench.yaml.")
@reported
def bench(
    output: Output,
    plan_path: Path | None,
    manifest_paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    steps: int,
    most: int | None,
    out: Path | None,
) -> int:
    """Measure tokens/s, MFU and memory over micro-batch, checkpointing and compiling, for `trainer plan`."""
    from stages.contract.names import path_name

    solved, manifests, folders = _resolve(plan_path, manifest_paths, overrides, 1)
    with needs_torch():
        from trainer.tools.bench import command
    arguments = _arguments(plan_path, manifest_paths, overrides)
    out = out or Path("runs") / f"{path_name(solved.name)}-bench"
    device: Literal["cpu", "cuda"] = "cuda" if accelerators() else "cpu"
    return command(output, solved, manifests, folders, arguments, out, steps, most, accelerators() or 1, device)


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
@click.option("--address", metavar="URL", help="The head's dashboard, http://head:8265; left out: RAY_API_SERVER_ADDRESS.")
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="Processes to train with, over all nodes.")
@click.option("--gpus", is_flag=True, help="A GPU for each rank; left out: a CPU.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run folder; every node has to see it.")
@click.option("--patience", default=300.0, show_default=True, help="Seconds to wait for a lost node's replacement.")
@click.option("--no-wait", is_flag=True, help="Come back as soon as the job is sent.")
@click.option("--installed", is_flag=True, help="Use the program that the nodes have installed; it must be this one.")
@reported
def submit(output: Output, plan_path: Path | None, manifest_paths: tuple[Path, ...], overrides: tuple[str, ...],
           address: str | None, ranks: int, **how: Any) -> int:
    """Train on a Ray cluster as a job, and watch it. It goes on from the last checkpoint when a node is lost."""
    from trainer.submit import submit as send

    solved, _, _ = _resolve(plan_path, manifest_paths, overrides, ranks)
    _show(output, solved, err=True)
    return send(output, solved, plan_path, manifest_paths, overrides, address, ranks, **how)


def main() -> None:
    """The console command."""
    cli(prog_name="trainer")


if __name__ == "__main__":
    main()
