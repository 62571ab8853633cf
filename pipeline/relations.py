"""What must hold between the parts of a corpus.yaml, checked on its tree.

The tree is used and not the model, since a wrong type in one part must not hide a wrong name in another. What has the
wrong type is passed over here: that is said elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stages.contract.names import check_source_name
from stages.contract.problem import Problem
from stages.contract.scalars import read_share
from stages.contract.tree import Items, Path, Table, Text, path_text, place, value_at
from stages.contract.weights import ROUNDING, Phase, Weight
from stages.contract.wrong import name_repairs
from stages.storage.access import place_of

#: Files of a web archive that hold no text.
METADATA = re.compile(r"\.warc\.wat(\.(gz|zst))?$", re.IGNORECASE)


def relation_problems(tree: Table) -> list[Problem]:
    """Everything that the parts of the file, each right in itself, get wrong about each other."""
    weights = [*_mixes(tree), *_phase_sizes(tree)]
    checks = (_names, _stage_sources, _buckets, _tokenizer, _address, _stores, _not_built)
    others = [problem for check in checks for problem in check(tree)]
    return [*others, *(weights or _average(tree))]  # an average of wrong numbers says nothing


def _sources(tree: Table) -> dict[str, Any]:
    found = tree.get("sources")
    return found if isinstance(found, Table) else {}


def _members(tree: Table) -> dict[str, str]:
    """What a mix may name -> its source: the sources, and the buckets of those that have some (`web.0`)."""
    members = {name: name for name in _sources(tree)}
    buckets = tree.get("buckets")
    for name in members.copy() if isinstance(buckets, Table) else ():
        cuts = value_at(buckets, (name, "quantiles")) or value_at(buckets, (name, "edges"))
        if isinstance(cuts, Items):
            members |= {f"{name}.{index}": name for index in range(len(cuts) + 1)}
    return members


def _stores(tree: Table) -> Iterator[Problem]:
    """One place is opened in one way."""
    seen: dict[str, tuple[str, Any]] = {}
    for name, source in _sources(tree).items():
        options = value_at(source, ("storage_options",)) if isinstance(source, Table) else None
        if not isinstance(options, Table):
            continue
        where = place(tree, ("sources", name, "storage_options"), key=True)
        given = source.get("path")
        for at in [place_of(str(path)) for path in (given if isinstance(given, list) else [given]) if "://" in str(path)]:
            other, theirs = seen.setdefault(at, (name, options))
            if theirs != options:
                message = f"sources.{other} and sources.{name} open {at} with different storage_options"
                yield Problem("C017", message, where, ("give both the same",))


def _names(tree: Table) -> Iterator[Problem]:
    """Source names become folder names."""
    seen: dict[str, str] = {}
    for name in _sources(tree):
        where = place(tree, ("sources", name), key=True)
        sentence = check_source_name(name)
        if sentence is not None:
            yield Problem("C016", sentence, where)
        twin = seen.setdefault(name.casefold(), name)
        if twin != name:
            message = f"the source names `{twin}` and `{name}` differ in case only; they would be one folder on some disks"
            yield Problem("C016", message, where)
    buckets = tree.get("buckets")
    for name in buckets if isinstance(buckets, Table) else ():
        if name not in _sources(tree):
            yield _no_source(tree, name, ("buckets", name))
    if "mixed" in _sources(tree) and isinstance(value_at(tree, ("output", "mixture")), Table):
        message = "a source is called `mixed`, and so are the shards of a materialized mixture"
        yield Problem("C016", message, place(tree, ("sources", "mixed"), key=True), ("give the source another name",))


def _no_source(tree: Table, name: str, path: Path, names: Any = None, key: bool = True) -> Problem:
    repairs = name_repairs(name, _sources(tree) if names is None else names, "sources")
    inside = path_text(path[:-1])
    return Problem("C006", f"no source is called `{name}`, but {inside} names it", place(tree, path, key), repairs)


def _stage_sources(tree: Table) -> Iterator[Problem]:
    """`only`, `except` and what a stage learns from name sources that are there; not both of the first are given."""
    stages = tree.get("stages")
    for index, item in enumerate(stages if isinstance(stages, Items) else ()):
        settings = next(iter(item.values())) if isinstance(item, Table) and len(item) == 1 else None
        if not isinstance(settings, Table):
            continue
        at: Path = ("stages", index, next(iter(item)))
        for path in (("only",), ("except",), ("train", "good"), ("train", "bad")):
            named = value_at(settings, path)
            for number, name in enumerate(named if isinstance(named, Items) else ()):
                if isinstance(name, Text) and name not in _sources(tree):
                    yield _no_source(tree, name, (*at, *path, number), key=False)
        if settings.get("only") is not None and settings.get("except") is not None:
            message = f"{path_text(at)} has both `only` and `except`"
            yield Problem("C017", message, place(tree, (*at, "except"), key=True), ("keep one of the two",))


def _buckets(tree: Table) -> Iterator[Problem]:
    """A source is cut by quantiles or by edges, which rise; quantiles lie between 0 and 1."""
    buckets = tree.get("buckets")
    for name, settings in buckets.items() if isinstance(buckets, Table) else ():
        at: Path = ("buckets", name)
        if not isinstance(settings, Table):
            continue
        given = [word for word in ("quantiles", "edges") if isinstance(settings.get(word), Items)]
        if len(given) != 1:
            has = "has both quantiles and edges" if given else "has neither quantiles nor edges"
            message = f"{path_text(at)} {has}: one of the two says where {name} is cut"
            repairs = ("keep one of the two",) if given else ("write quantiles: [50%, 80%] for three buckets",)
            yield Problem("C017" if given else "C002", message, place(tree, at, key=True), repairs)
            continue
        cuts = [_cut_value(one) for one in settings[given[0]]]
        numbers = [one for one in cuts if one is not None]
        if len(numbers) < len(cuts):
            continue  # a cut that is no number: said by its type
        inside = given == ["edges"] or all(0 < one < 1 for one in numbers)
        if not cuts or not inside or any(a >= b for a, b in pairwise(numbers)):
            rule = "rise" if given == ["edges"] else "rise and lie between 0 % and 100 %"
            yield Problem("C005", f"{path_text((*at, given[0]))} must {rule}", place(tree, (*at, given[0])))


def _cut_value(value: Any) -> float | None:
    try:
        return read_share(value)
    except ValueError:
        try:
            return float(value)
        except (TypeError, ValueError):
            return None


def _mixes(tree: Table) -> Iterator[Problem]:
    """Each mix names sources that are there and adds up to 1; none is forgotten."""
    phases = [("phases", index, "mix") for index in range(_length(tree, "phases"))]
    every: list[Path] = [("mix",), ("tokenizer", "train_mix"), *phases]
    for path in every:
        mix = value_at(tree, path)
        if isinstance(mix, Table):
            yield from _one_mix(tree, mix, path)
    curriculum = [path for path in every if path[0] != "tokenizer" and isinstance(value_at(tree, path), Table)]
    given = [path for path in curriculum if path == ("mix",)] or curriculum
    members = _members(tree)
    weighted = {members[name] for path in given for name in value_at(tree, path) if name in members}
    for name in _sources(tree) if given else ():
        if name not in weighted:
            where = "mix" if given == [("mix",)] else "the mix of any phase"
            message = f"the source {name} has no weight in {where}"
            yield Problem("C018", message, place(tree, given[0], key=True), (f"write {name}: 0 to leave it out",))


def _one_mix(tree: Table, mix: Table, path: Path) -> Iterator[Problem]:
    members = _members(tree)
    for name in mix:
        source, _, bucket = name.rpartition(".")
        if name not in members and bucket.isdecimal() and source in members:
            message = f"{path_text(path)} names `{name}`, but {source} has no such bucket"
            yield Problem("C006", message, place(tree, (*path, name), key=True))
        elif name not in members:
            yield _no_source(tree, name, (*path, name), members)
        elif bucket.isdecimal() and source in mix:
            message = f"{path_text(path)} weights both `{source}` and its bucket `{name}`"
            yield Problem("C017", message, place(tree, (*path, name), key=True), ("keep one of the two",))
    weights = _weights(mix)
    if not weights or len(weights) < len(mix):
        return  # a weight that is no number: said by its type
    total = sum(weights.values())
    amounts = all(weight == 0 or weight >= 1 for weight in weights.values()) and total > 0
    if not amounts and abs(total - 1) > ROUNDING:
        scaled = ", ".join(f"{name}: {weight / total:.4g}" for name, weight in weights.items()) if total else ""
        repairs = (f"in the same ratio: {{{scaled}}}",) if scaled else ()
        message = f"the shares in {path_text(path)} add up to {total:.6g}, not 1"
        yield Problem("C007", message, place(tree, path, key=True), repairs)


def _phase_sizes(tree: Table) -> Iterator[Problem]:
    """Each phase has a share or tokens; shares add up to 1; the first cannot ramp."""
    shares: list[Decimal] = []
    names: set[str] = set()
    count = _length(tree, "phases")
    for index in range(count):
        at: Path = ("phases", index)
        phase = value_at(tree, at)
        if not isinstance(phase, Table):
            continue
        name, share = phase.get("name"), phase.get("share")
        if share is not None and phase.get("tokens") is not None:
            message = f"{path_text(at)} has both a share and tokens"
            yield Problem("C017", message, place(tree, (*at, "tokens"), key=True), ("keep one of the two",))
        if index == 0 and phase.get("ramp") is not None and _share(phase["ramp"]):
            message = "phases[0] cannot ramp: no phase comes before it"
            yield Problem("C017", message, place(tree, (*at, "ramp"), key=True), ("remove ramp",))
        if isinstance(name, Text) and name in names:
            yield Problem("C017", f"two phases are called `{name}`", name.where, ("give one another name",))
        names.add(str(name))
        exact = _share(share)
        shares += [exact] if exact is not None else []
    if count and len(shares) == count and abs(sum(shares, Decimal(0)) - 1) > Decimal(str(ROUNDING)):
        message = f"the shares of the phases add up to {float(sum(shares)):.6g}, not 1"
        yield Problem("C007", message, place(tree, ("phases",), key=True))


def _average(tree: Table) -> Iterator[Problem]:
    """A mix that is given next to phases agrees with their average, to half a point."""
    mix = tree.get("mix")
    if not isinstance(mix, Table) or not _length(tree, "phases"):
        return
    asked = _by_source(tree, _weights(mix))
    try:
        phases = [TypeAdapter(Phase).validate_python(phase) for phase in tree["phases"]]
    except ValidationError:
        return
    if any(phase.share is None for phase in phases):
        return
    mixes = [_by_source(tree, phase.mix) if phase.mix is not None else asked for phase in phases]
    for name in _sources(tree):
        wanted, found = asked.get(name, 0.0), _integral(name, phases, mixes)
        if abs(wanted - found) > ROUNDING + 1e-9:
            message = f"mix gives {name} {wanted:.2%}, but the phases average to {found:.2%}"
            where = place(tree, ("mix", name)) or place(tree, ("mix",), key=True)
            yield Problem("M002", message, where, (f"write {name}: {found:.4g}", "or leave mix out: the phases say it"))


def _integral(name: str, phases: Sequence[Phase], mixes: Sequence[Mapping[str, float]]) -> float:
    """The share of a source over all phases. A ramp is linear, so it counts half of the mix before."""
    total = 0.0
    before = mixes[0]
    for phase, mix in zip(phases, mixes, strict=True):
        start, end = before.get(name, 0.0), mix.get(name, 0.0)
        total += (phase.share or 0.0) * (end - phase.ramp / 2 * (end - start))
        before = mix
    return total


def _tokenizer(tree: Table) -> Iterator[Problem]:
    """A tokenizer that is there already is not trained."""
    section = tree.get("tokenizer")
    if not isinstance(section, Table) or section.get("path") is None:
        return
    for key in ("vocab_size", "train_on", "train_mix", "pattern", "digits", "split_han", "special_tokens"):
        if section.get(key) is not None:
            message = f"tokenizer has a path, so it is not trained and `{key}` means nothing"
            repairs = (f"remove {key}, or remove path to train one",)
            yield Problem("C017", message, place(tree, ("tokenizer", key), key=True), repairs)


def _address(tree: Table) -> Iterator[Problem]:
    """A Ray client address: results would travel through the client, and a lost connection ends the run."""
    address = value_at(tree, ("run", "address"))
    if isinstance(address, Text) and address.startswith("ray://"):
        message = f"run.address is `{address}`: a Ray client connection is not supported"
        repairs = (
            "send the whole build to the cluster: pipeline submit corpus.yaml",
            "or run it on a machine of the cluster with run.address: cluster",
        )
        yield Problem("C019", message, address.where, repairs)


def _not_built(tree: Table) -> Iterator[Problem]:
    """Parts of the design that later work brings."""
    for name, source in _sources(tree).items():
        given = source.get("path") if isinstance(source, Table) and source.get("format") is None else None
        for pattern in [given] if isinstance(given, Text) else given if isinstance(given, Items) else ():
            if isinstance(pattern, Text) and METADATA.search(pattern):
                message = f"the source {name} holds WAT files; those are metadata of pages, not their text"
                yield Problem("C009", message, pattern.where, ("name the .warc.gz or the .warc.wet.gz files instead",))


def _length(tree: Table, key: str) -> int:
    items = tree.get(key)
    return len(items) if isinstance(items, Items) else 0


def _share(value: Any) -> Decimal | None:
    """A share as an exact decimal; None if it is none."""
    try:
        return None if value is None else Decimal(repr(read_share(value)))
    except ValueError:
        return None


_WEIGHT = TypeAdapter(Weight)


def _weights(mix: Table) -> dict[str, float]:
    """The weights of a mix that can be read."""
    weights: dict[str, float] = {}
    for name, value in mix.items():
        try:
            weights[name] = _WEIGHT.validate_python(value)
        except ValidationError:
            continue
    return weights


def _by_source(tree: Table, weights: Mapping[str, float]) -> dict[str, float]:
    """Shares of the sources that add up to 1, those of buckets added to their source."""
    members, total = _members(tree), sum(weights.values()) or 1.0
    shares: dict[str, float] = {}
    for name, weight in weights.items():
        source = members.get(name, name)
        shares[source] = shares.get(source, 0.0) + weight / total
    return shares
