"""Which tokens stand where in which batch: a pure function of (plan, step). Its whole state is one integer.

A source is one stream of tokens, its shards in manifest order one behind the other. It is read in units: windows of
`longest` tokens, or packed rows of the length of the phase. Four maps lead from a slot of a batch to a unit, each
computed in O(1) (packed rows: O(log groups)) and each with an inverse:

    slot of a step  -> slot of the phase     a keyed permutation inside each batch (ranks get a random part)
    slot            -> (source, number c)    a tree of exact ratios: every batch holds its share of each source
    number c        -> (draw, sub-window)    shorter sequences are cut from windows, far apart in time
    draw            -> (epoch, unit)         a keyed permutation per epoch: `epochs.py`

Draws count on from phase to phase, so nothing is read again before everything has been read. Ranks only cut the
batch into ranges of slots; no world size enters. ORDER_VERSION freezes all of this: a change of any number here
is a new version, and the golden vectors in the tests hold it.

Steps of the run are those that are trained. Steps of the data count skipped ones too; batches are keyed by them, so
that skipping some leaves all others as they were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stages.contract.epochs import BLOCK, GROUP_WINDOW, WINDOW, RowEpochs, Rows, WindowEpochs
from stages.contract.interleave import Tree
from stages.contract.names import canonical_json, digest
from stages.contract.permutation import derive, key_of, permute

ORDER_VERSION = 1

#: One sequence of a batch: of source number `source` the `length` tokens from token `offset` of its stream on; with
#: packed rows, `offset` is the number of a row of that length.
SAMPLE = np.dtype([("source", "<i4"), ("offset", "<i8"), ("length", "<i8")])

#: One reading of a range or row: sequence `slot` of step `step` holds it; `offset`, `length` as in SAMPLE.
READING = np.dtype([("step", "<i8"), ("slot", "<i8"), ("offset", "<i8"), ("length", "<i8")])

#: Sub-windows of one unit are this many sequences apart.
GROUP = 1024


@dataclass(frozen=True)
class Source:
    """A source as the order sees it. `uid` alone keys its permutations, so other sources may come and go.

    units  windows of the longest length in one epoch; not looked at when it is read in `rows`
    rows   its packed rows by length; empty: it is read in windows
    """

    uid: str
    digest: str
    units: int
    rows: Mapping[int, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class Stretch:
    """A phase as the order sees it; `samples` (sequences of each source) add up to steps * batch.

    `used` is the number of its steps that the run has; None is all. A phase that was ended early keeps the order
    that it had, so what was read before stays what it was.
    """

    steps: int
    batch: int
    seq_len: int
    samples: tuple[int, ...]
    used: int | None = None

    @property
    def length(self) -> int:
        """Steps that the run has of it."""
        return self.steps if self.used is None else self.used


@dataclass(frozen=True)
class Piece:
    """Steps of one stretch that follow each other without a skip."""

    stretch: int
    first: int  # step of the run
    data: int  # the same step, counted with skipped ones
    steps: int


class Order:
    """The data order of a run. Raises ValueError where the numbers cannot be a plan.

    skip  ranges [a, b) of data steps that are passed over, in order, not touching each other
    """

    def __init__(
        self,
        seed: int,
        longest: int,
        sources: Sequence[Source],
        stretches: Sequence[Stretch],
        skip: Sequence[tuple[int, int]] = (),
        block: int = BLOCK,
        window: int = WINDOW,
    ) -> None:
        self.longest = longest
        self.stretches = tuple(stretches)
        self.sources = tuple(sources)
        self.packed = any(source.rows for source in sources)
        self._windows = WindowEpochs(block, window)
        self._rows = RowEpochs()
        self._layout_key = key_of("layout", ORDER_VERSION, seed)
        self._keys_S = np.array([key_of("source", ORDER_VERSION, seed, s.uid) for s in sources], np.uint64)
        by_uid = {s: rank for rank, s in enumerate(sorted(range(len(sources)), key=lambda s: sources[s].uid))}
        ranks = [by_uid[s] for s in range(len(sources))]
        for stretch in stretches:
            whole = self.packed or longest % stretch.seq_len == 0
            if not whole or sum(stretch.samples) != stretch.steps * stretch.batch or stretch.length > stretch.steps:
                raise ValueError(f"{stretch} is not a phase over units of {longest}")
        self._trees = [Tree(stretch.samples, ranks) for stretch in stretches]
        self._first_P1 = np.cumsum([0, *(stretch.length for stretch in stretches)], dtype=np.int64)
        self._layout()
        self.pieces = _pieces(self._first_P1.tolist(), skip)
        self._run_first = [piece.first for piece in self.pieces]
        self._data_first = [piece.data for piece in self.pieces]
        settings = {"order": ORDER_VERSION, "seed": seed, "group": GROUP}
        settings |= {"open": GROUP_WINDOW} if self.packed else {"block": block, "window": window}
        self.chain = _chain(settings, longest, self.sources, self.stretches, self.pieces)

    def _layout(self) -> None:
        """Units, draws and the first draw of each source in each phase, int64 of shape (P, S)."""
        shape = (len(self.stretches), len(self.sources))
        self._units_PS, self._drawn_PS, self._before_PS = (np.zeros(shape, np.int64) for _ in range(3))
        meter = Meter(len(self.sources))
        for p, stretch in enumerate(self.stretches):
            units_S = np.array([self._units(source, stretch.seq_len) for source in self.sources], np.int64)
            if np.any((np.array(stretch.samples) > 0) & (units_S == 0)):
                raise ValueError("a source without a single unit is asked for sequences")
            meter.begin(units_S)
            self._units_PS[p], self._before_PS[p] = np.maximum(meter.units_S, 1), meter.end_S
            self._drawn_PS[p] = meter.read(stretch, self._ratio(p), self._trees[p])

    def _units(self, source: Source, seq_len: int) -> int:
        """Units of one epoch of a source in a phase of this length; 0 where it has no rows of it."""
        if not self.packed:
            return source.units
        return source.rows[seq_len].total if seq_len in source.rows else 0

    def _ratio(self, p: int) -> int:
        """Sequences that a unit is cut into in phase p."""
        return 1 if self.packed else self.longest // self.stretches[p].seq_len

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return sum(piece.steps for piece in self.pieces)

    @property
    def data_steps(self) -> int:
        """Steps of the whole run, skipped ones too."""
        return int(self._first_P1[-1])

    def data_step(self, step: int) -> int:
        """The number of a step of the run when skipped ones are counted too. IndexError outside of the run."""
        piece = self.piece_of(step)
        return piece.data + step - piece.first

    def piece_of(self, step: int) -> Piece:
        """The piece that holds a step of the run. IndexError outside of the run."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a run of {self.steps}")
        return self.pieces[bisect_right(self._run_first, step) - 1]

    def batch_size(self, step: int) -> int:
        """Sequences in a step, over all ranks."""
        return self.stretches[self.piece_of(step).stretch].batch

    def batch_samples(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """The sequences that this rank reads in this step (0-based): dtype SAMPLE, in slot order.

        Rank r of R gets slots floor(r * batch / R) to floor((r + 1) * batch / R); IndexError outside of the run.
        """
        return self.samples(step, step + 1, rank, world)

    def samples(self, first: int, last: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """`batch_samples` of the steps first … last - 1, one behind the other. All must lie in one piece."""
        if not 0 <= rank < world:
            raise IndexError(f"rank {rank} of {world}")
        piece = self.piece_of(first)
        assert first < last <= piece.first + piece.steps
        p, stretch = piece.stretch, self.stretches[piece.stretch]
        slots = np.arange(rank * stretch.batch // world, (rank + 1) * stretch.batch // world, dtype=np.int64)
        data = np.arange(piece.data + first - piece.first, piece.data + last - piece.first, dtype=np.int64)
        steps = np.repeat(data, len(slots))
        keys = derive(np.full(len(steps), self._layout_key), steps)
        spread = permute(np.tile(slots, len(data)), stretch.batch, keys)
        return self._resolve(p, (steps - self._first_P1[p]) * stretch.batch + spread)

    def _resolve(self, p: int, slot: np.ndarray) -> np.ndarray:
        """The sequences of these slots of phase p."""
        seq_len = self.stretches[p].seq_len
        source, number = self._trees[p].descend(slot)
        draw, part = _cut(number, self._drawn_PS[p, source], self._ratio(p))
        units = self._units_PS[p, source]
        epoch, place = np.divmod(self._before_PS[p, source] + draw, units)
        keys = derive(self._keys_S[source], epoch)
        result = np.empty(len(slot), SAMPLE)
        result["source"] = source
        result["length"] = seq_len
        if not self.packed:
            unit = self._windows.forward(place, units, keys)
            result["offset"] = unit * self.longest + part * seq_len
            return result
        order = np.lexsort((epoch, source))
        borders = np.flatnonzero((np.diff(source[order]) != 0) | (np.diff(epoch[order]) != 0)) + 1
        for mine in np.split(order, borders) if len(order) else ():
            s = int(source[mine[0]])
            result["offset"][mine] = self._rows.forward(self.sources[s].rows[seq_len], place[mine], keys[mine[0]])
        return result

    def locate(self, source: int, start: int, end: int) -> np.ndarray:
        """Every reading of tokens start … end - 1 of a source's stream: dtype READING, by step and slot.

        For sources that are read in windows.
        """
        last = min(end, self.sources[source].units * self.longest)
        units = np.arange(start // self.longest, -(-last // self.longest), dtype=np.int64)
        found = [self._find(p, source, units) for p in range(len(self.stretches))]
        readings = np.concatenate([np.empty(0, READING), *found])
        readings = readings[(readings["offset"] < end) & (readings["offset"] + readings["length"] > start)]
        return readings[np.lexsort((readings["slot"], readings["step"]))]

    def locate_rows(self, source: int, seq_len: int, rows: np.ndarray) -> np.ndarray:
        """Every reading of these rows (int64) of a source: dtype READING, by step and slot."""
        found = [
            self._find(p, source, np.asarray(rows, np.int64))
            for p, stretch in enumerate(self.stretches)
            if stretch.seq_len == seq_len
        ]
        readings = np.concatenate([np.empty(0, READING), *found])
        return readings[np.lexsort((readings["slot"], readings["step"]))]

    def _find(self, p: int, source: int, units: np.ndarray) -> np.ndarray:
        """The readings of these units in phase p."""
        size = int(self._units_PS[p, source])
        first, drawn = int(self._before_PS[p, source]), int(self._drawn_PS[p, source])
        found = [np.empty(0, READING)]
        for epoch in range(first // size, -(-(first + drawn) // size)):
            key = derive(self._keys_S[[source]], epoch)
            if self.packed:
                rows = self.sources[source].rows[self.stretches[p].seq_len]
                draws = epoch * size + self._rows.backward(rows, units, key[0])
            else:
                draws = epoch * size + self._windows.backward(units, np.full(len(units), size), key)
            here = (draws >= first) & (draws < first + drawn)
            found.append(self._readings(p, source, units[here], draws[here] - first))
        return np.concatenate(found)

    def _readings(self, p: int, source: int, units: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Where phase p puts the sequences of these units, drawn as its draws number `draws`."""
        stretch = self.stretches[p]
        number, part, which = _uncut(draws, int(self._drawn_PS[p, source]), self._ratio(p))
        real = number < stretch.samples[source]
        number, part, which = number[real], part[real], which[real]
        step_of, spread = np.divmod(self._trees[p].ascend(source, number), stretch.batch)
        data = step_of + self._first_P1[p]
        result = np.empty(len(number), READING)
        result["slot"] = permute(
            spread, stretch.batch, derive(np.full(len(data), self._layout_key), data), inverse=True
        )
        result["offset"] = units[which] if self.packed else units[which] * self.longest + part * stretch.seq_len
        result["length"] = stretch.seq_len
        at = np.searchsorted(self._data_first, data, side="right") - 1
        pieces = [(piece.first, piece.data, piece.steps) for piece in self.pieces]
        first, start, steps = np.array(pieces, np.int64)[at].T if len(at) else np.empty((3, 0), np.int64)
        result["step"] = first + data - start
        return result[(at >= 0) & (data - start < steps) & (step_of < stretch.length)]


class Meter:
    """How far each source has been read, phase by phase.

    units_S  int64, units of an epoch in the phase that was begun last
    end_S    int64, draws so far, counted in those units
    """

    def __init__(self, sources: int) -> None:
        self.units_S = np.zeros(sources, np.int64)
        self.end_S = np.zeros(sources, np.int64)

    def begin(self, units_S: np.ndarray) -> None:
        """A phase in which epochs have `units_S` units; 0 where a source has none of its length and is not read.

        Where that number changes, draws go on from the same share of the epoch, rounded up. Packed rows of two
        lengths stand in groups of the same documents, and the groups come in the same order, so only rows of groups
        that are open at the change may be read once more or once less.
        """
        changed = (units_S > 0) & (self.units_S > 0) & (units_S != self.units_S)
        for s in np.flatnonzero(changed):  # in whole numbers of any size
            self.end_S[s] = -(-int(self.end_S[s]) * int(units_S[s]) // int(self.units_S[s]))
        self.units_S = np.where(units_S > 0, units_S, self.units_S)

    def read(self, stretch: Stretch, ratio: int, tree: Tree | None) -> np.ndarray:
        """Reads the phase and returns the draws it is planned for, int64 (S,). A phase that ends early needs its tree."""
        samples_S = np.array(stretch.samples, np.int64)
        drawn_S = -(-samples_S // ratio)
        if stretch.used is not None:
            assert tree is not None
            samples_S = tree.counts(stretch.used * stretch.batch)
        self.end_S = self.end_S + _units_read(samples_S, drawn_S, ratio)
        return drawn_S


def _units_read(count: np.ndarray, drawn: np.ndarray, ratio: int) -> np.ndarray:
    """How many units the first `count` sequences of a phase that draws `drawn` units are cut from."""
    group = count // (GROUP * ratio)
    rest = count - group * GROUP * ratio
    return group * GROUP + np.minimum(rest, np.minimum(GROUP, drawn - group * GROUP))


def _cut(number: np.ndarray, drawn: np.ndarray, ratio: int) -> tuple[np.ndarray, np.ndarray]:
    """`(draw, part)` of sequence `number` of a source: which unit of the phase, which of its `ratio` sub-windows.

    Units go in groups of GROUP; all first sub-windows of a group come before all second ones.
    """
    group = number // (GROUP * ratio)
    size = np.minimum(GROUP, drawn - group * GROUP)
    part, rest = np.divmod(number - group * GROUP * ratio, size)
    return group * GROUP + rest, part


def _uncut(draws: np.ndarray, drawn: int, ratio: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inverse of `_cut` for all parts: `(number, part, index into draws)`, each of length ratio * len(draws)."""
    which = np.repeat(np.arange(len(draws)), ratio)
    part = np.tile(np.arange(ratio, dtype=np.int64), len(draws))
    group, rest = np.divmod(draws[which], GROUP)
    size = np.minimum(GROUP, drawn - group * GROUP)
    return group * GROUP * ratio + part * size + rest, part, which


def _pieces(first_P1: Sequence[int], skip: Sequence[tuple[int, int]]) -> tuple[Piece, ...]:
    """The steps of each stretch without the skipped ones."""
    before = 0
    for a, b in skip:
        if not before <= a < b <= first_P1[-1]:
            raise ValueError(f"steps {a} to {b} cannot be skipped in a run of {first_P1[-1]}")
        before = b
    pieces: list[Piece] = []
    run = 0
    for p, (start, end) in enumerate(pairwise(first_P1)):
        inside = [(max(a, start), min(b, end)) for a, b in skip if a < end and b > start]
        for low, high in zip([start, *(b for _, b in inside)], [*(a for a, _ in inside), end], strict=True):
            if low < high:
                pieces.append(Piece(p, run, low, high - low))
                run += high - low
    if not pieces:
        raise ValueError("a run without a single step")
    return tuple(pieces)


def _chain(
    settings: Mapping[str, object],
    longest: int,
    sources: Sequence[Source],
    stretches: Sequence[Stretch],
    pieces: Sequence[Piece],
) -> tuple[str, ...]:
    """H_0 … H_P: H_i says everything that decides the order of the first i pieces.

    Resume compares H up to the piece it is in; what comes later may change freely. Where a piece ends before its
    stretch does, the link of the piece behind it says so.
    """
    links = [digest(canonical_json(settings))]
    begun, data = -1, 0
    for piece in pieces:
        words: list[bytes] = []
        if piece.data != data:
            words.append(canonical_json({"skipped": [data, piece.data]}))
        if piece.stretch != begun and begun >= 0 and stretches[begun].used is not None:
            words.append(canonical_json({"ended": stretches[begun].used}))
        for p in range(begun + 1, piece.stretch + 1):
            words += _stretch_words(longest, sources, stretches[p])
        links.append(digest(links[-1], *words))
        begun, data = piece.stretch, piece.data + piece.steps
    return tuple(links)


def _stretch_words(longest: int, sources: Sequence[Source], stretch: Stretch) -> list[bytes]:
    used = []
    for source, samples in zip(sources, stretch.samples, strict=True):
        if samples and source.rows:
            rows = source.rows[stretch.seq_len]
            used.append((source.uid, source.digest, rows.total, samples, rows.digest))
        elif samples:
            used.append((source.uid, source.digest, source.units, samples, ""))
    packed = any(source.rows for source in sources)
    unit = stretch.seq_len if packed else longest  # a later phase with longer rows changes nothing of an earlier one
    phase = {"steps": stretch.steps, "batch": stretch.batch, "seq_len": stretch.seq_len, "unit": unit}
    return [canonical_json(phase), canonical_json(sorted(used))]
