"""Where a piece falls apart: what is encoded in parts is what the library makes of the whole."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from stages.tokenizer.encode import Encoder
from stages.tokenizer.segments import segment_end
from tests.stages.tokenizer.test_encode import MANY, learned_across_characters, spec


def borders(encoder: Encoder, piece: bytes) -> list[int]:
    """The borders in a piece, its end included."""
    merges: Any = encoder._merges
    data, found = np.frombuffer(piece, np.uint8), [0]
    tables = (merges.joined, merges.chars, merges.levels, merges.ahead, merges.behind)
    while found[-1] < len(piece):
        found.append(segment_end(data, found[-1], len(piece), len(found) > 1, *tables))
    return found[1:]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shuffled", [False, True])
def test_parts_have_the_ids_that_they_have_in_the_whole(seed: int, shuffled: bool) -> None:
    content = learned_across_characters(seed, shuffled)
    encoder, library = Encoder.load(content), Tokenizer.from_buffer(content)
    rng = random.Random(seed)
    letters = "".join(char for char in MANY if char.isalpha()) + "的是不ab"
    cut = 0
    for _ in range(300):
        piece = "".join(rng.choices(letters, k=rng.randint(2, 30)))
        ends = borders(encoder, piece.encode())
        parts = [piece.encode()[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
        ids = [number for part in parts for number in library.encode(part).ids]
        assert ids == library.encode(piece).ids, piece
        cut += len(parts) > 1
    assert shuffled or cut > 50


def test_no_border_where_a_merge_joins() -> None:
    """\"图书馆\" is learned from the sample, so nothing falls apart inside of it; nothing there joins 馆 with 馆."""
    encoder = Encoder.load(spec())
    assert borders(encoder, "图书馆馆".encode()) == [9, 12]
