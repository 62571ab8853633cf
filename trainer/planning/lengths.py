"""Document lengths against the sequence length: what is attended to, what is cut, how full rows are."""

from __future__ import annotations

from dataclasses import dataclass

from stages.contract.manifest import Lengths
from trainer.planning.draft import Draft


@dataclass(frozen=True)
class Fit:
    """How the documents of a source fit into rows of one length, from its histogram.

    attended   sum of squared lengths of the pieces of documents / sum of their lengths
    longer     share of documents that are longer than a row
    tokens     share of tokens that stand in those
    mean       mean length of a document
    """

    attended: float
    longer: float
    tokens: float
    mean: float


def fit_of(lengths: Lengths, seq_len: int) -> Fit | None:
    """How documents with this histogram fit; None where there is no histogram.

    A bin is taken as documents of its mean length. A document longer than a row is cut into whole rows and a rest.
    """
    documents, tokens = sum(lengths.documents), sum(lengths.tokens)
    if not documents or not tokens:
        return None
    squares = longer = in_longer = 0.0
    for count, held in zip(lengths.documents, lengths.tokens, strict=True):
        if not count:
            continue
        length = held / count
        whole, rest = divmod(length, seq_len)
        squares += count * (whole * seq_len**2 + rest**2)
        if length > seq_len:
            longer, in_longer = longer + count, in_longer + held
    return Fit(squares / tokens, longer / documents, in_longer / tokens, tokens / documents)


def attended_of(draft: Draft, seq_len: int) -> tuple[float, str]:
    """Mean length of what a token's document has in its row, over the mixture, and how it was found."""
    if not draft.config.data.mask_documents:
        return float(seq_len), "seq_len: documents are not masked"
    fits = {name: fit_of(entry.lengths, seq_len) for name, entry in draft.sources.items()}
    known = {name: fit.attended for name, fit in fits.items() if fit is not None}
    if not known:
        return float(seq_len), "seq_len: no corpus says how long documents are"
    weights = {name: draft.shares.get(name, 0.0) for name in known}
    if not any(weights.values()):
        weights = {name: float(draft.tokens[name]) for name in known}
    mean = sum(weight * known[name] for name, weight in weights.items()) / sum(weights.values())
    return mean, "real lengths of documents, cut at seq_len, weighted by the mixture"
