"""The commands that look at a run, a plan or a checkpoint from outside; what each does is imported when it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trainer.command import (
    MANIFESTS,
    Output,
    accelerators,
    arguments_of,
    needs_torch,
    options_of_a_checkpoint,
    options_of_a_plan,
    options_of_a_tool,
    plan_alone,
    plan_of,
    ranks_of,
    reported,
    smoke_folder,
)

if TYPE_CHECKING:
    from trainer.planning.plan import Plan


@click.command()
@options_of_a_plan
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps before and after the save.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, help="Processes to train with.")
@click.option(
    "--world", "worlds", type=click.IntRange(min=1), multiple=True, help="Go on with so many ranks, too."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the runs and verify.json; emptied first."
)
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

    solved, _, _ = plan_of(plan_path, manifest_paths, overrides, ranks)
    with needs_torch():
        from trainer.checkpoint.verify import proof_text, prove
    folder = out or Path("runs") / f"{path_name(solved.name)}-verify"
    arguments = arguments_of(plan_path, manifest_paths, overrides)
    proof = prove(solved, arguments, folder, steps, ranks, worlds, output.say)
    code = 3 if proof.findings else 0
    if output.as_json:
        output.emit("result", {"exit": code} | proof.to_json(solved))
    else:
        click.echo(proof_text(proof))
    output.next(["trainer", "fit", *arguments] if code == 0 else ["open", str(folder / "verify.json")])
    return code


@click.command("eval")
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

    solved, manifests, folders = plan_alone(plan_path, manifest_paths, overrides)
    with (
        Loader(folders, solved, manifests) as loader,
        _attached(solved, out, step, best) as (model, found, world),
    ):
        from trainer.loop.evaluate import evaluate as measure
        from trainer.loop.evaluate import held_text

        held = measure(model, loader, world, solved.model.seq_len, solved.micro_batch or 1, rows)
    if output.as_json:
        sources = {
            name: {
                "loss": one.loss,
                "bits_per_byte": one.bits_per_byte,
                "targets": one.targets,
                "bytes": one.bytes,
            }
            for name, one in held.items()
        }
        output.emit(
            "result", {"exit": 0, "checkpoint": str(found.path), "step": found.step, "sources": sources}
        )
    else:
        click.echo(held_text(held, found.step))
    return 0


@click.command()
@options_of_a_plan
@options_of_a_checkpoint
@click.option("--prompt", required=True, help="What the text begins with.")
@click.option("--tokens", type=click.IntRange(min=1), default=100, help="Tokens to write at most.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.8, help="0 takes the likeliest each time."
)
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

    solved, manifests, folders = plan_alone(plan_path, manifest_paths, overrides)
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


@click.command()
@click.argument("source", metavar="RUN|CHECKPOINT", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@MANIFESTS
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; left out: the newest.")
@click.option("--best", is_flag=True, help="The one with the best holdout loss.")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", help="Format of the weights."
)
@options_of_a_tool
@reported
def export(
    output: Output,
    source: Path,
    folder: Path,
    manifest_paths: tuple[Path, ...],
    step: int | None,
    best: bool,
    dtype: str,
) -> int:
    """Write a checkpoint as a folder that transformers loads: weights, tokenizer, card with where the data come from."""
    with needs_torch():
        from trainer.tools.export import command
    return command(output, source, folder, manifest_paths, step, best, dtype)


@click.command("import")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to write; left out: imports/<name of DIR>."
)
@options_of_a_tool
@reported
def bring(output: Output, source: Path, out: Path | None) -> int:
    """Take over a Llama- or Qwen3-style model folder, to go on training it."""
    with needs_torch():
        from trainer.tools.bring import command
    return command(output, source, out or Path("imports") / source.resolve().name)


@click.command()
@options_of_a_plan
@click.option(
    "--steps", type=click.IntRange(min=2), help="Steps of the rehearsal; left out: a hundredth of the plan."
)
@click.option(
    "--ranks", type=click.IntRange(min=1), help="Processes of the rehearsal; left out: one per GPU, or one."
)
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
    ranks = ranks or ranks_of(plan_path, overrides)
    solved, manifests, folders = plan_of(plan_path, manifest_paths, overrides, ranks)
    with needs_torch():
        from trainer.tools.smoke import command
    arguments = arguments_of(plan_path, manifest_paths, overrides)
    device: Literal["cpu", "cuda"] = "cuda" if accelerators() else "cpu"
    return command(
        output,
        solved,
        manifests,
        folders,
        arguments,
        out or smoke_folder(solved),
        ranks,
        steps,
        device,
        quick,
    )


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@MANIFESTS
@options_of_a_tool
@reported
def doctor(output: Output, run: Path, manifest_paths: tuple[Path, ...]) -> int:
    """Say what ails a run, running, finished or dead: causes with evidence, and what to change."""
    with needs_torch():
        from trainer.tools.doctor import command
    return command(output, run, manifest_paths)


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--step", type=click.IntRange(min=1), required=True, help="The step, counted from 1 as in metrics.jsonl."
)
@MANIFESTS
@click.option("--top", type=click.IntRange(min=1), default=10, help="Documents to show.")
@options_of_a_tool
@reported
def spikes(output: Output, run: Path, step: int, manifest_paths: tuple[Path, ...], top: int) -> int:
    """Name the documents that made a step bad, and write what masks them."""
    with needs_torch():
        from trainer.tools.spikes import command
    return command(output, run, manifest_paths, step, top, "cuda" if accelerators() else "cpu")


@click.command()
@click.argument("one", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("other", metavar="RUN_B", type=click.Path(path_type=Path))
@options_of_a_tool
@reported
def diff(output: Output, one: Path, other: Path) -> int:
    """Compare two runs: plan, data, versions, curves; the first step where they part, and why."""
    from trainer.tools.diff import command

    return command(output, one, other)


@click.command()
@options_of_a_plan
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, help="Steps that are measured of each setting."
)
@click.option(
    "--most", type=click.IntRange(min=1), help="Largest micro-batch; left out: the batch of the plan."
)
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

    solved, manifests, folders = plan_alone(plan_path, manifest_paths, overrides)
    with needs_torch():
        from trainer.tools.bench import command
    arguments = arguments_of(plan_path, manifest_paths, overrides)
    out = out or Path("runs") / f"{path_name(solved.name)}-bench"
    device: Literal["cpu", "cuda"] = "cuda" if accelerators() else "cpu"
    return command(
        output, solved, manifests, folders, arguments, out, steps, most, accelerators() or 1, device
    )


COMMANDS = (verify, evaluate, sample, export, bring, smoke, doctor, spikes, diff, bench)
