"""Batches: labels, documents, ranks, resume, damage. The reference below is written the slow and plain way."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from stages.contract.manifest import load_manifest, verify_manifest
from stages.contract.problem import Problem, RunError, SpecError
from tests.trainer.corpora import EOS, document_ids, make_corpus, random_documents
from trainer.config import read_plan
from trainer.loader import IGNORE, Loader
from trainer.planning.plan import Machine, resolve


def plan_of(folders, *overrides):
    manifests = [load_manifest(folder) for folder in folders]
    return resolve(read_plan(None, overrides), manifests, Machine())


@pytest.fixture
def corpus(tmp_path):
    """Two sources in small shards, so that many windows cross from one shard to the next."""
    sources = {"web": random_documents(150, 40), "books": random_documents(60, 90, seed=1)}
    make_corpus(tmp_path, sources, documents_per_shard=13, holdout={"web": random_documents(9, 30, seed=2)})
    return tmp_path, sources


SETTINGS = (
    "model.seq_len=32",
    "batch.global_tokens=320",
    "data.total_tokens=9600",
    "data.mix={web: 0.6, books: 0.4}",
)


def stream_of(documents):
    """`(tokens, document of each token, position of each token in its document)` of a source."""
    tokens = [token for document in documents for token in (*document, EOS)]
    number = [i for i, document in enumerate(documents) for _ in range(len(document) + 1)]
    return np.array(tokens), np.array(number)


def rows_of(batch):
    """Every real row as a dict of what belongs to it."""
    found = []
    for micro in batch.micros:
        length = micro["input_ids"].shape[1]
        for i in range(len(micro["input_ids"])):
            if micro["weight"][i] == 0:
                continue
            spans = np.flatnonzero(
                (micro["cu_seqlens"][:-1] >= i * length) & (micro["cu_seqlens"][:-1] < (i + 1) * length)
            )
            found.append({
                "ids": micro["input_ids"][i], "labels": micro["labels"][i], "positions": micro["position_ids"][i],
                "starts": micro["cu_seqlens"][spans] - i * length, "documents": micro["span_document"][spans],
                "names": micro["span_id"][spans], "source": int(micro["source"][i]),
            })  # fmt: skip
    return found


# ---- content ---------------------------------------------------------------------------------------------------


def test_rows_are_what_the_plain_way_gives(corpus):
    folder, sources = corpus
    plan = plan_of([folder], *SETTINGS)
    names = [source.name for source in plan.sources]
    streams = {name: stream_of(documents) for name, documents in sources.items()}
    with Loader([folder], plan) as loader:
        for step in range(plan.steps):
            rows = rows_of(loader.batch(step, micro=4))
            for row, (source, offset, length) in zip(rows, plan.order.batch_samples(step), strict=True):
                tokens, number = streams[names[source]]
                window = slice(offset, offset + length)
                assert row["source"] == source
                assert np.array_equal(row["ids"], tokens[window])
                following = np.append(tokens[offset + 1 : offset + length + 1], IGNORE)[:length]
                crosses = np.append(number[1:] != number[:-1], True)[window]
                assert np.array_equal(row["labels"], np.where(crosses, IGNORE, following))
                starts = np.flatnonzero(np.append(True, np.diff(number[window]) != 0))
                assert np.array_equal(row["starts"], starts)
                assert np.array_equal(row["documents"], number[window][starts])
                ids = document_ids(names[source], len(sources[names[source]]))
                assert np.array_equal(row["names"], ids[row["documents"]])
                expected = np.arange(length) - np.repeat(starts, np.diff(starts, append=length))
                assert np.array_equal(row["positions"], expected)


def test_an_epoch_predicts_every_token_once_except_the_first_of_a_document(tmp_path):
    documents = random_documents(200, 30)
    make_corpus(tmp_path, {"web": documents}, documents_per_shard=7)
    tokens, _ = stream_of(documents)
    units = len(tokens) // 16
    plan = plan_of(
        [tmp_path], "model.seq_len=16", "batch.global_tokens=16", f"data.total_tokens={units * 16}"
    )
    with Loader([tmp_path], plan) as loader:
        targets = sum(loader.batch(step).targets for step in range(plan.steps))
        labels = np.concatenate(
            [loader.batch(step).micros[0]["labels"].ravel() for step in range(plan.steps)]
        )
    covered = units * 16
    starts = sum(1 for i in range(1, covered) if tokens[i - 1] == EOS)
    last = int(covered < len(tokens) and tokens[covered - 1] != EOS)  # it is predicted by the last window
    assert targets == covered - 1 - starts + last
    assert np.count_nonzero(labels == EOS) == np.count_nonzero(tokens[1 : covered + last] == EOS)


def test_the_format_of_a_micro_batch(corpus):
    folder, _ = corpus
    with Loader([folder], plan_of([folder], *SETTINGS)) as loader:
        batch = loader.batch(0, micro=3)
        assert [micro["input_ids"].shape for micro in batch.micros] == [(3, 32)] * 4
        assert [micro["weight"].tolist() for micro in batch.micros[-2:]] == [[1, 1, 1], [1, 0, 0]]
        micro = batch.micros[-1]
        assert {name: array.dtype.str for name, array in micro.items() if name != "max_seqlen"} == {
            "input_ids": "<i8", "labels": "<i8", "position_ids": "<i8", "cu_seqlens": "<i4", "span_source": "<i4",
            "span_document": "<i8", "span_id": "|V16", "source": "<i4", "weight": "<f4",
        }  # fmt: skip
        assert micro["cu_seqlens"][0] == 0
        assert micro["cu_seqlens"][-1] == 96
        assert np.all(np.diff(micro["cu_seqlens"]) > 0)
        assert micro["max_seqlen"] == np.diff(micro["cu_seqlens"]).max() == 32
        assert np.all(micro["labels"][1:] == IGNORE)
        assert micro["span_source"][-2:].tolist() == micro["span_document"][-2:].tolist() == [-1, -1]
        assert batch.tokens == {"books": 128, "web": 192}
        assert batch.targets == sum(np.count_nonzero(one["labels"] != IGNORE) for one in batch.micros)


def test_without_masks_a_window_is_one_span(corpus):
    folder, _ = corpus
    with Loader([folder], plan_of([folder], *SETTINGS, "data.mask_documents=false")) as loader:
        micro = loader.batch(0, micro=10).micros[0]
        assert micro["cu_seqlens"].tolist() == list(range(0, 321, 32))
        assert micro["position_ids"].tolist() == [list(range(32))] * 10
        assert np.array_equal(micro["labels"][:, :-1], micro["input_ids"][:, 1:])
        assert np.count_nonzero(micro["labels"] == IGNORE) <= 1


def test_documents_are_found_in_long_shards_and_across_empty_ones(tmp_path):
    documents = [[7] * (i % 5) for i in range(1_000)]
    make_corpus(tmp_path, {"web": documents})
    plan = plan_of([tmp_path], "model.seq_len=50", "batch.global_tokens=500", "data.total_tokens=2500")
    _, number = stream_of(documents)
    with Loader([tmp_path], plan) as loader:
        for step in range(plan.steps):
            for row, (_, offset, length) in zip(
                rows_of(loader.batch(step)), plan.order.batch_samples(step), strict=True
            ):
                assert row["documents"].tolist() == sorted(set(number[offset : offset + length].tolist()))


# ---- packed rows -----------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path):
    """Two sources in small shards with rows of 32 and 16; some documents are longer than a row."""
    sources = {"web": random_documents(150, 40), "books": random_documents(60, 90, seed=1)}
    make_corpus(tmp_path, sources, documents_per_shard=13, pack=(16, 32))
    return tmp_path, sources


def test_an_epoch_of_packed_rows_holds_every_document_once_and_cuts_only_long_ones(packed):
    folder, sources = packed
    manifest = load_manifest(folder)
    assert verify_manifest(folder, manifest, deep=True) == []
    rows = manifest.sources["books"].packed()[32].total
    plan = plan_of([folder], "model.seq_len=32", "batch.global_tokens=32", "data.packing=best-fit",
                   "data.mix={web: 0, books: 1}", f"data.total_tokens={rows * 32}")  # fmt: skip
    documents = [[*document, EOS] for document in sources["books"]]
    pieces: dict[int, list[list[int]]] = {}
    predicted = 0
    with Loader([folder], plan) as loader:
        for step in range(plan.steps):
            (row,) = rows_of(loader.batch(step))
            ends = [*row["starts"][1:], 32]
            for start, end, document in zip(row["starts"], ends, row["documents"], strict=True):
                ids, labels = row["ids"][start:end].tolist(), row["labels"][start:end].tolist()
                assert row["positions"][start:end].tolist() == list(range(end - start))
                if document < 0:
                    assert (set(ids), set(labels)) == ({EOS}, {IGNORE})
                    continue
                whole = documents[document]
                pieces.setdefault(int(document), []).append(ids)
                place = next(i for i in range(0, len(whole), 32) if whole[i : i + end - start] == ids)
                following = [*whole[1:], IGNORE]
                assert labels == following[place : place + end - start]
                assert len(ids) == min(32, len(whole) - place)
                predicted += sum(label != IGNORE for label in labels)
    assert sorted(pieces) == list(range(len(documents)))
    for number, found in pieces.items():
        assert sorted(token for piece in found for token in piece) == sorted(documents[number])
    assert predicted == sum(len(document) - 1 for document in documents)


def test_packed_rows_of_any_world_phase_and_step(packed):
    folder, _ = packed
    phases = "[{name: a, share: 0.4, seq_len: 16}, {name: b, share: 0.6}]"
    plan = plan_of([folder], *SETTINGS, "data.mix={web: 0.6, books: 0.4}", f"data.phases={phases}")
    assert plan.packing == "best-fit"
    assert {note.key for note in plan.notes} >= {"data.padding", "data.groups_open"}
    with Loader([folder], plan) as loader:
        straight = [batch.digest for batch in loader.batches(0, micro=3)]
        for step, world in ((0, 2), (5, 3), (11, 7), (plan.steps - 1, 16)):
            parts = [loader.batch(step, rank, world, 2) for rank in range(world)]
            rows = [row["ids"] for part in parts for row in rows_of(part)]
            whole = loader.batch(step, micro=4)
            assert np.array_equal(rows, [row["ids"] for row in rows_of(whole)])
            assert whole.digest == straight[step]
    with Loader([folder], plan) as loader:
        assert [batch.digest for batch in loader.batches(9)] == straight[9:]


def test_without_masks_a_packed_row_is_one_span_and_its_pads(packed):
    folder, _ = packed
    plan = plan_of([folder], *SETTINGS, "data.packing=best-fit", "data.mask_documents=false")
    with Loader([folder], plan) as loader:
        for row in rows_of(loader.batch(0, micro=10)):
            end = row["starts"][1] if len(row["starts"]) > 1 else 32
            assert row["labels"][: end - 1].tolist() == row["ids"][1:end].tolist()
            assert row["positions"][:end].tolist() == list(range(end))
            assert np.all(row["labels"][end:] == IGNORE)


def test_a_document_is_found_in_every_packed_row_that_holds_it(packed):
    folder, sources = packed
    plan = plan_of([folder], *SETTINGS, "data.packing=best-fit")
    with Loader([folder], plan) as loader:
        batches = [rows_of(loader.batch(step)) for step in range(plan.steps)]
        for number in (0, 7, 59):
            wanted = document_ids("books", len(sources["books"]))[number].tobytes()
            ((_, readings),) = loader.readings(wanted)
            assert [(int(r["step"]), int(r["slot"])) for r in readings] == [
                (step, slot)
                for step, rows in enumerate(batches)
                for slot, row in enumerate(rows)
                if wanted in {one.tobytes() for one in row["names"]}
            ]


# ---- edits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
@pytest.mark.parametrize("mask", ["true", "false"])
def test_a_tombstone_takes_labels_away_and_nothing_else(packed, packing, mask, tmp_path):
    folder, sources = packed
    dead = document_ids("web", len(sources["web"]))[[3, 70]]
    (tmp_path / "bad.txt").write_text(f"# found on Monday\n{dead[0].tobytes().hex()}  spam\n\n{dead[1].tobytes().hex().upper()}\n")
    common = (*SETTINGS, f"data.packing={packing}", f"data.mask_documents={mask}")
    plain, silenced = plan_of([folder], *common), plan_of([folder], *common, f"data.tombstones={tmp_path / 'bad.txt'}")
    assert silenced.chain == plain.chain
    assert silenced.digest != plain.digest
    names = {one.tobytes() for one in dead}
    silent = 0
    with Loader([folder], plain) as before, Loader([folder], silenced) as after:
        for step in range(plain.steps):
            a, b = before.batch(step, micro=10), after.batch(step, micro=10)
            assert a.digest == b.digest
            for old, new in zip(rows_of(a), rows_of(b), strict=True):
                changed = old["labels"] != new["labels"]
                assert np.all(new["labels"][changed] == IGNORE)
                silent += int(changed.sum())
                if mask == "true":
                    ends = [*new["starts"][1:], 32]
                    for start, end, name in zip(new["starts"], ends, new["names"], strict=True):
                        own = new["labels"][start:end]
                        assert np.all(own == IGNORE) if name.tobytes() in names else not changed[start:end].any()
    assert silent > 0


def test_a_file_of_tombstones_that_holds_no_ids_is_refused(packed, tmp_path):
    folder, _ = packed
    (tmp_path / "bad.txt").write_text("web/1.jsonl\n")
    with pytest.raises(SpecError, match=r"bad\.txt, line 1: `web/1\.jsonl` is no document id"):
        plan_of([folder], *SETTINGS, f"data.tombstones={tmp_path / 'bad.txt'}")
    with pytest.raises(SpecError, match="cannot be read"):
        plan_of([folder], *SETTINGS, "data.tombstones=/nowhere/at/all")


def test_skipped_steps_are_passed_over_and_the_run_is_shorter(corpus):
    folder, _ = corpus
    plan, skipping = plan_of([folder], *SETTINGS), plan_of([folder], *SETTINGS, "data.skip=[[4, 6], [10, 11]]")
    assert skipping.steps == plan.steps - 3
    assert [phase.first_step for phase in skipping.phases] == [0, 4, 8]
    assert skipping.tokens_at(4) == plan.tokens_at(4)
    assert skipping.tokens_at(5) == plan.tokens_at(7)
    assert skipping.tokens_at(skipping.steps) == plan.total_tokens == skipping.total_tokens
    with Loader([folder], plan) as one, Loader([folder], skipping) as two:
        straight = [batch.digest for batch in one.batches(0)]
        assert [batch.digest for batch in two.batches(0)] == straight[:4] + straight[6:10] + straight[11:]
    for bad in ("[[3, 3]]", "[[29, 31]]", "[[5, 7], [7, 9]]", "[[0, 30]]"):
        with pytest.raises(SpecError, match=r"data\.skip"):
            plan_of([folder], *SETTINGS, f"data.skip={bad}")


def test_a_phase_may_be_ended_during_the_run_and_another_mixture_take_its_place(corpus):
    folder, _ = corpus
    phases = "data.phases=[{{name: a, share: 0.5}}, {{name: b, share: 0.5{until}}}{more}]"
    plan = plan_of([folder], *SETTINGS, phases.format(until="", more=""))
    more = ", {name: c, mix: {web: 0.2, books: 0.8}}"
    edited = plan_of([folder], *SETTINGS[:3], "data.mix=", phases.format(until=", until: 20", more=more)
                     .replace("share: 0.5", "mix: {web: 0.6, books: 0.4}, share: 0.5"))  # fmt: skip
    assert [(phase.name, phase.first_step, phase.end) for phase in edited.phases] == [("a", 0, 15), ("b", 15, 20), ("c", 20, 30)]
    assert edited.chain[:3] == plan.chain
    with Loader([folder], plan) as one, Loader([folder], edited) as two:
        straight, changed = ([batch.digest for batch in loader.batches(0)] for loader in (one, two))
        assert straight[:20] == changed[:20]
        assert not set(straight[20:]) & set(changed[20:])
        late = sum(two.batch(step).tokens["books"] for step in range(20, 30))
    assert late == pytest.approx(0.8 * 10 * 320, abs=32)


# ---- ranks, resume, repeats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("micro", [1, 4])
def test_every_world_and_micro_batch_reads_the_same_rows(corpus, world, micro):
    folder, _ = corpus
    plan = plan_of([folder], *SETTINGS)
    with Loader([folder], plan) as loader:
        for step in (0, 3):
            whole = rows_of(loader.batch(step, micro=10))
            parts = [loader.batch(step, rank, world, micro) for rank in range(world)]
            rows = [row for part in parts for row in rows_of(part)]
            assert [row["ids"].tolist() for row in rows] == [row["ids"].tolist() for row in whole]
            assert {len(part.micros) for part in parts} == {plan.accumulation(step, world, micro)}
            shapes = {one["input_ids"].shape for part in parts for one in part.micros}
            assert len(shapes) == 1
            assert shapes.pop()[0] <= micro
            assert sum(part.targets for part in parts) == loader.batch(step).targets


def test_a_run_that_goes_on_reads_what_it_would_have_read(corpus):
    folder, _ = corpus
    plan = plan_of([folder], *SETTINGS)
    with Loader([folder], plan) as loader:
        straight = [batch.digest for batch in loader.batches(0, micro=4)]
    with Loader([folder], plan) as loader:
        resumed = [(batch.step, batch.digest) for batch in loader.batches(17, micro=2)]
    assert len(straight) == plan.steps == 30
    assert len(set(straight)) == 30
    assert resumed == list(enumerate(straight))[17:]


def test_phases_change_at_their_step(tmp_path):
    sources = {name: [[token] * 30] * 20 for token, name in enumerate(("a", "b", "c"), 1)}
    make_corpus(tmp_path, sources)
    phases = ", ".join(f"{{name: p{x}, tokens: 320, mix: {{{x}: 1}}}}" for x in "abc")
    plan = plan_of([tmp_path], "model.seq_len=16", "batch.global_tokens=64", f"data.phases=[{phases}]")
    with Loader([tmp_path], plan) as loader:
        seen = [set(np.unique(batch.micros[0]["input_ids"])) - {EOS} for batch in loader.batches(0, micro=4)]
    assert seen == [{1}] * 5 + [{2}] * 5 + [{3}] * 5
    assert [plan.phase_at(step).name for step in range(15)] == ["pa"] * 5 + ["pb"] * 5 + ["pc"] * 5


def test_two_and_a_half_epochs_shuffle_anew(tmp_path):
    documents = [[1 + i % 250] * 15 for i in range(40)]
    make_corpus(tmp_path, {"web": documents})
    plan = plan_of([tmp_path], "model.seq_len=16", "batch.global_tokens=64", "data.total_tokens=1600")
    assert plan.sources[0].epochs == 2.5
    with Loader([tmp_path], plan) as loader:
        firsts = [row["documents"][0] for batch in loader.batches(0, micro=4) for row in rows_of(batch)]
    epochs = [firsts[:40], firsts[40:80], firsts[80:]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40))
    assert epochs[0] != epochs[1]
    assert len(set(epochs[2])) == 20


def test_a_small_corpus_in_four_shards_loses_less_than_one_sequence(tmp_path):
    documents = [[1] * 102] * 10
    make_corpus(tmp_path, {"web": documents}, documents_per_shard=3)
    plan = plan_of([tmp_path], "model.seq_len=256", "batch.global_tokens=256", "data.total_tokens=1024")
    assert (plan.sources[0].tokens, plan.sources[0].unused) == (1_030, 6)
    with Loader([tmp_path], plan) as loader:
        assert sum(batch.micros[0]["input_ids"].size for batch in loader.batches(0)) == 1_024


def test_a_document_is_found_in_every_step_that_reads_it(corpus):
    folder, sources = corpus
    plan = plan_of([folder], *SETTINGS)
    with Loader([folder], plan) as loader:
        for number in (0, 77, 149):
            wanted = document_ids("web", len(sources["web"]))[number].tobytes()
            ((name, readings),) = loader.readings(wanted)
            assert name == "web"
            found = [
                (step, slot)
                for step in range(plan.steps)
                for slot, row in enumerate(rows_of(loader.batch(step)))
                if wanted in {one.tobytes() for one in row["names"]}
            ]
            assert [(int(r["step"]), int(r["slot"])) for r in readings] == found
        assert loader.readings(b"\xff" * 16) == []


# ---- holdout and several corpora -------------------------------------------------------------------------------


def test_the_holdout_is_read_in_order_and_to_its_end(corpus):
    folder, _ = corpus
    tokens, _ = stream_of(random_documents(9, 30, seed=2))
    with Loader([folder], plan_of([folder], *SETTINGS)) as loader:
        micros = list(loader.holdout("web", 32, 2))
        ids = np.concatenate([micro["input_ids"].ravel() for micro in micros])
        assert np.array_equal(ids[: len(tokens)], tokens)
        assert np.all(ids[len(tokens) :] == EOS)
        assert len(ids) - len(tokens) < 32
        targets = sum(int(np.count_nonzero(micro["labels"] != IGNORE)) for micro in micros)
        assert targets == len(tokens) - 9
        if len(ids) > len(tokens):
            assert micros[-1]["span_document"][-1] == -1
        assert sum(len(micro["input_ids"]) for micro in loader.holdout("web", 32, 2, limit=3)) == 3
        assert list(loader.holdout("books", 32, 2)) == []


def test_several_corpora_are_read_as_one(tmp_path):
    for name, token in (("one", 1), ("two", 2)):
        make_corpus(tmp_path / name, {name: [[token] * 30] * 20})
    folders = [tmp_path / "one", tmp_path / "two" / "manifest.json"]
    plan = plan_of(folders, "model.seq_len=16", "batch.global_tokens=64", "data.total_tokens=640")
    with Loader(folders, plan) as loader:
        assert loader.batch(0, micro=4).tokens == {"one": 32, "two": 32}
    with pytest.raises(SpecError, match="the plan was made for manifests"):
        Loader(folders[::-1], plan)


# ---- damage and threads ----------------------------------------------------------------------------------------


def test_a_short_shard_stops_the_run_before_its_first_step(corpus):
    folder, _ = corpus
    plan = plan_of([folder], *SETTINGS)
    shard = folder / "shards/web/00003.tok"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-100])
    (folder / "shards/books/00001.idx").unlink()
    with pytest.raises(RunError) as caught:
        Loader([folder], plan)
    text = str(caught.value)
    assert f"00003.tok has {size - 100:,} bytes, but the manifest states {size:,}" in text
    assert "00001.idx is missing" in text


def test_a_flipped_byte_is_found_before_the_run_or_when_it_is_read(tmp_path):
    """At the ends of a shard by the cheap check, inside of it by `deep`, or else at the batch that reads it."""
    make_corpus(tmp_path, {"web": [[1 + i % 250] * 20_000 for i in range(9)]})
    plan = plan_of([tmp_path], "model.seq_len=512", "batch.global_tokens=2048", "data.total_tokens=90000")
    shard = tmp_path / "shards/web/00000.tok"
    sound = shard.read_bytes()
    for place, early in ((0, True), (len(sound) // 2, False)):
        data = bytearray(sound)
        data[place] ^= 1
        shard.write_bytes(data)
        with pytest.raises(RunError, match=r"00000\.tok has SHA-256"):
            Loader([tmp_path], plan, deep=True)
        if early:
            with pytest.raises(RunError, match=r"00000\.tok is damaged: tokens 0 to 32,768"):
                Loader([tmp_path], plan)
        else:
            with Loader([tmp_path], plan) as loader, pytest.raises(RunError, match="is damaged: tokens 65,536 to"):
                list(loader.batches(0))


def test_an_index_that_lies_is_refused_when_it_is_read(corpus):
    folder, _ = corpus
    plan = plan_of([folder], *SETTINGS)
    for path in (folder / "shards/web").glob("*.idx"):
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
    with Loader([folder], plan) as loader, pytest.raises(RunError, match="add up to"):
        list(loader.batches(0))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "loader"]


def test_an_error_in_the_thread_reaches_the_one_who_waits_and_ends_it(corpus):
    folder, _ = corpus
    plan = plan_of([folder], *SETTINGS)

    def broken(_spans):
        raise RunError(Problem("D002", "shards/web/00000 cannot be read"))

    with Loader([folder], plan) as loader:
        batches = loader.batches(0)
        next(batches)
        loader._shelf.gather = broken
        with pytest.raises(RunError, match="cannot be read"):
            list(batches)
    assert threads() == []


def test_the_thread_waits_for_room_and_ends_when_the_reader_leaves(corpus):
    folder, _ = corpus
    loader = Loader([folder], plan_of([folder], *SETTINGS), prefetch=3)
    batches = loader.batches(0)
    assert next(batches).step == 0
    (thread,) = threads()
    time.sleep(0.1)
    assert thread.is_alive()
    batches.close()
    assert threads() == []
    left = loader.batches(5)
    assert next(left).step == 5
    loader.close()
    assert threads() == []
    assert list(left) == []


def test_the_trainer_reads_without_torch_or_arrow():
    import subprocess
    import sys

    code = "import sys, trainer.loader, trainer.planning.plan; print([m for m in ('torch', 'pyarrow', 'ray') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
