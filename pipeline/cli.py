"""The command `pipeline`. Everything heavy is imported inside the commands, so that `--help` is instant.

Grammar for all of them: `--set a.b=c` overrides the config, stdout carries the result and stderr the rest, `--json`
makes stdout JSON lines of which the last is the result. Exit codes: 0 done, 1 failed (what is done stays), 2 the
command line or config is wrong, 3 done with findings, 75 preempted, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipeline.command import Output, Place, common, config_options, run_options


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gristmill", prog_name="pipeline")
def main() -> None:
    """Raw text to clean, deduplicated, tokenized, checksummed shards and a manifest."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--from", "origin", required=True, metavar="this-python|FOLDER", help="What to write a config for."
)
@click.option("--name", help="Name of the corpus; default: the name of the folder.")
@common
def init(out: Output, folder: Path, origin: str, name: str | None) -> int:
    """Write a corpus.yaml that runs: over this machine's own Python, or over a folder of yours."""
    from dataclasses import asdict

    from pipeline.commands.initialize import initialize

    made = initialize(folder, origin, name)
    lines = [f"wrote {made.config_path}", *made.notes]
    out.result(
        "\n".join(lines),
        {"config": str(made.config_path), "sources": [asdict(s) for s in made.sources], "notes": list(made.notes)},
    )
    out.next(f"pipeline build {made.config_path}")
    return 0


@main.command()
@config_options
@click.option("--origins", is_flag=True, help="Show every value and where it comes from.")
@common
def check(out: Output, config: Path, overrides: tuple[str, ...], origins: bool) -> int:
    """Read and validate a config; says everything that is wrong at once."""
    from pipeline.corpus import load_corpus

    corpus = load_corpus(config, overrides)
    text = f"{config}: fine. {len(corpus.sources)} sources, {len(corpus.stages)} stages, config {corpus.config_digest()[:8]}"
    if origins:
        text += "\n" + "\n".join(
            f"{path}  {at.file}:{at.line}:{at.column}" for path, at in sorted(corpus.origins.items())
        )
    out.result(text, {"config": corpus.config_digest(), "settings": corpus.resolved()})
    out.next(f"pipeline plan {config}")
    return 0


@main.command()
@config_options
@click.option("--nodes", type=click.IntRange(min=1), help="Estimate hours, scratch and cost on so many nodes.")
@click.option("--node-cpus", type=click.IntRange(min=1), default=1, show_default=True, help="CPUs of a node.")
@click.option("--node-price", type=click.FloatRange(min=0), help="What a node costs for an hour.")
@click.option("--rates", type=Place(), help="Output folder of a build to take rates from; default: that of this config.")
@common
def plan(
    out: Output,
    config: Path,
    overrides: tuple[str, ...],
    nodes: int | None,
    node_cpus: int,
    node_price: float | None,
    rates: Any,
) -> int:
    """Show what a build would do: inputs, passes, what is left out; with --nodes, what it would take."""
    from pipeline.corpus import load_corpus
    from pipeline.engine.epochs import reading
    from pipeline.engine.intake import done_before
    from pipeline.engine.plan import make_plan
    from pipeline.engine.store import Journal
    from pipeline.show import plan_text

    made = make_plan(load_corpus(config, overrides))
    cached, tasks = done_before(made, Journal(made.out))
    data: dict[str, Any] = {
        "name": made.corpus.name,
        "config": made.corpus.config_digest(),
        "passes": [p.name for p in made.passes],
        "sources": {
            n: {"files": i.files, "bytes": i.bytes, "tasks": len(i.tasks), "left_out": i.skipped}
            for n, i in made.inputs.items()
        },
    }
    read = reading(made)
    if read is not None:
        data["mix"] = asdict(read)
    text = plan_text(made)
    if cached:
        text += f"\ncached   pass 1: {cached:,} of {tasks:,} tasks (same config, stages and inputs)"
    if nodes is not None:
        from pipeline.commands.estimate import estimate

        said, data["estimate"] = estimate(made, rates or made.out, nodes, node_cpus, node_price)
        text += f"\n\n{said}"
    out.result(text, {**data, "cached": cached})
    out.next(f"pipeline build {config}")
    return 0


@main.command()
@config_options
@run_options
@click.option("--until", metavar="STAGE", help="Stop after this stage; `tokenizer` is one.")
@click.option("--dry-run", is_flag=True, help="Plan, list the inputs, and do nothing else.")
@common
def build(
    out: Output, config: Path, overrides: tuple[str, ...], until: str | None, dry_run: bool, **how: Any
) -> int:
    """Build the corpus: raw files to shards and a manifest. Run it again to go on where it stopped."""
    from pipeline.corpus import load_corpus
    from pipeline.engine.plan import make_plan
    from pipeline.show import plan_text

    if dry_run:
        made = make_plan(load_corpus(config, overrides))
        out.result(
            plan_text(made), {"config": made.corpus.config_digest(), "passes": [p.name for p in made.passes]}
        )
        out.next(f"pipeline build {config}")
        return 0
    return _run(out, config, overrides, until, **how)


@main.command("train-tokenizer")
@config_options
@run_options
@common
def train_tokenizer(out: Output, config: Path, overrides: tuple[str, ...], **how: Any) -> int:
    """Build as far as the tokenizer: the same work, the same cache as `build`."""
    return _run(out, config, overrides, "tokenizer", **how)


def _run(out: Output, config: Path, overrides: tuple[str, ...], until: str | None, **how: Any) -> int:
    """A build, here or as a job on a cluster."""
    address = how["address"]
    if address is not None and address.startswith(("http://", "https://")):
        from pipeline.submit import submit as send

        return send(out, config, overrides, address, until=until, fresh=how["fresh"])
    from pipeline.launch import build_corpus

    return build_corpus(out, config, overrides, until=until, **how)


@main.command()
@config_options
@click.option(
    "--address", metavar="URL", help="The head's dashboard, http://head:8265; left out: RAY_API_SERVER_ADDRESS."
)
@click.option("--until", metavar="STAGE", help="Stop after this stage; `tokenizer` is one.")
@click.option("--fresh", is_flag=True, help="Forget what earlier builds did in this folder.")
@click.option("--no-wait", is_flag=True, help="Come back as soon as the job is sent.")
@click.option("--installed", is_flag=True, help="Use the program that the nodes have installed; it must be this one.")
@common
def submit(
    out: Output,
    config: Path,
    overrides: tuple[str, ...],
    address: str | None,
    until: str | None,
    fresh: bool,
    no_wait: bool,
    installed: bool,
) -> int:
    """Build on a Ray cluster as a job, and watch it. If such a job is running already, watch that one."""
    from pipeline.submit import submit as send

    return send(out, config, overrides, address, until=until, fresh=fresh, wait=not no_wait, installed=installed)


@main.command()
@click.argument("action", type=click.Choice(["status", "logs", "stop"]))
@click.argument("job", metavar="[ID]", required=False)
@click.option(
    "--address", metavar="URL", help="The head's dashboard, http://head:8265; left out: RAY_API_SERVER_ADDRESS."
)
@common
def jobs(out: Output, action: str, job: str | None, address: str | None) -> int:
    """Show the jobs of a cluster, watch one from its first line on, or stop it."""
    from pipeline.submit import jobs as manage

    return manage(out, action, job, address)


@main.command("try")
@click.argument("stage")
@click.argument("text", required=False)
@click.option("--set", "settings", multiple=True, metavar="key=value", help="A setting of the stage.")
@common
def try_stage(out: Output, stage: str, text: str | None, settings: tuple[str, ...]) -> int:
    """Show what a stage does to a text, and why. Without TEXT it is read from stdin."""
    from stages.attempt import attempt, make_stage, shown
    from stages.contract.problem import Problem, SpecError

    if text is None:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        made = make_stage(stage, settings)
    except ValueError as error:
        raise SpecError(Problem("C015", str(error))) from error
    result = attempt(made, text)
    out.result(shown(text, result), result)
    return 0


@main.command("train-quality")
@click.option("--good", multiple=True, required=True, metavar="FILES", help="Good texts: a file, glob or folder; repeatable.")
@click.option("--bad", multiple=True, required=True, metavar="FILES", help="Bad texts, of about the same size.")
@click.option("--out", "target", required=True, type=click.Path(path_type=Path), help="Where to write the model (.bin).")
@click.option("--text", help="The field with the text, or a template; default: text.")
@click.option("--limit", default=100_000, show_default=True, help="At most so many texts of each side.")
@click.option("--epochs", default=10, show_default=True, help="How often the texts are gone through.")
@click.option("--seed", default=0, show_default=True, help="Decides which texts are kept back for the test.")
@common
def train_quality(
    out: Output, good: tuple[str, ...], bad: tuple[str, ...], target: Path, text: str | None, limit: int, epochs: int, seed: int
) -> int:
    """Train a classifier of good and bad text for the stage `quality`, and say how right it is."""
    from pipeline.commands.quality import train_classifier

    said, card = train_classifier(good, bad, target, text, limit, epochs, seed)
    out.result(said, card)
    out.next(f"write - quality: {{model: {target}}} below stages")
    return 0


@main.command()
@click.argument("path", type=Place())
@common
def status(out: Output, path: Path) -> int:
    """Say how far a build is and whether one is running. PATH is a corpus.yaml or an output folder."""
    from pipeline.commands.look import status_of

    text, data, code = status_of(path)
    out.result(text, data)
    return code


@main.command()
@click.argument("path", type=Place())
@click.option("--source", help="Only this source.")
@click.option("--dropped", is_flag=True, help="Show dropped documents with reason, value and survivor.")
@click.option("--kept", is_flag=True, help="Show kept documents, decoded from the shards.")
@click.option("--clusters", is_flag=True, help="Show the largest groups of documents that became one, with samples.")
@click.option("--reason", help="Only dropped for this reason (a prefix such as `rules`).")
@click.option("--tokens", is_flag=True, help="Show kept documents in tokens.")
@click.option("--tokenizer", is_flag=True, help="Report on the tokenizer over the documents of the corpus.")
@click.option(
    "--compare", multiple=True, metavar="T", type=click.Path(path_type=Path), help="Another tokenizer for that report."
)
@click.option("--html", type=click.Path(path_type=Path), help="Write that report as a page too.")
@click.option("-n", "number", default=5, show_default=True, help="How many documents.")
@common
def inspect(
    out: Output, path: Path, clusters: bool, tokenizer: bool, compare: tuple[Path, ...], html: Path | None, **what: Any
) -> int:
    """Show a built corpus: the funnel, documents, or its tokenizer. PATH is a manifest or its folder."""
    from pipeline.commands.look import inspect as look
    from pipeline.commands.why import clusters as groups

    if tokenizer:
        from pipeline.commands.tokens import tokenizer_report

        out.result(*tokenizer_report(path, what["source"], compare, html))
        return 0
    text, data = groups(path, what["number"]) if clusters else look(path, **what)
    out.result(text, data)
    return 0


@main.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--tokenizer", required=True, metavar="T", type=click.Path(path_type=Path),
    help="A tokenizer.json, or the manifest or folder of a corpus.",
)  # fmt: skip
@common
def tokenize(out: Output, path: Path, tokenizer: Path) -> int:
    """Show a text file in tokens."""
    from pipeline.commands.tokens import tokenize_file

    out.result(*tokenize_file(path, tokenizer))
    return 0


@main.command()
@click.argument("path", type=Place())
@click.argument("document", metavar="DOC")
@common
def why(out: Output, path: Path, document: str) -> int:
    """Say what became of a document. DOC is its id, your own id, or the beginning of its text."""
    from pipeline.commands.why import why as tell

    text, data = tell(path, document)
    out.result(text, data)
    return 0


@main.command()
@click.argument("path", type=Place())
@click.option("--deep", is_flag=True, help="Read every byte: digests, ids, one EOS per document.")
@common
def verify(out: Output, path: Path, deep: bool) -> int:
    """Check a corpus against its manifest. Exit 3 if something differs."""
    from stages.contract.manifest import load_manifest, verify_manifest

    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    found = verify_manifest(folder, manifest, deep)
    out.problems(tuple(found))
    shards = sum(len(s.shards) + len(s.holdout) for s in manifest.sources.values())
    how = "every byte read" if deep else "sizes and numbers; --deep reads every byte"
    text = f"{folder}: {shards} shards, {len(found)} problems ({how})"
    out.result(text, {"shards": shards, "problems": len(found), "deep": deep})
    if not found:
        out.next(f"trainer fit --manifest {folder / 'manifest.json'}")
    return 3 if found else 0


@main.command()
@click.argument("path", metavar="MANIFEST", type=click.Path(path_type=Path))
@click.option("--length", "lengths", type=click.IntRange(min=2), multiple=True, required=True,
              help="Tokens of a row; may be repeated.")  # fmt: skip
@common
def pack(out: Output, path: Path, lengths: tuple[int, ...]) -> int:
    """Pack the documents of a built corpus into rows of another length. Tokens are not touched."""
    from pipeline.commands.pack import pack as pack_corpus

    text, data = pack_corpus(path, lengths)
    out.result(text, data)
    out.next(f"trainer plan --manifest {path} --set model.seq_len={lengths[0]}")
    return 0


@main.command()
@click.argument("path", metavar="MANIFEST", type=Place())
@click.option("--to", "target", type=click.Choice(["megatron", "hf-datasets", "parquet"]), required=True,
              help="What to write.")  # fmt: skip
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@common
def export(out: Output, path: Path, target: str, folder: Path) -> int:
    """Write the documents of a corpus for another tool."""
    from pipeline.commands.export import export as write

    out.result(*write(path, target, folder))
    return 0


@main.command("import")
@click.argument("inputs", metavar="[NAME=]FILE...", nargs=-1, required=True)
@click.option("--from", "kind", type=click.Choice(["megatron", "nanogpt", "hf-datasets"]), required=True,
              help="What the files are.")  # fmt: skip
@click.option("--tokenizer", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True,
              help="The tokenizer.json that made the ids.")  # fmt: skip
@click.option("--eos", metavar="TOKEN", help="The token that ends documents, where it has an unusual name.")
@click.option("--out", "folder", type=click.Path(path_type=Path), required=True, help="The folder of the corpus.")
@click.option("--shard-tokens", default=128_000_000, show_default=True, help="Tokens of one shard.")
@common
def bring(
    out: Output, inputs: tuple[str, ...], kind: str, tokenizer: Path, eos: str | None, folder: Path, shard_tokens: int
) -> int:
    """Make a corpus of token files of other tools. Each file becomes a source."""
    from pipeline.commands.bring import bring as take
    from pipeline.commands.bring import source_of

    text, data = take(kind, dict(source_of(one) for one in inputs), tokenizer, folder, shard_tokens, eos=eos)
    out.result(text, data)
    out.next(f"pipeline verify {folder / 'manifest.json'} --deep")
    return 0


@main.command()
@click.option("--manifest", "of_manifest", is_flag=True, help="The schema of manifest.json instead.")
@common
def schema(out: Output, of_manifest: bool) -> int:
    """Print the JSON Schema of corpus.yaml, for editors."""
    if of_manifest:
        from stages.contract.config import draft7
        from stages.contract.manifest import Manifest

        made = draft7(Manifest.model_json_schema())
    else:
        from pipeline.corpus import corpus_schema

        made = corpus_schema()
    out.result(json.dumps(made, indent=2, ensure_ascii=False), made)
    return 0


if __name__ == "__main__":
    main()
