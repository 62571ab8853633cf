"""Texts that lie between pages of memory that nobody may touch: a read one byte before or behind them kills the process.

    python -m tests.stages.guarded SEED ROUNDS

runs every stage of the registry over such texts, drawn by the seed: the ends of texts fall on the end of the memory, their
beginnings on its beginning, and texts are of every script, cut anywhere between two characters.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.document import document_batch, with_column
from stages.stage import REGISTRY, GlobalStage, RowStage, stage_class
from tests.stages.scripts_corpus import TEXTS

HERE = Path(__file__).parent
_PAGE = mmap.PAGESIZE
_NOTHING = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

#: Settings that need something: the others run with none.
SETTINGS: dict[str, list[dict]] = {
    "decontaminate": [{"benchmarks": str(HERE / "items.jsonl")}],
    "words": [{"lists": {"any": str(HERE / "listed.txt")}}],
    "rules": [{"preset": "fineweb"}, {"preset": "code"}],
    "pii": [{}, {"replace": "remove"}],
    "datatrove": [],  # theirs, on Python objects
    "quality": [{"train": {"good": ["web"], "bad": ["other"]}}],
}


class Arena:
    """Memory between two pages that cannot be touched."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._first, self._end = base + _PAGE, base + (pages + 1) * _PAGE
        for guard in (base, self._end):
            if _LIBC.mprotect(guard, _PAGE, _NOTHING):
                raise OSError(ctypes.get_errno(), "mprotect")

    def hold(self, content: bytes, at_end: bool) -> pa.Buffer:
        """The content at the end of the memory or at its beginning, until the next one is put there."""
        start = self._end - len(content) if at_end else self._first
        assert self._first <= start
        ctypes.memmove(start, content, len(content))
        return pa.foreign_buffer(start, len(content), self)


_TEXTS, _OFFSETS = Arena(16), Arena(1)


def guarded(texts: list[str], at_end: bool) -> pa.Array:
    """large_string array of these texts whose bytes and offsets both lie so; good until the next call."""
    content = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, content)]).astype(np.int64)
    buffers = _OFFSETS.hold(offsets.tobytes(), at_end), _TEXTS.hold(b"".join(content), at_end)
    return pa.LargeStringArray.from_buffers(len(texts), *buffers)


def draw(chance: random.Random) -> list[str]:
    """Some texts: pieces of all scripts, cut anywhere; some without a character, some of a few."""
    pool = [*TEXTS.values(), "a" * 63, "don't stop 3,14", "http://u:p@h.example/", "x" * 7 + "é", "sk-", "2001:db8::", "@", "\n"]
    texts = []
    for _ in range(chance.randrange(1, 6)):
        pieces = [chance.choice(pool) for _ in range(chance.randrange(0, 4))]
        text = "".join(piece[chance.randrange(0, len(piece) + 1) :] for piece in pieces)
        texts.append(text[: chance.randrange(0, min(len(text), 400) + 1)])
    return texts


def run(seed: int, rounds: int) -> int:
    """Every stage over `rounds` batches; returns how many stages ran."""
    stages = [stage_class(name)(**given) for name in REGISTRY for given in SETTINGS.get(name, [{}])]
    chance = random.Random(seed)
    for _ in range(rounds):
        texts = draw(chance)
        plain = document_batch("web", ["a"] * len(texts), list(range(len(texts))), texts)
        for at_end in (True, False):
            for stage in stages:
                batch = with_column(plain, "text", guarded(texts, at_end))
                if isinstance(stage, RowStage):
                    assert stage.apply(batch).equals(stage.apply(plain)), (stage.name, texts)
                elif isinstance(stage, GlobalStage):
                    assert stage.emit(batch, 0).equals(stage.emit(plain, 0)), (stage.name, texts)
    return len(stages)


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])))
