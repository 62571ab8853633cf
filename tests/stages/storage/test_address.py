"""An address behaves as the path that it stands for."""

from __future__ import annotations

import pickle
from pathlib import Path, PurePosixPath

import pytest

from stages.storage.address import Address, SealedAddress, is_address, located


def test_what_is_an_address() -> None:
    assert located("s3://b/a") == Address("s3://b/a")
    assert located("/data/a") == Path("/data/a")
    assert located("file:///data/a") == Path("/data/a")
    assert not is_address("C:/data")
    assert not is_address("zip.gz")


def test_names() -> None:
    one = Address("s3://bucket/out") / "shards/web" / "00000.tok"
    assert str(one) == "s3://bucket/out/shards/web/00000.tok"
    assert (one.name, one.stem, one.suffix) == ("00000.tok", "00000", ".tok")
    assert str(one.parent) == "s3://bucket/out/shards/web"
    assert one.relative_to(Address("s3://bucket/out")) == PurePosixPath("shards/web/00000.tok")
    assert pickle.loads(pickle.dumps(one)) == one
    assert isinstance(SealedAddress("s3://b/data") / "x", SealedAddress)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    folder = Address(f"memory://{tmp_path.name}")
    assert not folder.exists()
    (folder / "a/one.txt").write_bytes(b"0123456789")
    (folder / "two.txt").write_bytes(b"two")
    assert folder.is_dir()
    assert (folder / "two.txt").is_file()
    assert [path.name for path in folder.iterdir()] == ["a", "two.txt"]
    assert [path.name for path in folder.glob("*.txt")] == ["two.txt"]
    assert [path.name for path in folder.rglob("*.txt")] == ["one.txt", "two.txt"]
    assert (folder / "a/one.txt").read_range(2, 5) == b"234"
    assert (folder / "a/one.txt").read_ranges([(0, 1), (8, 20)]) == [b"0", b"89"]
    with (folder / "a/one.txt").open() as file:
        file.seek(-3, 2)
        assert file.read() == b"789"
    assert (folder / "two.txt").local().read_bytes() == b"two"
    (folder / "two.txt").write_bytes(b"new content")
    assert (folder / "two.txt").local().read_bytes() == b"new content"
    (folder / "two.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "two.txt").stat()
    (folder / "two.txt").unlink(missing_ok=True)
