"""How input files become tasks."""

from __future__ import annotations

import gzip

from pipeline.engine import inputs
from pipeline.engine.origin import digest_slice
from stages.readers import FileSlice, ReadSettings
from tests.stages.readers.archives import PAGE, http, record, write


def test_a_large_archive_is_read_by_four_tasks_of_many_parts(tmp_path, monkeypatch):
    path = write(tmp_path / "a.warc.gz", *[record(http(PAGE * (n % 9))) for n in range(200)])
    size = path.stat().st_size
    monkeypatch.setattr(inputs, "TASK_BYTES", size // 16)
    tasks = inputs.cut("web", [(str(path), "a.warc.gz", size, 0)], ReadSettings("web"))
    ranges = [(task.slices[0].slice.start, task.slices[0].slice.end) for task in tasks]
    assert ranges == [(0, size // 4), (size // 4, size // 2), (size // 2, size * 3 // 4), (size * 3 // 4, None)]
    assert all(task.long for task in tasks)
    assert abs(sum(task.bytes for task in tasks) - size) <= size * 3 // 4  # the last one has no end of its own


def test_what_is_in_front_of_a_piece_of_an_archive_belongs_to_its_digest(tmp_path):
    path = tmp_path / "a.warc.gz"
    digests = []
    for first in (b"one", b"two"):
        path.write_bytes(gzip.compress(record(first), mtime=0) + gzip.compress(record(b"same"), mtime=0))
        size = path.stat().st_size
        digests.append(digest_slice(FileSlice(str(path), "a.warc.gz", size // 2, None), None))
    assert digests[0] != digests[1]
