"""The self-test of near-duplicate removal: planted documents go through the stage as it is set, before it works.

Pairs of texts with known Jaccard similarity, English-like and Chinese, are signed and sent through every superstep, in
memory. What must come out follows from the settings alone: equal words are found, nothing far below the threshold is
removed, and pairs well above it are found as often as the bands promise, within five standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stages.contract.problem import Problem, RunError
from stages.dedup.bands import collision_probability
from stages.dedup.jaccard import shingle_sets, similarities
from stages.document import document_batch
from stages.stage import GlobalStage, Outbox, PartInfo, StepContext

if TYPE_CHECKING:
    from stages.dedup.neighbours import Neighbours

_PAIRS = 48
_WORDS = 120
#: Words of a text that are replaced in the other text of a pair; 0 = only case and punctuation differ.
_CHANGES = (0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 12, 40)


def check(stage: Neighbours) -> int:
    """How many planted pairs were looked at. RunError when one of the three things above does not hold."""
    texts = _texts(stage)
    batch = document_batch("self-test", ["planted"] * len(texts), range(len(texts)), texts)
    plain = stage.model_copy(update={"audit": 0, "survivor": "priority", "only": None, "except_": None})
    verdicts = run_in_memory(plain, [batch.slice(0, len(texts) // 2), batch.slice(len(texts) // 2)])
    numbers = np.arange(len(texts))
    sets = shingle_sets([batch], numbers, numbers.astype(np.uint64), stage.ngram)
    sizes = similarities(sets, numbers[:_PAIRS], sets, numbers[_PAIRS:])
    similarity = sizes[:, 0] / np.maximum(sizes[:, 1], 1)
    gone = np.zeros(len(texts), bool)
    gone[list(verdicts)] = True
    found = gone[:_PAIRS] | gone[_PAIRS:]
    wrong = [
        f"a removed text has another survivor than its partner: {row}, {survivor}"
        for row, survivor in verdicts.items()
        if abs(row - survivor) != _PAIRS
    ]
    if not found[similarity == 1].all():
        wrong.append("texts of equal words were not found")
    far = similarity < stage.threshold - 0.15
    if found[far].any():
        wrong.append(f"a pair of similarity {similarity[far & found].max():.3f} was removed")
    near = similarity >= min(stage.threshold + 0.1, 1.0)
    chances = np.array([collision_probability(float(j), *stage.shape) for j in similarity[near]])
    least = chances.sum() - 5 * np.sqrt((chances * (1 - chances)).sum()) - 1e-6
    if found[near].sum() < least:
        wrong.append(f"{int(found[near].sum())} of {int(near.sum())} pairs well above the threshold were found, {least:.1f} expected")
    if wrong:
        text = f"the self-test of {stage.name} failed: {'; '.join(wrong)}"
        raise RunError(Problem("R009", text, repairs=("this is a fault of the program; please report it",)))
    return _PAIRS


def _texts(stage: Neighbours) -> list[str]:
    """The left texts of all pairs, then the right ones. Words are numbers, or characters from U+4E00 on."""
    rng = np.random.default_rng(stage.seed)
    length = stage.ngram + max(_WORDS, stage.min_shingles)
    sides: tuple[list[str], list[str]] = ([], [])
    for pair in range(_PAIRS):
        words = rng.integers(0, 20_000, length)
        other = words.copy()
        places = rng.choice(length, _CHANGES[pair // 2 % len(_CHANGES)], replace=False)
        other[places] = rng.integers(0, 20_000, len(places))
        for side, chosen in zip(sides, (words, other), strict=True):
            side.append(_written(chosen, chinese=pair % 2 == 1))
    sides[1][:] = [text.upper() + " ..." for text in sides[1]]
    return [*sides[0], *sides[1]]


def _written(words: np.ndarray, chinese: bool) -> str:
    if chinese:
        return "".join(chr(0x4E00 + word) for word in words.tolist())
    return " ".join(f"w{word}" for word in words.tolist())


def run_in_memory(stage: GlobalStage, batches: list[pa.RecordBatch]) -> dict[int, int]:
    """Survivor of each removed document, by their numbers; the rounds of a stage over parts of one batch each."""
    parts, first = [], 0
    for index, batch in enumerate(batches):
        parts.append(PartInfo(index, "self-test", 0, first, batch.num_rows))
        first += batch.num_rows
    emissions = [pa.Table.from_batches([stage.emit(batch, 0)]) for batch in batches]
    sent: dict[str, list[Outbox]] = {}
    for step in stage.supersteps(tuple(parts)):
        if step.name == "self_test":
            continue
        made: list[Mapping[str, Outbox]] = []
        for task in range(len(parts) if step.over is None else step.over):
            context = StepContext(
                index=task,
                parts=tuple(parts),
                inbox={name: _inbox(sent.get(channel, []), at) for name, (channel, at) in step.inbox(task).items()},
                emission=emissions.__getitem__,
                dropped=lambda _: np.empty(0, np.uint32),
                documents=lambda index: iter([batches[index]]),
            )
            made.append(getattr(stage, step.name)(context))
        for boxes in made:
            for channel, box in boxes.items():
                sent.setdefault(channel, []).append(box)
    verdicts: dict[int, int] = {}
    for part in parts:
        for row in _inbox(sent.get("evidence", []), part.index).to_pylist():
            verdicts[part.base + row["row"]] = parts[row["survivor_part"]].base + row["survivor_row"]
    return verdicts


def _inbox(boxes: list[Outbox], task: int) -> pa.Table:
    """The rows that were sent to a task, producer after producer."""
    tables: list[Any] = []
    for box in boxes:
        rows = box.rows if isinstance(box.rows, pa.Table) else pa.Table.from_batches([box.rows])
        mine = np.broadcast_to(np.asarray(box.address), (rows.num_rows,)) == task
        tables.append(rows.filter(pa.array(mine)))
    return pa.concat_tables(tables).combine_chunks() if tables else pa.table({})
