"""Causes in how a run runs: a resume that did not go on, data of another order, waiting, memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from trainer.loop.metrics import digest_parts
from trainer.loop.schedule import rate_at
from trainer.tools.causes.case import LIKELY, POSSIBLE, SHOWN, Case, Finding

#: Share of a step that may be spent waiting for its batch, or for other ranks.
WAIT, TALK = 0.15, 0.25

#: Device work that is communication.
_TALK = re.compile(r"nccl|all_?gather|reduce_?scatter|all_?reduce|c10d|gloo", re.IGNORECASE)


def resume(case: Case) -> Iterator[Finding]:
    """Starts behind step 0 after which loss, rate or data do not go on."""
    seen: dict[str, int] = {}
    again = {}
    for record in case.run.steps:
        if (first := seen.setdefault(record["digest"], record["step"])) != record["step"]:
            again[record["step"]] = first
    for at in sorted({start["step"] for start in case.run.starts if start["step"]}):
        index = int(np.searchsorted(case.step, at + 1))
        if index < 2 or index >= len(case.step):
            continue
        evidence = []
        if (old := again.get(at + 1)) is not None:
            evidence.append(f"step {at + 1:,} read the very tokens of step {old:,}: the data started over")
        wanted, had = _rate(case, at), case.run.steps[index]["lr"]
        if wanted is not None and abs(had - wanted) > 1e-6 * max(wanted, had):
            evidence.append(f"learning rate of step {at + 1:,}: {had:.4g}, the schedule says {wanted:.4g}")
        before, after = case.loss[max(0, index - 20) : index], case.loss[index : index + 5]
        if np.isfinite(before).sum() >= 5 and np.isfinite(after).any():
            usual, spread = _line(before)
            jump = float(np.nanmedian(after[:3])) - usual
            if jump > max(6 * spread, 0.03 * usual):
                norms = case.norm[max(0, index - 20) : index]
                evidence.append(f"loss {usual:.3f} before, {np.nanmedian(after[:3]):.3f} in the steps after ({jump / spread:.0f} deviations); gradient norm {np.nanmedian(norms):.3g}, then {np.nanmedian(case.norm[index : index + 3]):.3g}")
        if evidence:
            yield Finding("resume", f"the start at step {at:,} did not go on where the run had stopped", SHOWN, (f"step {at:,} is where run.json has a new start", *evidence), (
                "`trainer verify` with this plan says which component is not restored", "go back: delete the checkpoints behind it and run again",
            ))  # fmt: skip
            return


def _rate(case: Case, step: int) -> float | None:
    return rate_at(case.plan, step) if step < case.plan.steps else None


def _line(values: np.ndarray) -> tuple[float, float]:
    """`(value that a line through them has at its end, spread around it)`."""
    good = np.flatnonzero(np.isfinite(values))
    slope, level = np.polyfit(good, values[good], 1)
    rest = values[good] - (slope * good + level)
    return float(slope * len(values) + level), max(1.4826 * float(np.median(np.abs(rest))), 0.003)


def order(case: Case) -> Iterator[Finding]:
    """Steps that read other tokens than the plan says, of a few that are looked at."""
    if case.loader is None or not case.run.steps:
        return
    starts = [start["step"] + 1 for start in case.run.starts]
    spread = np.linspace(1, len(case.run.steps), 5).astype(int).tolist()
    records = {record["step"]: record for record in case.run.steps}
    for step in sorted({*starts[-5:], *spread} & records.keys()):
        if step > case.plan.steps:
            continue
        batch = case.loader.batch(step - 1, micro=8)
        mine = b"".join((part % (1 << 32)).to_bytes(4, "little") for part in digest_parts(batch, 0)).hex()
        if mine != records[step]["digest"]:
            evidence = (f"step {step:,}: the tokens that were trained on have digest {records[step]['digest'][:12]}, those of the plan {mine[:12]}",)
            yield Finding("data-order", "the run read other data than its plan says", SHOWN, evidence, ("`trainer order-check` proves the order; was a dataset of your own in between?",))
            return


def waits_for_data(case: Case) -> Iterator[Finding]:
    """Steps that wait for their batches."""
    shares = case.column("data_wait") / case.column("seconds")
    late = shares[len(shares) // 5 :]
    if len(late) >= 5 and np.nanmedian(late) > WAIT:
        evidence = (f"{np.nanmedian(late):.0%} of a step is waiting for its batch ({np.nanmedian(case.column('data_wait')):.3g} s of {np.nanmedian(case.column('seconds')):.3g} s)",)
        yield Finding("data-bound", "training waits for data", LIKELY, evidence, (
            "put the shards on a local disk; `pipeline verify` says how fast they are read", "fewer ranks on a machine leave the reading thread a core",
        ))  # fmt: skip


def communication(case: Case) -> Iterator[Finding]:
    """Ranks that wait for each other: by a profile, by starts with other numbers of ranks, else by what is missing to the peak."""
    ranks = int(case.run.starts[-1]["ranks"]) if case.run.starts else 1
    if ranks < 2:
        return
    evidence = []
    certainty = LIKELY
    if (share := _profiled(case)) is not None:
        if share < TALK:
            return
        evidence.append(f"{share:.0%} of the profiled time is communication")
    elif (pair := _per_rank(case)) is not None:
        (few, fast), (many, slow) = pair
        if slow > (1 - TALK) * fast:
            return
        evidence.append(f"{fast:,.0f} tokens/s of each rank with {few}, {slow:,.0f} with {many}: {1 - slow / fast:.0%} is lost between them")
    else:
        mfu = case.column("mfu")
        mfu = mfu[np.isfinite(mfu)]
        wait = np.nanmedian(case.column("data_wait") / case.column("seconds"))
        if len(mfu) < 5 or np.median(mfu) > 0.2 or wait > WAIT:
            return
        certainty = POSSIBLE
        evidence.append(f"MFU {np.median(mfu):.1%} with {ranks} ranks, while batches are waited for {wait:.0%} of a step")
    moved = 3 * 4 * case.plan.model.parameters * (ranks - 1) / ranks
    evidence.append(f"sharding moves some {moved / 1e9:.2g} GB in and out of each rank for each pass")
    yield Finding("communication-bound", "ranks wait for each other", certainty, tuple(evidence), (
        "raise batch.micro_batch_size (fewer passes, so fewer gathers)", "parallel.shard: gradients or hybrid gathers less often, for more memory",
    ))  # fmt: skip


def _profiled(case: Case) -> float | None:
    """Share of communication among kernels (on a CPU: operators) of the newest profile, or None."""
    paths = sorted((case.run.folder / "profile").glob("profile-*.json"))
    if not paths:
        return None
    events = json.loads(paths[-1].read_bytes()).get("traceEvents", [])
    kinds = ("kernel",) if any(e.get("cat") == "kernel" for e in events) else ("cpu_op",)
    talk = sum(e.get("dur", 0) for e in events if e.get("cat") in kinds and _TALK.search(e.get("name", "")))
    whole = sum(e.get("dur", 0) for e in events if e.get("cat") in kinds)
    return talk / whole if whole else None


def _per_rank(case: Case) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Tokens a second of each rank for the fewest and the most ranks that parts of the run had."""
    speeds: dict[int, list[float]] = {}
    borders = [start["step"] for start in case.run.starts] + [1 << 62]
    for start, (low, high) in zip(case.run.starts, pairwise(borders), strict=True):
        some = [r["tokens_per_second"] for r in case.run.steps if low + 1 < r["step"] <= high]
        speeds.setdefault(start["ranks"], []).extend(some)
    known = {ranks: float(np.median(some)) / ranks for ranks, some in speeds.items() if len(some) >= 3}
    if len(known) < 2:
        return None
    few, many = min(known), max(known)
    return (few, known[few]), (many, known[many])


def memory(case: Case) -> Iterator[Finding]:
    """Memory that grows while every step is alike: the way to running out of it."""
    used = case.column("memory")
    late = used[len(used) // 3 :]
    if len(late) < 20 or not np.isfinite(late).all():
        return
    grown = (late[-1] - late[0]) / late[0]
    if grown < 0.05 or np.count_nonzero(np.diff(late) > 0) < 5:
        return
    each = (late[-1] - late[0]) / len(late)
    left = case.plan.steps - int(case.step[-1])
    evidence = (
        f"peak memory went from {late[0] / 2**20:,.0f} to {late[-1] / 2**20:,.0f} MiB over the last {len(late):,} steps, {each / 2**10:,.0f} KiB a step",
        f"at that pace {(late[-1] + each * left) / 2**30:.1f} GiB at the end of the run",
    )
    yield Finding("memory", "memory grows from step to step", LIKELY, evidence, (
        "something keeps tensors of past steps: a hook, a list of losses", "until it is found: checkpoint.save_every, and run again after it ends",
    ))  # fmt: skip


def word(case: Case) -> str:
    """What a step is spent on, in a sentence."""
    seconds, wait = case.column("seconds"), case.column("data_wait")
    if not len(seconds):
        return "no step was measured"
    share = float(np.nanmedian(wait / seconds))
    mfu = case.column("mfu")
    reached = f", MFU {np.nanmedian(mfu):.1%}" if np.isfinite(mfu).any() else ""
    kind = "data-bound" if share > WAIT else "compute-bound (or communication, which a profile tells apart)" if case.run.starts and case.run.starts[-1]["ranks"] > 1 else "compute-bound"
    return f"{np.nanmedian(seconds):.3g} s a step, {share:.0%} of it waiting for data{reached}: {kind}"
