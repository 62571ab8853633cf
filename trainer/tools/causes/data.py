"""Causes in the data: labels, order, empty documents, a shard unlike the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.tools.batches import label_fault, label_shares, single_tokens, strange_pieces
from trainer.tools.causes.case import LIKELY, POSSIBLE, SHOWN, Case, Finding, span

#: A share of documents without a token to predict from which on it is a fault.
EMPTY_SHARE = 0.02

#: A run of steps without a source is no chance below this probability.
CHANCE = 1e-9


def labels(case: Case) -> Iterator[Finding]:
    """Labels that are not the next token."""
    if case.loader is None:
        return
    step = min(len(case.run.steps), case.plan.steps - 1)
    shares = label_shares(case.loader.batch(step, micro=8).micros)
    if (fault := label_fault(shares)) is not None:
        change = ("the labels are made by the loader, once: do not shift them again", "a dataset of your own must give labels[t] = input_ids[t + 1]")
        yield Finding("labels", "the labels are shifted", SHOWN, (f"batch of step {step + 1:,}: {fault}",), change)


def unshuffled(case: Case) -> Iterator[Finding]:
    """A source that is missing for longer than a mixed order allows."""
    present = [set(record["losses"]) for record in case.run.steps]
    for source in case.plan.sources:
        run: list[int] = []
        worst: tuple[list[int], float] = ([], 0.0)
        chance = 0.0
        for record, names in zip(case.run.steps, present, strict=True):
            phase = case.plan.phase_at(min(record["step"], case.plan.steps) - 1)
            share = phase.mix.get(source.name, 0.0)
            if source.name in names or share <= 0 or share >= 1:
                run, chance = [], 0.0
                continue
            run.append(record["step"])
            chance += phase.batch * float(np.log1p(-share))
            if chance < worst[1]:
                worst = (list(run), chance)
        if worst[0] and worst[1] < np.log(CHANCE):
            share = case.plan.phase_at(worst[0][0] - 1).mix[source.name]
            evidence = f"{source.name} is planned as {share:.1%} of each of {span(worst[0])}, and none of them read it (by chance: e^{worst[1]:.0f})"
            yield Finding("unshuffled", "sources come one behind the other, not mixed", SHOWN, (evidence,), (
                "`trainer order-check` proves the order of the plan; train with it, or shuffle the data before they are read",
            ))  # fmt: skip
            return


def empty_documents(case: Case) -> Iterator[Finding]:
    """Documents of nothing but their end."""
    for manifest in case.loader.manifests if case.loader else ():
        for name, (single, documents) in single_tokens(manifest).items():
            if documents and single / documents > EMPTY_SHARE:
                evidence = [f"{name}: {single:,} of {documents:,} documents ({single / documents:.1%}) are one token, their end"]
                rows = [r for r in case.run.steps if r.get("targets")]
                if rows:
                    last = rows[-1]
                    positions = case.plan.phase_at(last["step"] - 1).tokens_per_step
                    evidence.append(f"step {last['step']:,}: {last['targets']:,} of {positions:,} positions predict something")
                yield Finding("empty-documents", "many documents are empty", SHOWN, tuple(evidence), (
                    "add `- rules: {min_words: 1}` to the stages of corpus.yaml and build again", "`pipeline inspect MANIFEST --tokens` shows some",
                ))  # fmt: skip


def strange_shards(case: Case) -> Iterator[Finding]:
    """A part of a source with other token frequencies than the rest, and what the loss says of it."""
    if case.loader is None:
        return
    pieces = strange_pieces(case.loader.manifests, case.loader.folders)
    if not pieces:
        return
    worst = pieces[0]
    with_it, without = _losses_with(case, worst.shard, worst.source)
    evidence = [worst.sentence()]
    sure = SHOWN if worst.rubbish else POSSIBLE
    if len(with_it) >= 3 and len(without) >= 3:
        gap = float(np.median(with_it) - np.median(without))
        evidence.append(f"loss of {worst.source} in steps that read it {np.median(with_it):.3f}, in others {np.median(without):.3f} ({gap:+.3f})")
        spread = 1.4826 * float(np.median(np.abs(without - np.median(without))))
        if sure == POSSIBLE and gap > max(0.05, 2 * spread):
            sure = LIKELY
    evidence += [f"also {one.sentence()}" for one in pieces[1:4]]
    yield Finding("garbage-shard", f"a shard of {worst.source} is unlike the rest", sure, tuple(evidence), (
        f"look at it: pipeline inspect MANIFEST --tokens, shard {worst.shard}",
        "take its files out in corpus.yaml, or train with `data.tombstones` until it is built again",
    ))  # fmt: skip


def _losses_with(case: Case, shard: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Loss of a source above its running median, in steps that read the shard more than half of the source's rows,
    and in steps that do not read it."""
    assert case.loader is not None
    number = [one.name for one in case.plan.sources].index(source)
    entries = next(m.sources[source].shards for m in case.loader.manifests if source in m.sources)
    at = [one.name for one in entries].index(shard)
    edges = np.cumsum([0, *(one.tokens for one in entries)])
    low, high = int(edges[at]), int(edges[at + 1])
    order = case.plan.order
    with_it: list[float] = []
    without: list[float] = []
    for record in case.run.steps[-2000:]:
        loss = record["losses"].get(source)
        if loss is None or order.packed:
            continue
        samples = order.batch_samples(record["step"] - 1)
        mine = samples["offset"][samples["source"] == number]
        inside = ((mine >= low) & (mine < high)).mean() if len(mine) else 0.0
        if inside > 0.34:
            with_it.append(loss)
        elif not inside:
            without.append(loss)
    return np.array(with_it), np.array(without)
