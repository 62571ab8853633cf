"""How often training by the weights of a config reads each source, before there is a plan of any training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.corpus import Buckets, Materialized
from pipeline.engine.plan import Plan
from stages.contract.manifest import load_manifest
from stages.contract.problem import GristmillError
from stages.contract.weights import Request, nowhere, pieces_of, shape_of

#: Bytes of text in a token, about, before a tokenizer is there to count.
BYTES_A_TOKEN = 4
#: Above so many epochs repeated text is worth clearly less than new text (Muennighoff et al. 2023).
MANY_EPOCHS = 4.0


@dataclass(frozen=True)
class Reading:
    """What a run of `total` tokens reads of each source, by the config's weights.

    tokens     tokens of each member of the mixture: of the corpus that is there, or estimated from bytes
    measured   whether they were counted
    shares     of each phase, by its name: share of each member in the positions of the phase
    epochs     of each member over the whole run
    asked      whether the config says how long the run is; else it is as long as the corpus
    """

    tokens: dict[str, int]
    measured: bool
    total: int
    shares: dict[str, dict[str, float]]
    epochs: dict[str, float]
    asked: bool


def reading(plan: Plan) -> Reading | None:
    """The reading of a corpus with weights; None where the config has none: then every source is read evenly."""
    corpus = plan.corpus
    if corpus.mix is None and not corpus.phases:
        return None
    counted = _counted(plan.out)
    tokens = counted or _estimated(plan)
    size = _asked(plan)
    total = size or max(1, sum(tokens.values()))
    request = Request(
        tokens, seq_len=1, global_tokens=1, total_tokens=total, mix=corpus.mix, phases=corpus.phases, mix_is_default=True
    )
    shapes = shape_of(request, nowhere)
    read = dict.fromkeys(tokens, 0.0)
    shares: dict[str, dict[str, float]] = {}
    for i, shape in enumerate(shapes):
        share = dict.fromkeys(tokens, 0.0)
        for part, mix in pieces_of(shapes, i):
            for name, weight in mix.items():
                share[name] += part * weight
                read[name] += part * weight * shape.tokens
        shares[shape.name] = share
    epochs = {name: read[name] / n if n else 0.0 for name, n in tokens.items()}
    return Reading(tokens, counted is not None, total, shares, epochs, size is not None)


def _counted(out: Path) -> dict[str, int] | None:
    """Tokens of each member of the corpus that an earlier build left."""
    try:
        return {name: source.tokens for name, source in load_manifest(out).sources.items()}
    except (GristmillError, OSError):
        return None


def _estimated(plan: Plan) -> dict[str, int]:
    """Tokens of each member, from the bytes of its inputs."""
    found: dict[str, int] = {}
    for name, inputs in plan.inputs.items():
        tokens = inputs.text_bytes // BYTES_A_TOKEN
        tiers = plan.corpus.buckets.get(name)
        found |= {name: tokens} if tiers is None else _tiers(name, tiers, tokens)
    return found


def _tiers(name: str, tiers: Buckets, tokens: int) -> dict[str, int]:
    """Tokens of the tiers of a source: by their quantiles, or in equal parts where only values are given."""
    if tiers.quantiles is not None:
        bounds = [0.0, *tiers.quantiles, 1.0]
    else:
        parts = len(tiers.edges or ()) + 1
        bounds = [i / parts for i in range(parts + 1)]
    return {f"{name}.{i}": round(tokens * (bounds[i + 1] - bounds[i])) for i in range(len(bounds) - 1)}


def _asked(plan: Plan) -> int | None:
    """How long the config says the run is: the tokens of a materialized mixture, or those of its phases."""
    mixture = plan.corpus.output.mixture
    if isinstance(mixture, Materialized):
        return mixture.materialized.tokens
    sizes = [phase.tokens for phase in plan.corpus.phases]
    return sum(size or 0 for size in sizes) if sizes and all(sizes) else None
