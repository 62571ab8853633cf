"""Where a file may be cut, so that several tasks read it."""

from __future__ import annotations

from stages.readers.guess import compression_of, is_url
from stages.readers.members import has_members
from stages.readers.record import MIB, DamagedStream
from stages.readers.streams import frames_of, open_stored, stored_size

Ranges = list[tuple[int, int | None]]
WHOLE: Ranges = [(0, None)]
#: A web archive is cut into few large pieces, because each reader goes over what is in front of its own (`warc.py`).
_ARCHIVE_PIECES, _ARCHIVE_PIECE = 4, 4
#: An archive counts as one of many members if so many end within so many bytes.
_MEMBERS, _MEMBERS_WITHIN = 3, 64 * MIB


def split_points(path: str, format: str, target_bytes: int) -> Ranges:
    """Ranges `[(start, end), …]` for `FileSlice`, each about `target_bytes` of decompressed content.

    They follow each other and the last has no end. `[(0, None)]` means that the file cannot be cut, need
    not be, or is damaged (then its one reader says so). A pure function of the file and the target.
    """
    if format in ("jsonl", "lines"):
        compression = compression_of(path)
        if compression is None:
            return _bytes(stored_size(path), target_bytes)
        return _frames(path, target_bytes) if compression == "zstd" else WHOLE
    if format in ("warc", "wet"):
        return _members(path, target_bytes)
    try:
        if format == "parquet":
            return _row_groups(path, target_bytes)
        if format == "arrow":
            return _record_batches(path, target_bytes)
    except DamagedStream:
        return WHOLE
    return WHOLE


def _bytes(size: int, target: int) -> Ranges:
    return _even(size, max(round(size / target), 1))


def _even(size: int, parts: int) -> Ranges:
    return _ranges([size * part // parts for part in range(parts)])


def _members(path: str, target: int) -> Ranges:
    """At most `_ARCHIVE_PIECES` stretches of stored bytes, of `_ARCHIVE_PIECE` times the target or more."""
    pieces = min(stored_size(path) // (_ARCHIVE_PIECE * target), _ARCHIVE_PIECES)
    if pieces < 2 or not has_members(path, _MEMBERS, _MEMBERS_WITHIN):
        return WHOLE
    return _even(stored_size(path), pieces)


def _frames(path: str, target: int) -> Ranges:
    frames = frames_of(path)
    if frames is None:
        return WHOLE
    starts = _grouped([frame.content_end - frame.content for frame in frames], target)
    return _ranges([frames[start].stored for start in starts])


def _row_groups(path: str, target: int) -> Ranges:
    from stages.readers.tables import open_parquet

    with open_stored(path) as file:
        metadata = open_parquet(file).metadata
        sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    return _ranges(_grouped(sizes, target))


def _record_batches(path: str, target: int) -> Ranges:
    """Arrow does not tell the sizes of its batches without reading them, so they count as equal."""
    import pyarrow as pa
    import pyarrow.ipc as ipc

    from stages.readers.tables import arrow_faults, is_arrow_file

    with open_stored(path) as file:
        if not is_arrow_file(file):
            return WHOLE
        size = file.seek(0, 2)
        with arrow_faults():
            number = ipc.open_file(file if is_url(path) else pa.memory_map(path)).num_record_batches
    return _ranges(_grouped([size // max(number, 1)] * number, target))


def _grouped(sizes: list[int], target: int) -> list[int]:
    """Indices at which a group of neighbours starts; a group closes once it has reached the target."""
    starts = [0]
    held = 0
    for index, size in enumerate(sizes):
        if held >= target:
            starts.append(index)
            held = 0
        held += size
    return starts


def _ranges(starts: list[int]) -> Ranges:
    return list(zip(starts, [*starts[1:], None], strict=True))
