"""The outbox file: groups by address, keeps order, same bytes for same rows, zero-copy reads."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.exchange import MANY, NOBODY, merge_outboxes, read_inbox, write_outbox
from stages.stage import Outbox


def rows(values, texts=None):
    columns = {"v": pa.array(values, pa.uint64())}
    if texts is not None:
        columns["t"] = pa.array(texts, pa.large_string())
    return pa.table(columns)


def test_groups_by_address_and_keeps_order(tmp_path):
    rng = np.random.default_rng(1)
    addresses = rng.integers(0, 7, 1000)
    values = np.arange(1000)
    write_outbox(tmp_path / "a", {"x": Outbox(addresses, rows(values))})
    for address in range(8):
        got = read_inbox([tmp_path / "a"], "x", address).column("v").to_numpy()
        np.testing.assert_array_equal(got, values[addresses == address])


def test_producers_stay_together_in_their_order(tmp_path):
    for i in range(3):
        write_outbox(tmp_path / str(i), {"x": Outbox(np.array([5, 900_000]), rows([10 * i, 10 * i + 1]))})
    paths = [tmp_path / str(i) for i in range(3)]
    assert read_inbox(paths, "x", 5).column("v").to_pylist() == [0, 10, 20]
    assert read_inbox(paths[::-1], "x", 900_000).column("v").to_pylist() == [21, 11, 1]


def test_addresses_are_sparse_and_channels_have_their_own_schema(tmp_path):
    write_outbox(
        tmp_path / "a",
        {
            "numbers": Outbox(np.array([4_000_000_000, 0]), rows([1, 2])),
            "texts": Outbox(3, rows([7], ["重复"])),
            "none": Outbox(np.array([], np.uint32), rows([])),
        },
    )
    assert read_inbox([tmp_path / "a"], "numbers", 4_000_000_000).column("v").to_pylist() == [1]
    assert read_inbox([tmp_path / "a"], "texts", 3).to_pylist() == [{"v": 7, "t": "重复"}]
    empty = read_inbox([tmp_path / "a"], "none", 0)
    assert (empty.num_rows, empty.column_names) == (0, ["v"])
    assert read_inbox([tmp_path / "a"], "texts", 0).schema.names == ["v", "t"]


def test_channel_that_nobody_wrote_has_no_columns(tmp_path):
    write_outbox(tmp_path / "a", {})
    got = read_inbox([tmp_path / "a"], "x", 0)
    assert (got.num_rows, got.num_columns) == (0, 0)
    assert read_inbox([], "x", 0).num_columns == 0


def test_a_producer_with_nothing_to_say_is_fine(tmp_path):
    write_outbox(tmp_path / "a", {})
    write_outbox(tmp_path / "b", {"x": Outbox(1, rows([8]))})
    assert read_inbox([tmp_path / "a", tmp_path / "b"], "x", 1).column("v").to_pylist() == [8]


def test_bytes_are_a_function_of_the_rows(tmp_path):
    addresses = np.array([2, 0, 2, 1])
    values, texts = [1, 2, 3, 4], ["a", "好", "", "d"]
    whole = rows(values, texts)
    cut = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    digests = set()
    for i, table in enumerate((whole, cut)):
        for channels in (("x", "y"), ("y", "x")):
            path = tmp_path / f"{i}{channels[0]}"
            write_outbox(path, {c: Outbox(addresses, table) for c in channels})
            digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_groups_that_span_chunks_and_nulls(tmp_path):
    table = pa.concat_tables(
        [pa.table({"v": pa.array([1, None], pa.int64())}), pa.table({"v": pa.array([3, 4])})]
    )
    write_outbox(tmp_path / "a", {"x": Outbox(np.array([0, 1, 1, 2]), table)})
    assert read_inbox([tmp_path / "a"], "x", 1).column("v").to_pylist() == [None, 3]
    write_outbox(tmp_path / "b", {"x": Outbox(0, table)})
    assert read_inbox([tmp_path / "b"], "x", 0).column("v").num_chunks == 1


def test_reads_do_not_copy(tmp_path):
    write_outbox(tmp_path / "a", {"x": Outbox(0, rows(np.arange(1 << 20)))})
    before = pa.total_allocated_bytes()
    got = read_inbox([tmp_path / "a"], "x", 0)
    assert pa.total_allocated_bytes() - before < 1 << 16
    assert got.column("v").to_numpy()[-1] == (1 << 20) - 1


def test_refuses_wrong_addresses_and_foreign_files(tmp_path):
    with pytest.raises(ValueError, match="addresses for 2 rows"):
        write_outbox(tmp_path / "a", {"x": Outbox(np.array([1]), rows([1, 2]))})
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").write_bytes(b"not an outbox at all, but long enough to have a tail")
    with pytest.raises(ValueError, match="not a complete outbox"):
        read_inbox([tmp_path / "b"], "x", 0)
    write_outbox(tmp_path / "c", {"x": Outbox(0, rows([1]))})
    write_outbox(tmp_path / "d", {"x": Outbox(0, rows([1], ["t"]))})
    with pytest.raises(ValueError, match="another schema"):
        read_inbox([tmp_path / "c", tmp_path / "d"], "x", 0)


def test_who_a_channel_is_for(tmp_path):
    boxes = {
        "one": Outbox(7, rows([1, 2])),
        "same": Outbox(np.array([3, 3]), rows([1, 2])),
        "many": Outbox(np.array([3, 4]), rows([1, 2])),
        "none": Outbox(5, rows([])),
    }
    assert write_outbox(tmp_path / "a", boxes) == {"one": 7, "same": 3, "many": MANY, "none": NOBODY}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=5))
def test_a_merged_outbox_reads_as_the_many_do(tmp_path_factory, producers):
    folder = tmp_path_factory.mktemp("merged")
    paths = []
    for number, addresses in enumerate(producers):
        values = np.arange(len(addresses)) + 100 * number
        texts = [f"字{v}" for v in values]
        paths.append(folder / str(number))
        write_outbox(paths[-1], {"x": Outbox(np.array(addresses, np.uint32), rows(values, texts)), "y": Outbox(0, rows([1]))})
    merged = folder / "merged"
    used = {address for addresses in producers for address in addresses}
    whom = next(iter(used)) if len(used) == 1 else MANY if used else NOBODY
    assert merge_outboxes(merged, paths, "x") == {"x": whom}
    for address in range(7):
        assert read_inbox([merged], "x", address).to_pylist() == read_inbox(paths, "x", address).to_pylist()
        assert read_inbox([merged], "x", address).schema == read_inbox(paths, "x", address).schema
    assert read_inbox([merged], "y", 0).num_columns == 0


def test_producers_that_disagree_are_not_merged(tmp_path):
    write_outbox(tmp_path / "a", {"x": Outbox(0, rows([1]))})
    write_outbox(tmp_path / "b", {"x": Outbox(0, rows([1], ["t"]))})
    with pytest.raises(ValueError, match=r"b: channel x has another schema"):
        merge_outboxes(tmp_path / "c", [tmp_path / "a", tmp_path / "b"], "x")
