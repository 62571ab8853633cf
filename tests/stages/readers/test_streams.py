"""Compressed files: read whole, and damage that is never taken for an end."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
from pathlib import Path

import pytest
import zstandard

from stages.readers import line_number
from tests.stages.readers.reading import read

PACK = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
RECORDS = b"".join(
    b'{"id":%d,"text":"%s"}\n' % (i, random.Random(i).randbytes(40).hex().encode()) for i in range(3_000)
)


@pytest.fixture(params=PACK)
def suffix(request) -> str:
    return request.param


def write(folder: Path, suffix: str, content: bytes) -> Path:
    path = folder / f"a.jsonl{suffix}"
    path.write_bytes(content)
    return path


def test_the_same_documents_come_out_of_every_compression(tmp_path, suffix):
    packed = read(write(tmp_path, suffix, PACK[suffix](RECORDS)), uri="a.jsonl")
    plain = read(write(tmp_path, "", RECORDS))
    assert packed.column("id") == plain.column("id")
    assert packed.texts == plain.texts
    assert packed.counters["bytes"] == len(RECORDS)


def test_members_one_after_the_other_are_one_stream(tmp_path, suffix):
    cut = len(RECORDS) // 2 + 7  # in the middle of a record
    pack = PACK[suffix]
    outcome = read(write(tmp_path, suffix, pack(RECORDS[:cut]) + pack(b"") + pack(RECORDS[cut:])))
    assert len(outcome.texts) == 3_000
    assert outcome.damaged is None


def test_nothing_compressed_is_an_empty_file_and_nothing_at_all_is_damage(tmp_path, suffix):
    empty = read(write(tmp_path, suffix, PACK[suffix](b"")))
    assert (empty.texts, empty.damaged) == ([], None)
    nothing = read(write(tmp_path, suffix, b""))
    assert nothing.damaged is not None
    assert nothing.damaged.reason == "truncated"


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.6, 0.9999])
def test_a_cut_file_gives_its_good_records_and_says_so(tmp_path, suffix, share):
    packed = PACK[suffix](RECORDS)
    outcome = read(write(tmp_path, suffix, packed[: max(int(len(packed) * share), 1)]))
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "truncated"
    assert outcome.rejects == []
    if suffix == ".gz":
        assert len(outcome.texts) >= int(3_000 * share) - 40
    if suffix != ".bz2":
        assert share < 0.5 or len(outcome.texts) > 500


def test_bytes_behind_the_end_are_damage(tmp_path, suffix):
    outcome = read(write(tmp_path, suffix, PACK[suffix](RECORDS) + b"GARBAGE that is no member"))
    assert len(outcome.texts) == 3_000
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "trailing-bytes"


def test_zeros_behind_a_gzip_member_are_padding(tmp_path):
    outcome = read(write(tmp_path, ".gz", gzip.compress(RECORDS) + bytes(100_000)))
    assert (len(outcome.texts), outcome.damaged) == (3_000, None)


def test_a_wrong_checksum_loses_no_record_before_it(tmp_path):
    packed = bytearray(gzip.compress(RECORDS))
    packed[-6] ^= 1
    outcome = read(write(tmp_path, ".gz", bytes(packed)))
    assert len(outcome.texts) == 3_000
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "corrupt"


def test_a_wrong_zstd_checksum_is_noticed(tmp_path):
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(RECORDS))
    packed[-1] ^= 1
    outcome = read(write(tmp_path, ".zst", bytes(packed)))
    assert outcome.damaged is not None
    assert outcome.damaged.reason == "corrupt"


def test_a_flipped_bit_is_noticed_and_what_came_before_is_right(tmp_path):
    packed = bytearray(gzip.compress(RECORDS))
    packed[len(packed) // 2] ^= 0x10
    outcome = read(write(tmp_path, ".gz", bytes(packed)))
    assert outcome.damaged is not None
    whole = read(write(tmp_path, "", RECORDS)).texts
    assert outcome.texts[:1_000] == whole[:1_000]


def test_a_name_that_lies_is_damage(tmp_path, suffix):
    plain = read(write(tmp_path, suffix, RECORDS))
    assert plain.damaged is not None
    assert plain.damaged.reason == "wrong-format"


def test_compressed_data_under_a_plain_name_is_damage_with_advice(tmp_path):
    for suffix in (".gz", ".zst"):
        outcome = read(write(tmp_path, "", PACK[suffix](RECORDS)))
        assert outcome.damaged is not None
        assert suffix in outcome.damaged.detail
        assert outcome.rejects == []


def test_zstd_of_a_stream_and_skippable_frames(tmp_path):
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(RECORDS) + stream.flush()
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    outcome = read(write(tmp_path, ".zst", skippable + packed + skippable))
    assert (len(outcome.texts), outcome.damaged) == (3_000, None)


def test_a_bomb_does_not_fill_the_memory(tmp_path):
    import resource

    packed = zstandard.compress(b'{"text":"' + b"0" * (300 << 20) + b'"}\n', 19)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = read(write(tmp_path, ".zst", packed), max_document=1 << 20)
    assert outcome.reasons == ["too-large"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_the_line_of_a_place(tmp_path, suffix):
    path = str(write(tmp_path, suffix, PACK[suffix](b"a\n\nb\nc")))
    assert [line_number(path, offset) for offset in (0, 1, 2, 3, 4, 5, 99)] == [1, 1, 2, 3, 3, 4, 4]


def test_a_missing_or_locked_file_is_an_error_of_the_world(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.jsonl.gz")
    if os.getuid():
        path = write(tmp_path, ".gz", gzip.compress(RECORDS))
        path.chmod(0)
        with pytest.raises(PermissionError):
            read(path)


def test_any_fsspec_address(tmp_path):
    import fsspec

    with fsspec.open("memory://bucket/a.jsonl.gz", "wb") as file:
        file.write(gzip.compress(RECORDS))
    assert len(read("memory://bucket/a.jsonl.gz").texts) == 3_000
