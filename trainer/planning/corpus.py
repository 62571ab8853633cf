"""The plan against the corpus: what is read of each source and when it is read out, how documents fit, what words cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stages.contract.mixture import Mixture
from trainer.planned import Note
from trainer.planning.draft import Draft
from trainer.planning.figures import billions, size
from trainer.planning.lengths import fit_of
from trainer.planning.rules import CHINCHILLA
from trainer.planning.solver import Values
from trainer.shape import ModelShape


@dataclass(frozen=True)
class ReadOut:
    """When a source has been read so often: the step, and the share of the run; over 1 where the run ends before.

    times  1 for all of it once, else its repeat limit
    """

    source: str
    times: float
    step: float
    share: float


def note_corpus(draft: Draft, values: Values, mixture: Mixture) -> None:
    """All that only a corpus can say, as values of the plan."""
    _note_sources(draft, mixture)
    _note_read_out(draft, mixture)
    _note_smallest(draft, mixture)
    _note_holdout(draft)
    _note_lengths(draft, values, mixture)
    shape: ModelShape | None = values.shape
    if shape is not None:
        _note_vocabulary(draft, values, shape)


def note_training(draft: Draft, values: Values) -> None:
    """Tokens for each parameter against what spends compute best."""
    ratio = values.get("data.tokens_per_parameter")
    if ratio is None:
        return
    times = ratio / CHINCHILLA
    words = "over-trained: dearer to train, cheaper to use than a larger model of the same loss"
    if times < 0.8:
        words = "under-trained: a smaller model on more tokens would be better for the same compute"
    elif times <= 1.25:
        words = "about compute-optimal"
    why = f"data.tokens_per_parameter / {CHINCHILLA:g} (Hoffmann et al. 2022); {words}"
    draft.notes.append(Note("data.overtraining", f"{times:.3g} times", "derived", why, times, "data"))


def _note_sources(draft: Draft, mixture: Mixture) -> None:
    for name, use in mixture.uses.items():
        entry = draft.sources[name]
        key = f"sources.{name}"
        rows = [
            ("tokens", use.tokens, f"{use.tokens:,}", f"stored in {entry.documents:,} documents, EOS included"),
            ("read", use.read, f"{use.read:,}", "positions of the run"),
            ("epochs", use.epochs, f"{use.epochs:.2f}", "stored tokens read / stored tokens"),
        ]
        if use.limit is not None:
            rows.append(("limit", use.limit, f"{use.limit:g}", "how often it may be read"))
        for phase, tokens in _by_phase(mixture, name).items():
            times = tokens * use.stored / use.read / use.tokens if use.read and use.tokens else 0.0
            rows.append((f"in.{phase}", tokens, f"{tokens:,}", f"positions of phase {phase}: {times:.2f} times"))
        for word, number, text, why in rows:
            draft.notes.append(Note(f"{key}.{word}", text, "derived", why, number, "sources"))


def _by_phase(mixture: Mixture, name: str) -> dict[str, int]:
    """Positions of a source in each phase; the pieces of a ramp belong to one phase."""
    found: dict[str, int] = {}
    for phase in mixture.phases:
        found[phase.name] = found.get(phase.name, 0) + phase.read[name] * phase.seq_len
    return found


def read_outs(mixture: Mixture, times: float | None) -> Iterator[ReadOut]:
    """When each source has been read `times` times (None: as often as its limit allows), soonest first.

    Behind the end of the run the last phase is taken to go on.
    """
    steps = sum(phase.steps for phase in mixture.phases)
    found = []
    for name, use in mixture.uses.items():
        wanted = use.limit if times is None else times
        if wanted is None or not use.read or not use.tokens:
            continue
        left = wanted * use.tokens * use.read / use.stored  # positions
        step = 0.0
        for number, phase in enumerate(mixture.phases):
            rate = phase.read[name] * phase.seq_len / phase.steps
            last = number == len(mixture.phases) - 1
            if rate and (left <= rate * phase.steps or last):
                step += left / rate
                left = 0.0
                break
            left -= rate * phase.steps
            step += phase.steps
        if left <= 0:
            found.append(ReadOut(name, wanted, step, step / steps))
    yield from sorted(found, key=lambda one: one.step)


def _note_read_out(draft: Draft, mixture: Mixture) -> None:
    for key, times, verb in (("data.first_read_out", 1.0, "has been read once"), ("data.first_at_limit", None, "reaches its limit")):
        first = next(read_outs(mixture, times), None)
        if first is None:
            continue
        again = "" if times else f" of {first.times:g} readings"
        where = f"step {first.step:,.0f}, {first.share:.0%} of the run"
        if first.share > 1:
            where = f"only at {first.share:.2f} times the length of the run"
        why = f"the first source that {verb}{again}, as far as the mixture goes on"
        draft.notes.append(Note(key, f"{first.source}: {where}", "derived", why, first.step, "data"))


def _note_smallest(draft: Draft, mixture: Mixture) -> None:
    """The source with the fewest sequences in a step, over all phases."""
    counts = [
        (phase.mix[name] * phase.batch, name, phase.name)
        for phase in mixture.phases
        for name in phase.mix
        if phase.mix[name] > 0
    ]
    if counts:
        count, name, phase = min(counts)
        text = f"{count:.3g} sequences of {name}"
        why = f"expected in a step of phase {phase}, the fewest of any source"
        if count < 1:
            why += ": not in every step, so its loss of a step says little"
        draft.notes.append(Note("batch.smallest_count", text, "derived", why, count, "batch"))


def _note_holdout(draft: Draft) -> None:
    tokens = {name: sum(shard.tokens for shard in entry.holdout) for name, entry in draft.sources.items()}
    documents = sum(shard.documents for entry in draft.sources.values() for shard in entry.holdout)
    held, whole = sum(tokens.values()), sum(entry.tokens for entry in draft.sources.values())
    lacking = [name for name, count in tokens.items() if not count]
    why = "the corpus holds out nothing, so nothing can be evaluated"
    if held:
        why = f"{held / (held + whole):.2%} of the corpus, never trained on"
        why += f"; none of {', '.join(lacking)}" if lacking else ""
    draft.notes.append(Note("data.holdout", f"{billions(held)} tokens, {documents:,} documents", "derived", why, held, "data"))


def _note_lengths(draft: Draft, values: Values, mixture: Mixture) -> None:
    """Documents against the sequence length, and how full rows are."""
    seq_len = int(values.number("model.seq_len"))
    longer = tokens = weight = 0.0
    means = []
    for name, use in mixture.uses.items():
        fit = fit_of(draft.sources[name].lengths, seq_len)
        if fit is not None and use.read:
            longer, tokens = longer + use.read * fit.longer, tokens + use.read * fit.tokens
            weight += use.read
            means.append(f"{name} {fit.mean:,.0f}")
    if weight:
        text = f"{longer / weight:.1%} of documents, {tokens / weight:.1%} of tokens"
        why = f"longer than {seq_len:,}, by the mixture; mean lengths: {', '.join(means)}"
        draft.notes.append(Note("data.longer", text, "derived", why, tokens / weight, "data"))
    stored, read = sum(use.stored for use in mixture.uses.values()), sum(use.read for use in mixture.uses.values())
    if any(note.key == "data.packing" and note.value == "best-fit" for note in draft.notes):
        why = "of the positions of packed rows hold tokens"
        draft.notes.append(Note("data.fill", f"{stored / read:.2%}", "derived", why, stored / read, "data"))


def _note_vocabulary(draft: Draft, values: Values, shape: ModelShape) -> None:
    """What the vocabulary costs: parameters, work, memory, and bytes that a token stands for."""
    vocabulary = int(values.number("model.vocab_size"))
    tables = (1 if shape.tie_embeddings else 2) * shape.vocab_size * shape.width
    head = 6 * shape.vocab_size * shape.width / values.number("model.flops_per_token")
    text = f"{tables / shape.parameters:.1%} of parameters, {head:.1%} of the work"
    why = f"embedding and head for {vocabulary:,} entries in {shape.vocab_size:,} rows"
    draft.notes.append(Note("model.vocabulary_cost", text, "derived", why, tables, "model"))
    text_bytes = sum(entry.text_bytes for entry in draft.sources.values())
    tokens = sum(entry.tokens for entry in draft.sources.values())
    bytes_a_token = text_bytes / tokens if tokens else 0.0
    total = values.number("data.total_tokens")
    why = f"{size(text_bytes)} of text in {billions(tokens)} tokens; the run reads about {size(total * bytes_a_token)}"
    draft.notes.append(Note("data.bytes_per_token", f"{bytes_a_token:.3g}", "derived", why, bytes_a_token, "data"))
