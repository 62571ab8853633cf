from __future__ import annotations

import hashlib
import os
import stat

import pytest

from stages.contract.files import TEMPORARY, atomic_file, fsync_folder, sha256_file, write_atomic


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "deep" / "manifest.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["manifest.json"]


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail_half_way() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_nothing_is_seen_under_the_name_before_the_end(tmp_path):
    path = tmp_path / "a"
    with atomic_file(path) as file:
        file.write(b"abc")
        file.flush()
        assert [name.startswith(TEMPORARY) for name in os.listdir(tmp_path)] == [True]
        file.seek(0)
        file.write(b"X")
    assert path.read_bytes() == b"Xbc"


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"keep")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"keep"
    assert (tmp_path / "link").read_bytes() == b"new"


def test_the_mode_follows_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_digest_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 300_000)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"x" * 300_000).hexdigest()
    fsync_folder(tmp_path)
