"""`trainer spikes`: which document made a step bad. Its batch is rebuilt, and weighed by the nearest earlier checkpoint.

A document is suspect by how far it is from what its source usually is under the same weights (steps around it are run
for that):

    z of loss        (loss - mean) / sqrt(s_document^2 + s_token^2 / labels)      of its source
    z of repetition  share of its 3-grams that it had before, in robust deviations of its source

The larger one decides. A chance of one short document is so weighed less than a long one that is as far off.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np
import torch

from stages.contract.files import write_atomic
from stages.contract.problem import Problem, RunError, SpecError, printable
from trainer import checkpoint
from trainer.checkpoint import Checkpoint
from trainer.checkpoint.attach import with_weights
from trainer.loader import Loader
from trainer.look import add_origins
from trainer.loop import parallel
from trainer.loop.evaluate import to_device
from trainer.loop.parallel import World
from trainer.model import Llama
from trainer.planning.show import table
from trainer.tools.doctor import followed
from trainer.tools.runs import Run, corpora, open_run, plan_of

if TYPE_CHECKING:
    from trainer.command import Output

Device = Literal["cpu", "cuda"]

#: Steps around the step that say what is usual.
AROUND = 6

#: From which z on a document is named in skip.yaml.
SUSPECT = 5.0

#: Least deviation of repetition that counts; tokens from which on it is looked at; length of the runs.
REPETITION_SPREAD, REPETITION_TOKENS, GRAM = 0.08, 8, 3


@dataclass
class Document:
    """A document, or the part of it that a row holds, under the weights of a checkpoint.

    worst  place of the token with the highest loss in `ids`
    """

    row: int
    source: str
    id: str
    number: int
    ids: np.ndarray
    labels: int
    loss: float
    deviation: float
    repetition: float
    worst: int
    z_loss: float = 0.0
    z_repetition: float = 0.0
    usual: float = 0.0

    @property
    def suspicion(self) -> float:
        """The larger z; a loss that is not finite is beyond all."""
        return float("inf") if not np.isfinite(self.loss) else max(self.z_loss, self.z_repetition)


def repetition(ids_T: np.ndarray) -> float:
    """Share of 3-grams that stood in the text before."""
    if len(ids_T) < GRAM + 1:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(ids_T, GRAM)
    return 1.0 - len(np.unique(grams, axis=0)) / len(grams)


@torch.no_grad()
def weighed(model: Llama, loader: Loader, world: World, step: int) -> list[Document]:
    """The documents of a step (0-based)."""
    found: list[Document] = []
    row = 0
    for micro in loader.batch(step, micro=loader.plan.micro_batch or 1).micros:
        tokens, positions, segments, labels = to_device(micro, world.device)
        losses = model(tokens, positions, segments, labels).double().cpu().numpy()
        parallel.after_look(model)
        found += _documents(loader, micro, losses, labels.cpu().numpy(), row)
        row += int((micro["weight"] > 0).sum())
    return found


def _documents(loader: Loader, micro: Mapping[str, Any], loss_T: np.ndarray, label_T: np.ndarray, row: int) -> Iterator[Document]:
    length = micro["input_ids"].shape[1]
    ids, borders = np.asarray(micro["input_ids"]).reshape(-1), micro["cu_seqlens"].tolist()
    for i, number in enumerate(micro["span_document"].tolist()):
        a, b = borders[i], borders[i + 1]
        real = label_T[a:b] >= 0
        if number < 0 or not real.any():
            continue
        own = loss_T[a:b][real]
        yield Document(
            row=row + a // length, source=loader.plan.sources[int(micro["span_source"][i])].name,
            id=bytes(micro["span_id"][i]).hex(), number=number, ids=ids[a:b], labels=len(own), loss=float(own.mean()),
            deviation=float(own.std()), repetition=repetition(ids[a:b]), worst=int(np.flatnonzero(real)[own.argmax()]),
        )  # fmt: skip


def ranked(model: Llama, loader: Loader, world: World, step: int) -> list[Document]:
    """The documents of a step (0-based), the most suspect first."""
    own = weighed(model, loader, world, step)
    last = loader.plan.steps
    near = [s for d in range(1, AROUND + 1) for s in (step - d, step + d) if 0 <= s < last][:AROUND]
    usual: dict[str, list[Document]] = defaultdict(list)
    for other in near:
        for document in weighed(model, loader, world, other):
            usual[document.source].append(document)
    for document in own:
        beside = [one for one in usual[document.source] if np.isfinite(one.loss)] or [one for one in own if one is not document and np.isfinite(one.loss)]
        if beside:
            _judge(document, beside)
    return sorted(own, key=lambda one: -one.suspicion)


def _judge(one: Document, beside: Sequence[Document]) -> None:
    loss = np.array([other.loss for other in beside])
    weight = np.array([other.labels for other in beside], float)
    mean = float((loss * weight).sum() / weight.sum())
    token = float(np.median([other.deviation for other in beside]))
    between = float(np.median(np.abs(loss - np.median(loss)))) * 1.4826
    spread = np.sqrt(max(between**2 - token**2 / float(np.median(weight)), 0.02**2) + token**2 / one.labels)
    one.usual, one.z_loss = mean, (one.loss - mean) / max(float(spread), 1e-6)
    if len(one.ids) < REPETITION_TOKENS:
        return
    shares = np.array([other.repetition for other in beside if len(other.ids) >= REPETITION_TOKENS])
    if len(shares):
        middle = float(np.median(shares))
        wide = max(1.4826 * float(np.median(np.abs(shares - middle))), REPETITION_SPREAD)
        one.z_repetition = (one.repetition - middle) / wide


def nearest(run: Run, step: int) -> Checkpoint:
    """The newest sound checkpoint before a step (counted from 1). SpecError when there is none."""
    root = run.folder / "checkpoints"
    for at, path in reversed(checkpoint.folders(root).items()):
        found = checkpoint.read(path) if at < step else "later"
        if isinstance(found, Checkpoint):
            return found
    message = f"{root} has no sound checkpoint before step {step:,}"
    raise SpecError(Problem("C005", message, repairs=("checkpoint.keep_every_steps keeps old ones",)))


def rules_for(suspects: Sequence[Document]) -> list[str]:
    """Lines for the stages of corpus.yaml that would take such documents out, each with why."""
    lines = []
    if any(one.z_repetition > SUSPECT for one in suspects):
        worst = max(suspects, key=lambda one: one.repetition)
        lines.append(f"- rules: {{max_repeated_ngrams: {{5: 15%, 10: 10%}}, max_duplicate_lines: 30%}}   # {worst.repetition:.0%} of its 3-grams repeat")
    if any(one.z_loss > SUSPECT and one.z_repetition <= SUSPECT for one in suspects):
        worst = max(suspects, key=lambda one: one.z_loss)
        lines.append(f"- language: {{min_score: 0.65}}   # loss {worst.loss:.2f} where {worst.source} has {worst.usual:.2f}: another language, or no text")
        lines.append("- rules: {min_words: 20, max_mean_word_length: 10}   # strings, tables, encodings")
    if any(len(one.ids) < 8 for one in suspects):
        lines.append("- rules: {min_words: 20}   # a few tokens long")
    return list(dict.fromkeys(lines))


class Reader:
    """Tokens as text, where the tokenizer of the corpus can be read; else as numbers."""

    def __init__(self, tokenizer_json: Path) -> None:
        self._codec: Any = None
        try:
            from trainer.model.sample import Codec

            self._codec = Codec(tokenizer_json)
        except Exception:
            self._codec = None

    def snippet(self, one: Document, tokens: int = 24) -> str:
        """The text around the token with the highest loss."""
        first = max(0, one.worst - tokens // 2)
        part = one.ids[first : first + tokens].tolist()
        text = self._codec.text(part) if self._codec else " ".join(map(str, part))
        return printable(" ".join(text.split()))[:160]


def write(folder: Path, run: Run, step: int, found: Sequence[Mapping[str, Any]], suspects: Sequence[Document], old: Sequence[str]) -> Path | None:
    """report.json, and where something is suspect tombstones.txt and skip.yaml: the path of that one."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"step": step, "documents": list(found), "rules": rules_for(suspects)}
    write_atomic(folder / "report.json", json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")
    if not suspects:
        return None
    lines = [*old, *(f"{one.id}  # step {step}, {one.source}, z {one.suspicion:.1f}" for one in suspects)]
    write_atomic(folder / "tombstones.txt", ("\n".join(dict.fromkeys(lines)) + "\n").encode())
    text = [
        f"# Written by `trainer spikes` for step {step} of {run.name}. Put `extends: [{folder / 'skip.yaml'}]` into plan.yaml, or use",
        f"# --set data.tombstones={folder / 'tombstones.txt'}",
        "data:", "  tombstones: tombstones.txt", f"  # or pass over the whole step: skip: [[{step - 1}, {step}]]",
    ]  # fmt: skip
    write_atomic(folder / "skip.yaml", ("\n".join(text) + "\n").encode())
    return folder / "skip.yaml"


def examined(run: Run, manifests: Sequence[Path], step: int, device: Device) -> tuple[list[Document], list[dict[str, Any]], int, Sequence[str]]:
    """`(documents, the same as plain values, step of the checkpoint, tombstones that the plan has)`; step from 1."""
    read, folders = corpora(run, manifests)
    plan = followed(run, plan_of(run, read))
    if not 1 <= step <= plan.steps:
        raise SpecError(Problem("C005", f"there is no step {step:,}: the run has steps 1 to {plan.steps:,}"))
    found = nearest(run, step)
    reader = Reader(folders[0] / read[0].tokenizer.path)
    with Loader(folders, plan, read) as loader:
        world = parallel.join(device)
        try:
            documents = ranked(with_weights(plan, found, world), loader, world, step - 1)
        except torch.OutOfMemoryError as error:
            raise RunError(Problem("T005", f"the model does not fit on one device: {error}")) from error
        finally:
            parallel.leave()
    return documents, plain(documents, loader, reader), found.step, plan.tombstones


def plain(documents: Sequence[Document], loader: Loader, reader: Reader) -> list[dict[str, Any]]:
    """As JSON values, with file and record where the corpus has them, and a snippet."""
    rows = []
    for one in documents:
        row = asdict(one)
        del row["ids"], row["deviation"], row["worst"]
        loss = one.loss if np.isfinite(one.loss) else None
        suspicion = one.suspicion if np.isfinite(one.suspicion) else None
        rows.append(row | {"tokens": len(one.ids), "loss": loss, "suspicion": suspicion, "text": reader.snippet(one)})
    add_origins(rows, loader.manifests, loader.folders)
    return rows


def report(found: Sequence[Mapping[str, Any]], step: int, at: int, top: int) -> str:
    """The most suspect documents as a table, each with its text."""
    head = ["z", "loss", "source has", "repeats", "tokens", "source", "document", "file", "record"]
    rows = [
        [
            "inf" if one["suspicion"] is None else f"{one['suspicion']:.1f}", "-" if one["loss"] is None else f"{one['loss']:.3f}",
            f"{one['usual']:.3f}", f"{one['repetition']:.0%}", f"{one['tokens']:,}", one["source"], one["id"],
            str(one.get("uri", "-")), str(one.get("record", "-")),
        ]
        for one in found[:top]
    ]  # fmt: skip
    lines = [f"step {step:,}, weights of step {at:,}; {len(found):,} documents, the most suspect first", "", *table([head, *rows]), ""]
    lines += [f"  {one['id'][:8]}  {one['text']}" for one in found[: min(3, top)]]
    return "\n".join(lines)


def command(output: Output, folder: Path, manifests: Sequence[Path], step: int, top: int, device: Device) -> int:
    """`trainer spikes`: 3 when a document stands out, else 0."""
    run = open_run(folder)
    documents, found, at, old = examined(run, manifests, step, device)
    suspects = [one for one in documents if one.suspicion > SUSPECT]
    place = folder / f"spikes-{step:08d}"
    skip = write(place, run, step, found, suspects, old)
    code = 3 if suspects else 0
    if output.as_json:
        record = {"exit": code, "step": step, "checkpoint": at, "documents": found[:top], "skip": skip and str(skip), "rules": rules_for(suspects)}
        output.emit("result", record)
    else:
        click.echo(report(found, step, at, top))
        lines = [f"{len(suspects):,} in {skip}", "for corpus.yaml:", *(f"  {line}" for line in rules_for(suspects))]
        click.echo("\n".join(f"  {line}" for line in (lines if suspects else ["no document stands out"])))
    if skip is not None:
        output.next(["trainer", "fit", "PLAN", "--manifest", "M", "--out", str(folder), "--set", f"data.tombstones={place / 'tombstones.txt'}"])
    return code
