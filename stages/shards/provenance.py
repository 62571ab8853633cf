"""Where documents came from: the rows of `docs-NNNNN.arrow`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stages.contract.files import on_disk


def origins(path: Path, documents: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of these documents of a shard, as plain values; `id` in hex."""
    with pa.memory_map(str(on_disk(path))) as source:
        table = pa.ipc.open_file(source).read_all()
    rows = table.take(pa.array(documents, pa.int64())).to_pylist()
    for row in rows:
        row["id"] = row["id"].hex()
    return rows
