"""The end of a build: shards, tables and report put in their places, and the manifest, written last.

The old manifest goes first: while shards are being replaced there is no manifest, hence no corpus to train on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from pipeline.corpus import Materialized
from pipeline.engine.records import FileRef
from pipeline.engine.sealed import arrow_batches
from pipeline.events import Warned
from pipeline.output.against import write_reference
from pipeline.output.dropped import write_dropped
from pipeline.output.materialize import mix
from pipeline.output.members import Member, cut_members, pack_members, write_members
from pipeline.output.placed import Placed
from pipeline.output.report import write_report
from stages.contract.files import atomic_file, on_disk
from stages.contract.manifest import (
    FILE_NAME,
    Checks,
    DamagedFile,
    FunnelStep,
    Inputs,
    Lengths,
    Manifest,
    RejectEntry,
    Rejects,
    Roundtrip,
    SourceEntry,
    TokenizerEntry,
    save,
    source_digest,
    source_uid,
)
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, RunError
from stages.contract.shard import token_dtype
from stages.storage.address import Address
from stages.tokenizer.encode import Encoder

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState

RUN_FILE = "run.json"
REJECTS_NAMED = 1000  # in the manifest; all of them are in rejects.jsonl


def finish(build: Build, state: BuildState) -> Any:
    """Writes everything a user gets and returns the path of the manifest."""
    path, sha = build.tokenizer(state)
    encoder = Encoder.load(str(on_disk(path)), eos=build.corpus.tokenizer.eos)
    _check_roundtrip(state)
    members = cut_members(build, state)
    write_members(build, state, members, sha, encoder)
    if isinstance(build.corpus.output.mixture, Materialized):
        members = [*(member.without_shards() for member in members), mix(build, state, members, encoder)]
    pack_members(build, state, members)
    dropped = write_dropped(build, state)
    out = build.store.out
    files = _final_files(build, state, members, dropped)
    placed = Placed(build.store)
    old = out / FILE_NAME
    if old.exists() and not all(placed.same(name, ref) for name, ref in files.items()):
        old.unlink()
    placed.put_all(files)
    if build.corpus.tokenizer.path is not None:
        _copy(Path(build.corpus.tokenizer.path), out / "tokenizer" / "tokenizer.json")
    rejects = _write_rejects(build, state)
    manifest = _manifest(build, state, members, encoder, sha, rejects)
    _remove_strays(out, {*files, "tokenizer/tokenizer.json"})
    write_report(build, state, manifest)
    write_reference(build, state)
    saved = save(out, manifest)
    build.store.sweep()
    return saved


def place_artifacts(build: Build, state: BuildState) -> None:
    """Puts what global stages made for the whole corpus (a tokenizer, a classifier) where users look for it.

    A manifest of an earlier build that names another tokenizer goes first.
    """
    out = build.store.out
    files = {_place_of(n): f for b in state.boundaries for n, f in sorted(b.facts.artifact.items())}
    placed = Placed(build.store)
    if any(not placed.same(name, file) for name, file in files.items()):
        (out / FILE_NAME).unlink(missing_ok=True)
    placed.put_all(files)


def _check_roundtrip(state: BuildState) -> None:
    different = sum(ledger.different for ledger in state.ledgers.values())
    if different:
        checked = sum(ledger.decoded for ledger in state.ledgers.values())
        raise RunError(
            Problem(
                "D003",
                f"{different:,} of {checked:,} sampled documents are not the same after encoding and decoding",
                repairs=("use a byte-level tokenizer without a normaliser",),
            )
        )


def _final_files(
    build: Build, state: BuildState, members: Sequence[Member], dropped: dict[str, FileRef]
) -> dict[str, FileRef]:
    """Path in the output folder -> sealed file."""
    files = dict(dropped)
    for member in members:
        files |= member.files(build.corpus.output.layout)
    for boundary in state.boundaries:
        for name, file in sorted(boundary.facts.artifact.items()):
            files[_place_of(name)] = file
    return files


def _place_of(artifact: str) -> str:
    """Where a file that a global stage made lies: by its own folder, if it names one, else it is of the tokenizer."""
    return artifact if "/" in artifact else f"tokenizer/{artifact}"


def _copy(source: Path, target: Any) -> None:
    content = source.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        with atomic_file(target) as file:
            file.write(content)


def _write_rejects(build: Build, state: BuildState) -> Rejects:
    """Writes rejects.jsonl (all of them) and returns what the manifest says of them."""
    named: list[RejectEntry] = []
    total = 0
    with atomic_file(build.store.out / "rejects.jsonl") as out:
        for row in _rejects(build, state):
            out.write(orjson.dumps(row) + b"\n")
            total += 1
            if len(named) < REJECTS_NAMED:
                named.append(RejectEntry(**{k: row[k] for k in ("source", "uri", "record", "reason")}))
    return Rejects(total=total, records=tuple(named))


def _rejects(build: Build, state: BuildState) -> Iterator[dict]:
    for source in build.inputs:
        for part in (*state.parts, *state.given_up):
            if part.source == source:
                for file in part.rejects:
                    for batch in arrow_batches(build.store.path(file)):
                        yield from batch.to_pylist()


def _manifest(
    build: Build,
    state: BuildState,
    members: Sequence[Member],
    encoder: Encoder,
    sha: str,
    rejects: Rejects,
) -> Manifest:
    corpus = build.corpus
    sources = {member.name: _source_entry(build, state, member) for member in members}
    total = sum(s.tokens for s in sources.values())
    mixed = isinstance(corpus.output.mixture, Materialized)
    by_tokens = {name: entry.tokens / total for name, entry in sources.items()}
    mixture = by_tokens if mixed else corpus.mix or by_tokens
    for member in members:
        if not sources[member.name].tokens and not mixed:
            weight = mixture.get(member.name)
            text = f"source {member.name} has no tokens left" + (f", but a weight of {weight:g} in mix" if weight else "")
            build.events(Warned("W001", text))
    return Manifest(
        name=corpus.name,
        seed=corpus.seed,
        config_digest=corpus.config_digest(),
        dtype="uint16" if token_dtype(encoder.vocab_size).itemsize == 2 else "uint32",
        tokenizer=TokenizerEntry(
            path="tokenizer/tokenizer.json",
            sha256=sha,
            vocab_size=encoder.vocab_size,
            eos_id=encoder.eos_id,
            largest_id=max((s.largest_id for s in sources.values()), default=-1),
        ),
        sources=sources,
        mixture=mixture,
        phases=() if mixed else corpus.phases,
        checks=Checks(
            roundtrip=Roundtrip(documents=sum(ledger.decoded for ledger in state.ledgers.values()), failures=0),
        ),
        rejects=rejects,
        damaged=tuple(DamagedFile(**d) for d in state.damaged),
        quarantine=tuple(RejectEntry(**q) for q in state.quarantine),
    )


def _source_entry(build: Build, state: BuildState, member: Member) -> SourceEntry:
    """What the manifest says of one member."""
    train, held = member.entries(build.corpus.output.layout)
    files = list(state.input_files(member.source))
    return SourceEntry(
        uid=source_uid(member.name),
        digest=source_digest(train),
        license=member.license,
        documents=sum(r.documents for r in member.shards),
        tokens=sum(r.tokens for r in member.shards),
        text_bytes=sum(r.text_bytes for r in member.shards),
        largest_id=max((r.largest_id for r in member.shards), default=-1),
        lengths=Lengths.of(member.lengths),
        shards=train,
        holdout=held,
        bucket=member.bucket,
        inputs=Inputs(
            files=len({one.slice.uri for one, _ in files}),
            bytes=sum({one.slice.uri: one.size for one, _ in files}.values()),
            digest=digest(
                canonical_json(sorted([s.slice.uri, s.slice.start, s.slice.end, sha] for s, sha in files))
            ),
        ),
        funnel=_funnel(build, state, member),
    )


def _funnel(build: Build, state: BuildState, member: Member) -> tuple[FunnelStep, ...]:
    """What each stage did to the source; for a tier, then how many went to the others."""
    if member.source not in build.inputs:
        return ()  # mixed of several sources, whose own entries say it
    steps = [
        FunnelStep(
            stage=c.stage,
            documents_in=c.documents_in,
            documents_out=c.documents_out,
            dropped=c.dropped,
            rejected=sum(c.rejected.values()),
        )
        for c in build.accounts(state, member.source)
    ]
    if member.tier is not None:
        mine = sum(r.documents for r in (*member.shards, *member.holdout))
        every = steps[-1].documents_out
        others = {"in other buckets": every - mine}
        steps.append(FunnelStep(stage="buckets", documents_in=every, documents_out=mine, dropped=others))
    return tuple(steps)


def _remove_strays(out: Any, wanted: set[str]) -> None:
    """Removes files of an earlier build that this one does not have."""
    for folder in ("shards", "holdout", "dropped", "tokenizer"):
        if isinstance(out, Address):
            found = [path for path in (out / folder).sizes() if str(path.relative_to(out)) not in wanted]
            out.remove_all(found)
            continue
        for path in sorted((out / folder).rglob("*"), reverse=True):
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(out).as_posix() not in wanted:
                path.unlink()
