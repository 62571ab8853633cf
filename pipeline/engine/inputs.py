"""From the sources of a config to tasks: which files there are and how they are cut.

The cut is a function of the files and the config alone, never of the number of workers. Small files are bundled
in path order; a bundle closes at 64 MiB, or at a path whose hash says so, and therefore one added file changes
one or two bundles and not all those behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.engine.origin import InputSlice
from stages.contract.names import digest
from stages.readers import FileSlice, ReadSettings, compression_of, guess_format, split_points

TASK_BYTES = 64 << 20
#: Bytes of text for each byte of a compressed input, about (82 MB of mixed text as zstd: 4.2).
EXPANSION = 4
BUNDLE_STOP = 64  # on average a bundle closes after so many files


@dataclass(frozen=True, slots=True)
class InputTask:
    """One stretch of work at the inputs: a slice of a large file or a bundle of small ones.

    long  it may be much larger than `TASK_BYTES`, so the task makes several parts
    """

    source: str
    slices: tuple[InputSlice, ...]
    long: bool = False

    @property
    def name(self) -> str:
        """For people."""
        first = self.slices[0].slice
        if len(self.slices) > 1:
            return f"{self.source}: {first.uri} and {len(self.slices) - 1} more"
        return f"{self.source}: {first.uri}" + (
            f" [{first.start}:{first.end}]" if first.start or first.end else ""
        )

    @property
    def bytes(self) -> int:
        """Stored bytes, about."""
        return sum(
            (s.slice.end or s.size) - s.slice.start if s.slice.end and s.slice.end <= s.size else s.size
            for s in self.slices
        )

    def key(self, settings: str) -> str:
        """The place of this work: source settings and the stretches of files, not their content."""
        stretches = [f"{s.slice.uri}\0{s.slice.start}\0{s.slice.end}" for s in self.slices]
        return digest("read", settings, self.source, *stretches)


@dataclass
class SourceInputs:
    """What the listing of one source found."""

    source: str
    settings: ReadSettings
    tasks: list[InputTask] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # reason -> files left out
    unsplittable: list[tuple[str, int]] = field(
        default_factory=list
    )  # (uri, bytes) of large files in one piece

    @property
    def text_bytes(self) -> int:
        """Bytes of text, about: stored bytes, unpacked by the usual factor."""
        slices = [s for task in self.tasks for s in task.slices]
        files = {(s.slice.path, s.size, compression_of(s.slice.uri) is not None) for s in slices}
        return sum(size * (EXPANSION if packed else 1) for _, size, packed in files)


def cut(source: str, files: Sequence[tuple[str, str, int, int]], settings: ReadSettings) -> list[InputTask]:
    """Tasks for `(path, uri, size, mtime_ns)` files, which come in the order of their uri."""
    tasks: list[InputTask] = []
    bundle: list[InputSlice] = []

    def close() -> None:
        if bundle:
            tasks.append(InputTask(source, tuple(bundle)))
            bundle.clear()

    for path, uri, size, mtime in files:
        if size > TASK_BYTES:
            close()
            format_name = settings.format or guess_format(uri)
            stretches = split_points(path, format_name or "", TASK_BYTES)
            long = len(stretches) == 1 or format_name in ("warc", "wet")  # those are cut into few pieces
            for start, end in stretches:
                piece = InputSlice(FileSlice(path=path, uri=uri, start=start, end=end), size, mtime)
                tasks.append(InputTask(source, (piece,), long))
            continue
        if sum(s.size for s in bundle) + size > TASK_BYTES:
            close()
        bundle.append(InputSlice(FileSlice(path=path, uri=uri), size, mtime))
        if int(digest(uri)[:8], 16) % BUNDLE_STOP == 0:
            close()
    close()
    return tasks
