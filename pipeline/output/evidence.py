"""Who was dropped for whom: documents of a boundary and their survivors, read back from the files they lie in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.engine.records import Part
from pipeline.engine.sealed import part_batches
from pipeline.engine.state import BoundaryState
from stages.exchange import read_inbox

SHOWN = 80  # characters of a text


def example_pairs(data: Any, boundary: BoundaryState, indices: Sequence[int], number: int = 3) -> list[str]:
    """Lines for people: the first dropped documents of some parts, each with the document kept instead."""
    lines: list[str] = []
    for index in indices:
        paths = [data / file.name for file in boundary.facts.evidence.of(index)]
        table = read_inbox(paths, "evidence", index).slice(0, number - len(lines))
        proofs = table.to_pylist() if table.num_columns else []
        dropped = documents_at(data, boundary.parts[index], [proof["row"] for proof in proofs])
        for proof in proofs:
            part, row = proof["survivor_part"], proof["survivor_row"]
            kept = documents_at(data, boundary.parts[part], [row])[row]
            lines.append(
                f"dropped: {_named(dropped[proof['row']])}   kept instead: {_named(kept)}   "
                f"similarity {proof['similarity']:.3f}"
            )
        if len(lines) >= number:
            break
    return lines


def documents_at(data: Any, part: Part, rows: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Some rows of a part as dicts, by row number."""
    wanted = sorted(set(rows))
    found: dict[int, dict[str, Any]] = {}
    first = 0
    for batch in part_batches(data, part) if wanted else ():
        for row in [row for row in wanted if first <= row < first + batch.num_rows]:
            found[row] = batch.slice(row - first, 1).to_pylist()[0]
        first += batch.num_rows
        if first > wanted[-1]:
            break
    return found


def _named(document: dict[str, Any]) -> str:
    text = " ".join((document.get("text") or "").split())
    return f"{document['uri']}, record {document['record']}: {text[:SHOWN]!r}"
