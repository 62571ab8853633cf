"""The table of pieces against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tokenizer.pieces import PieceTable

PIECES = st.lists(st.binary(max_size=6) | st.binary(min_size=12, max_size=40), max_size=80)


def flat(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(s) for s in strings], out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


@settings(max_examples=200, deadline=None)
@given(first=PIECES, second=PIECES, tail=st.binary(max_size=20))
def test_numbers_are_those_of_a_dict(first: list[bytes], second: list[bytes], tail: bytes) -> None:
    """With whatever bytes behind the last piece: a key never depends on its neighbours."""
    table, known = PieceTable(entries=1, pool_bytes=1), dict[bytes, int]()
    for strings in (first, second, first):
        data, offsets = flat([*strings, tail])
        numbers = table.intern(data, 0, offsets[1:-1])
        assert numbers.tolist() == [known.setdefault(s, len(known)) for s in strings]
    assert [
        table.pool[a:b].tobytes()
        for a, b in zip(table.offsets, table.offsets[1 : table.count + 1], strict=False)
    ] == list(known)
    data, offsets = flat([*second, b"not there at all", b"?" * 7])
    assert table.find(data, offsets).tolist() == [
        known.get(s, -1) for s in [*second, b"not there at all", b"?" * 7]
    ]


def test_cleared_table_starts_anew() -> None:
    table = PieceTable()
    data, offsets = flat([b"one", b"two"])
    table.intern(data, 0, offsets[1:])
    table.clear()
    assert (table.count, table.used) == (0, 0)
    assert table.intern(data, 3, offsets[2:]).tolist() == [0]


def test_hashes_do_not_depend_on_order() -> None:
    strings = [b"", b"a", b"exactly fifteen", b"sixteen bytes !!", "天地玄黄宇宙洪荒".encode()]
    tables = []
    for order in (strings, strings[::-1]):
        table = PieceTable()
        data, offsets = flat(order)
        table.intern(data, 0, offsets[1:])
        tables.append(dict(zip(order, table.hashes().tolist(), strict=True)))
    assert tables[0] == tables[1]
    assert len(set(tables[0].values())) == len(strings)
