"""Forms of the output: packed rows, quality tiers, the Arrow layout; what is written and that it is the same text."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.commands.pack import pack
from pipeline.corpus import load_corpus
from pipeline.engine.sealed import arrow_table
from pipeline.trained import trainer
from stages.contract.manifest import load_manifest, verify_manifest
from stages.contract.problem import RunError, SpecError
from stages.contract.rows import read_rows
from stages.contract.shard import read_index
from tests.pipeline.corpora import document, ran, run_build, snapshot, write_config, write_jsonl

STAGES = "  - normalize\n"
PACKED = ("output.packing.lengths=[64, 256]",)
TIERS = ("buckets.web={by: length, quantiles: [50%, 80%]}",)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build without any of it, to compare with."""
    folder = tmp_path_factory.mktemp("plain")
    write_jsonl(folder / "in" / "web" / "a.jsonl", [document(i, 10 + i * 37 % 150) for i in range(160)])
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(900 + i, 300) for i in range(12)])
    run_build(write_config(folder, folder / "in", STAGES))
    return folder


def documents(out: Path) -> dict[bytes, list[int]]:
    """The token ids of every training document by its id, read by the manifest."""
    manifest = load_manifest(out)
    found = {}
    for source in manifest.sources.values():
        for shard in source.shards:
            index = read_index(shard.path(out, "idx"), shard.tokens)
            if shard.segments:
                tokens = pa.ipc.open_file(shard.path(out, "arrow")).read_all().column("tokens").to_pylist()
            else:
                flat = np.fromfile(shard.path(out, "tok"), "<u2")
                tokens = [one.tolist() for one in np.split(flat, np.cumsum(index["length"])[:-1])]
            found.update({one.tobytes(): ids for one, ids in zip(index["id"], tokens, strict=True)})
    return found


def test_rows_are_packed_at_build_and_hold_every_token_once(plain: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, plain / "in", STAGES)
    run_build(config, PACKED)
    out = tmp_path / "out"
    manifest = load_manifest(out)
    assert verify_manifest(out, manifest, deep=True) == []
    assert documents(out) == documents(plain / "out")
    assert set(manifest.sources["web"].packed()) == {64, 256}
    shard = manifest.sources["web"].shards[0]
    rows = read_rows(shard.path(out, "rows-64"), 64)
    assert rows.rows == sum(shard.rows["64"])
    assert int(rows.spans["length"].sum()) == shard.tokens
    before = snapshot(out)
    assert set(ran(run_build(config, ["output.packing.lengths=[64, 256, 128]"]))) == {"rows"}
    assert {name: digest for name, digest in snapshot(out).items() if "rows-128" not in name and "shards/" in name} == {
        name: digest for name, digest in before.items() if "shards/" in name
    }


def test_packed_rows_that_lie_are_found(plain: Path, tmp_path: Path) -> None:
    run_build(write_config(tmp_path, plain / "in", STAGES), PACKED)
    out = tmp_path / "out"
    manifest = load_manifest(out)
    path = manifest.sources["web"].shards[0].path(out, "rows-64")
    sound = path.read_bytes()
    path.unlink()
    changed = bytearray(sound)
    changed[-8:-4] = (1).to_bytes(4, "little")
    for data, message in (
        (b"GRISTMIL" + sound[8:], "is no file of packed rows"),
        (bytes(changed), "does not hold every token of the shard exactly once"),
        (sound[:-16], "the manifest states"),
        (b"", "the manifest states"),
    ):
        path.write_bytes(data)
        assert any(message in problem.message for problem in verify_manifest(out, manifest, deep=True))


def test_a_source_in_tiers_is_cut_by_its_column_and_loses_nothing(plain: Path, tmp_path: Path) -> None:
    run_build(write_config(tmp_path, plain / "in", STAGES), TIERS)
    out = tmp_path / "out"
    manifest = load_manifest(out)
    assert verify_manifest(out, manifest, deep=True) == []
    assert set(manifest.sources) == {"web.0", "web.1", "web.2", "books"}
    assert documents(out) == documents(plain / "out")
    tiers = [manifest.sources[f"web.{i}"] for i in range(3)]
    last = 0
    for tier in tiers:
        assert tier.bucket is not None
        lengths = [int(n) for shard in tier.shards for n in read_index(shard.path(out, "idx"), shard.tokens)["length"]]
        assert tier.bucket.low is None or min(lengths) >= tier.bucket.low
        assert tier.bucket.high is None or max(lengths) < tier.bucket.high
        assert min(lengths) > last
        last = max(lengths)
        left = None
        for step in tier.funnel:
            assert step.documents_in == step.documents_out + sum(step.dropped.values()) + step.rejected
            assert left is None or step.documents_in == left
            left = step.documents_out
        assert left == tier.documents + sum(h.documents for h in tier.holdout)
    tokens = [tier.tokens for tier in tiers]
    assert np.cumsum(tokens)[:2] / sum(tokens) == pytest.approx([0.5, 0.8], abs=0.1)
    assert len({tier.uid for tier in tiers}) == 3


def test_a_mix_that_names_tiers_weights_their_source_where_the_tokenizer_is_trained(plain: Path, tmp_path: Path) -> None:
    named = load_corpus(write_config(tmp_path, plain / "in", STAGES), [*TIERS, "mix={web.0: 0.1, web.1: 0.2, web.2: 0.3, books: 0.4}"])
    assert trainer(named).train_mix == pytest.approx({"web": 0.6, "books": 0.4})


def test_an_empty_tier_and_a_column_that_is_not_there_are_errors(plain: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, plain / "in", STAGES)
    with pytest.raises(RunError, match=r"the bucket web\.1 is empty: no document for training has a `length` from 100000"):
        run_build(config, ["buckets.web={by: length, edges: [100000]}"])
    with pytest.raises(RunError, match=r"documents of web have no value of `quality\.edu`"):
        run_build(config, ["buckets.web={by: quality.edu, quantiles: [50%]}"])
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{by: length}", "has neither quantiles nor edges"),
        ("{by: length, edges: [5], quantiles: [50%]}", "has both quantiles and edges"),
        ("{by: length, edges: [5, 3]}", "must rise"),
        ("{by: length, quantiles: [50%, 100%]}", "lie between 0 % and 100 %"),
    ],
)
def test_tiers_that_say_nothing_are_refused(plain: Path, tmp_path: Path, settings: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_corpus(write_config(tmp_path, plain / "in", STAGES), [f"buckets.web={settings}"])


def test_the_arrow_layout_holds_the_same_documents(plain: Path, tmp_path: Path) -> None:
    run_build(write_config(tmp_path, plain / "in", STAGES), ["output.layout=arrow", *PACKED])
    out = tmp_path / "out"
    manifest = load_manifest(out)
    assert verify_manifest(out, manifest, deep=True) == []
    assert documents(out) == documents(plain / "out")
    assert not list((out / "shards").rglob("*.tok"))
    shard = manifest.sources["web"].shards[0]
    table = pa.ipc.open_file(shard.path(out, "arrow")).read_all()
    assert table.schema.names == ["id", "tokens"]
    path = shard.path(out, "arrow")
    data = bytearray(path.read_bytes())
    data[shard.segments[0][1]] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert any("is damaged" in problem.message for problem in verify_manifest(out, manifest))


def test_a_materialized_mixture_has_its_shares_its_limits_and_whole_documents(plain: Path, tmp_path: Path) -> None:
    held = {name: entry.tokens for name, entry in load_manifest(plain / "out").sources.items()}
    wanted = 3 * held["books"]
    mixture = f"output.mixture={{materialized: {{tokens: {wanted}, repeat_limits: {{books: 2}}}}}}"
    config = write_config(tmp_path, plain / "in", STAGES)
    settings = [mixture, "mix={web: 0.5, books: 0.5}", "output.packing.lengths=[128]", "output.shard_tokens=2048"]
    run_build(config, settings)
    out = tmp_path / "out"
    manifest = load_manifest(out)
    assert verify_manifest(out, manifest, deep=True) == []
    mixed = manifest.sources["mixed"]
    assert manifest.mixture == {"mixed": 1.0, "web": 0.0, "books": 0.0}
    assert mixed.tokens == pytest.approx(wanted, rel=0.05)
    assert len(mixed.shards) > 2
    assert mixed.packed()[128].total
    assert sum(mixed.lengths.documents) == mixed.documents
    assert manifest.sources["web"].tokens == 0
    assert sum(one.documents for one in manifest.sources["web"].holdout)
    source, times, tokens = [], {}, {"web": 0, "books": 0}
    text = documents(plain / "out")
    for shard in mixed.shards:
        rows = arrow_table(shard.path(out, "docs")).to_pylist()
        index = read_index(shard.path(out, "idx"), shard.tokens)
        flat = np.split(np.fromfile(shard.path(out, "tok"), "<u2"), np.cumsum(index["length"])[:-1])
        for row, one, ids in zip(rows, index, flat, strict=True):
            assert row["id"] == one["id"].tobytes()
            assert text[row["id"]] == ids.tolist()
            times[row["id"]] = times.get(row["id"], 0) + 1
            tokens[row["source"]] += int(one["length"])
            source.append(row["source"])
    assert tokens["books"] / mixed.tokens == pytest.approx(0.5, abs=0.05)
    assert max(times.values()) == 2
    assert len(set(source[: len(source) // 3])) == 2
    assert ran(run_build(config, settings)) == {}
    with pytest.raises(SpecError, match=r"books cannot give"):
        run_build(config, [mixture.replace("books: 2", "books: 1"), *settings[1:]])


def test_phases_of_a_materialized_mixture_follow_each_other(plain: Path, tmp_path: Path) -> None:
    held = load_manifest(plain / "out").sources["books"].tokens
    config = write_config(tmp_path, plain / "in", STAGES)
    phases = "phases=[{name: a, share: 50%, mix: {web: 1, books: 0}}, {name: b, share: 50%, mix: {web: 0, books: 1}}]"
    run_build(config, [f"output.mixture={{materialized: {{tokens: {2 * held}}}}}", phases])
    manifest = load_manifest(tmp_path / "out")
    assert manifest.phases == ()
    rows = [row["source"] for s in manifest.sources["mixed"].shards for row in arrow_table(s.path(tmp_path / "out", "docs")).to_pylist()]
    assert rows == sorted(rows, reverse=True)
    assert set(rows) == {"web", "books"}


def test_rows_of_another_length_are_packed_later(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain / "out", tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    text, data = pack(manifest, [128])
    assert "128" in text
    assert set(data["rows"]) == {"web", "books"}
    run_build(write_config(tmp_path / "fresh", plain / "in", STAGES), ["output.packing.lengths=[128]"])
    fresh = load_manifest(tmp_path / "fresh" / "out")
    assert load_manifest(manifest).sources == fresh.sources
    assert verify_manifest(tmp_path / "out", load_manifest(manifest), deep=True) == []
    before = snapshot(tmp_path / "out")
    pack(manifest, [128])
    assert snapshot(tmp_path / "out") == before
