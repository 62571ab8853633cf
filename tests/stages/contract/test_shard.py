"""Shards: the dtype follows the vocabulary, nothing is cast in silence, lengths count the end token."""

from __future__ import annotations

import errno
import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.problem import RunError
from stages.contract.shard import (
    INDEX,
    Documents,
    TokenFile,
    check_file,
    check_shard_content,
    read_index,
    read_tokens,
    token_dtype,
    write_shard,
)

EOS = 3


def documents(*texts, ids=None, dtype=np.int64):
    tokens = np.array([token for text in texts for token in (*text, EOS)], dtype)
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    names = np.frombuffer(b"".join(bytes([i]) * 16 for i in range(len(texts))), "V16") if ids is None else ids
    return Documents(tokens, lengths, names)


def test_the_dtype_follows_the_vocabulary():
    assert token_dtype(1).str == "<u2"
    assert token_dtype(65_536).str == "<u2"
    assert token_dtype(65_537).str == "<u4"
    with pytest.raises(ValueError, match="no token type"):
        token_dtype(0)


def test_each_slice_is_its_document_and_ends_with_one_end_token(tmp_path):
    texts = [[5], [], [6, 7, 8], [9] * 50]
    facts = write_shard(tmp_path / "00000", [documents(*texts[:2]), documents(*texts[2:])], 100, EOS)
    records = read_index(tmp_path / "00000.idx", facts.tokens)
    start = 0
    for text, length in zip(texts, records["length"], strict=True):
        assert read_tokens(tmp_path / "00000.tok", np.dtype("<u2"), start, int(length)).tolist() == [
            *text,
            EOS,
        ]
        start += int(length)
    assert start == facts.tokens == 58
    assert facts.documents == 4
    assert facts.largest_id == 9
    assert facts.tok.bytes == 116
    assert facts.idx.bytes == 80


def test_the_facts_are_those_of_the_files(tmp_path):
    facts = write_shard(tmp_path / "a", [documents([5, 6], [7])], 70_000, EOS)
    for kind, file in (("tok", facts.tok), ("idx", facts.idx)):
        data = (tmp_path / f"a.{kind}").read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)
    assert (tmp_path / "a.tok").read_bytes() == np.array([5, 6, 3, 7, 3], "<u4").tobytes()
    assert np.frombuffer((tmp_path / "a.idx").read_bytes(), INDEX)["id"][1].tobytes() == b"\1" * 16


def test_a_high_id_of_a_large_vocabulary_survives(tmp_path):
    facts = write_shard(tmp_path / "a", [documents([70_000])], 70_001, EOS)
    assert facts.largest_id == 70_000
    assert read_tokens(tmp_path / "a.tok", np.dtype("<u4"), 0, 1).tolist() == [70_000]


def test_an_empty_shard_is_two_empty_files(tmp_path):
    facts = write_shard(tmp_path / "a", [], 100, EOS)
    assert (facts.documents, facts.tokens, facts.largest_id, facts.tok.bytes) == (0, 0, -1, 0)
    assert len(read_index(tmp_path / "a.idx", 0)) == 0
    assert check_shard_content(tmp_path / "a", 0, 0, 100, EOS) == []


def wrong(**changes):
    good = documents([5, 6], [7])
    return Documents(**{"tokens": good.tokens, "lengths": good.lengths, "ids": good.ids, **changes})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (wrong(tokens=np.array([70_000, 6, 3, 7, 3])), "70,000 is not in a vocabulary of 100"),
        (wrong(tokens=np.array([-1, 6, 3, 7, 3])), "-1 is not in a vocabulary"),
        (wrong(tokens=np.array([5, 6, 3, 7, 8])), "exactly once, at its end"),
        (wrong(tokens=np.array([5, 3, 3, 7, 3])), "exactly once, at its end"),
        (wrong(lengths=np.array([2, 3])), "exactly once, at its end"),
        (wrong(lengths=np.array([3, 3])), "add up to 6, but there are 5"),
        (wrong(lengths=np.array([5, 0])), "at least its EOS"),
        (wrong(ids=np.zeros(1, "V16")), "2 lengths but 1 document ids"),
        (wrong(tokens=np.array([5.0, 6, 3, 7, 3])), "must be integers"),
    ],
)
def test_what_breaks_the_format_is_refused_and_leaves_nothing(tmp_path, batch, message):
    with pytest.raises(ValueError, match=message):
        write_shard(tmp_path / "a", [documents([9]), batch], 100, EOS)
    assert os.listdir(tmp_path) == []


def test_an_id_that_needs_the_last_place_of_two_bytes_fits(tmp_path):
    write_shard(tmp_path / "a", [documents([65_535], dtype=np.int64)], 65_536, EOS)
    assert read_tokens(tmp_path / "a.tok", np.dtype("<u2"), 0, 2).tolist() == [65_535, EOS]


def test_reading_past_the_end_names_file_and_sizes(tmp_path):
    write_shard(tmp_path / "a", [documents([5, 6])], 100, EOS)
    with (
        TokenFile(tmp_path / "a.tok", np.dtype("<u2")) as file,
        pytest.raises(RunError, match=r"end at byte 8, it has 6"),
    ):
        file.read(2, 2)
    with pytest.raises(RunError, match=r"b\.tok cannot be read"):
        read_tokens(tmp_path / "b.tok", np.dtype("<u2"), 0, 1)


def test_checks_find_each_kind_of_damage(tmp_path):
    facts = write_shard(tmp_path / "a", [documents([5, 6], [7])], 100, EOS)
    tok, idx = tmp_path / "a.tok", tmp_path / "a.idx"
    assert check_file(tok, facts.tok, deep=True) is None
    assert check_shard_content(tmp_path / "a", 2, 5, 100, EOS) == []

    original = tok.read_bytes()
    tok.write_bytes(original[:-2])
    found = check_file(tok, facts.tok, deep=False)
    assert found is not None
    assert "has 8 bytes, but the manifest states 10" in found.message

    tok.write_bytes(np.array([5, 200, 3, 3, 3], "<u2").tobytes())
    assert check_file(tok, facts.tok, deep=False) is None
    found = check_file(tok, facts.tok, deep=True)
    assert found is not None
    assert "SHA-256" in found.message
    messages = " ".join(problem.message for problem in check_shard_content(tmp_path / "a", 2, 5, 100, EOS))
    assert "holds id 200" in messages
    assert "3 end tokens, 2 of them at the end" in messages

    tok.write_bytes(original)
    records = np.frombuffer(idx.read_bytes(), INDEX).copy()
    records["length"] = [2, 3]
    idx.write_bytes(records.tobytes())
    assert "1 of them at the end" in check_shard_content(tmp_path / "a", 2, 5, 100, EOS)[0].message
    records["length"] = [3, 3]
    idx.write_bytes(records.tobytes())
    assert (
        "add up to 6 tokens, but the manifest states 5"
        in check_shard_content(tmp_path / "a", 2, 5, 100, EOS)[0].message
    )
    idx.write_bytes(records.tobytes()[:-1])
    assert "no whole number" in check_shard_content(tmp_path / "a", 2, 5, 100, EOS)[0].message
    tok.unlink()
    missing = check_file(tok, facts.tok, deep=False)
    assert missing is not None
    assert "is missing" in missing.message


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(4, 99), max_size=20), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_how_documents_are_batched_does_not_change_a_byte(tmp_path_factory, texts, cuts):
    folder = tmp_path_factory.mktemp("shard")
    ids = np.frombuffer(b"".join(bytes([i]) * 16 for i in range(len(texts))), "V16")
    edges = sorted({0, len(texts), *(min(cut, len(texts)) for cut in cuts)})
    parts = [
        documents(*texts[a:b], ids=ids[a:b])
        for a, b in zip(edges, edges[1:], strict=False)  # noqa: RUF007
    ]
    one = write_shard(folder / "one", [documents(*texts, ids=ids)] if texts else [], 100, EOS)
    assert write_shard(folder / "many", parts, 100, EOS) == one


@pytest.mark.parametrize("read", ["read", "read_many"])
def test_a_disk_that_fails_while_tokens_are_read_is_named(tmp_path, monkeypatch, read):
    path = tmp_path / "00000.tok"
    path.write_bytes(bytes(200))

    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    with TokenFile(path, np.dtype("<u2")) as file:
        monkeypatch.setattr(os, "preadv", failing)
        with pytest.raises(RunError, match="tok cannot be read: Input/output error"):
            file.read(3, 20) if read == "read" else file.read_many([3], [20], np.empty(20, "<u2"))
