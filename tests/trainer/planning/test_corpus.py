"""The plan against the corpus: when sources are read out, how documents fit, what the vocabulary costs."""

from __future__ import annotations

import numpy as np
import pytest

from stages.contract.manifest import Lengths, ShardEntry, load_manifest
from stages.contract.mixture import Request, resolve_mixture
from tests.trainer.corpora import make_corpus, random_documents
from tests.trainer.planning.test_plan import manifest
from trainer.config import read_plan
from trainer.planning.corpus import read_outs
from trainer.planning.draft import Machine
from trainer.planning.lengths import fit_of
from trainer.planning.plan import study


def studied(*overrides: str, **changes):
    corpus = manifest(web=1_000_000, books=100_000)
    sources = {name: entry.model_copy(update=changes.get(name, {})) for name, entry in corpus.sources.items()}
    corpus = corpus.model_copy(update={"sources": sources})
    return study(read_plan(None, overrides), [corpus], Machine())


def values(found):
    return {note.key: note for note in found.notes}


BASE = ("model.seq_len=100", "batch.global_tokens=1000", "data.total_tokens=500_000", "data.mix={web: 0.5, books: 0.5}")


def test_what_is_read_out_first_and_when():
    found = values(studied(*BASE, "data.repeat_limit=3"))
    assert found["data.first_read_out"].value == "books: step 200, 40% of the run"
    assert found["data.first_at_limit"].value == "books: only at 1.20 times the length of the run"
    assert found["sources.books.epochs"].number == pytest.approx(2.5)
    assert found["sources.books.in.train"].number == 250_000


def test_a_source_that_a_late_phase_reads_is_read_out_late():
    phases = "data.phases=[{name: one, share: 80%, mix: {web: 1, books: 0}}, {name: two, share: 20%, mix: {web: 0, books: 1}}]"
    found = values(studied(*BASE[:3], phases))
    assert found["data.first_read_out"].value == "books: step 500, 100% of the run"
    assert found["sources.web.in.one"].number == 400_000
    assert found["batch.smallest_count"].number == 10


def test_read_outs_follow_the_counts():
    mixture = resolve_mixture(Request({"a": 1000, "b": 10_000}, 10, 100, 5000, {"a": 0.5, "b": 0.5}))
    assert [(one.source, one.step) for one in read_outs(mixture, 1.0)] == [("a", 20.0), ("b", 200.0)]
    assert list(read_outs(mixture, None)) == []


def test_few_sequences_in_a_step_are_said():
    note = values(studied(*BASE[:3], "data.mix={web: 0.99, books: 0.01}"))["batch.smallest_count"]
    assert note.number == pytest.approx(0.1)
    assert "not in every step" in note.why


def test_the_holdout_is_stated():
    held = ShardEntry(name="h", documents=7, tokens=10_000, files={})
    note = values(studied(*BASE, web={"holdout": (held,)}))["data.holdout"]
    assert note.value == "10 k tokens, 7 documents"
    assert "none of books" in note.why
    assert "nothing can be evaluated" in values(studied(*BASE))["data.holdout"].why


def test_lengths_against_the_row():
    fit = fit_of(Lengths.of(np.array([50] * 6 + [250] * 2)), 100)
    assert fit.longer == 0.25
    assert fit.tokens == 0.625
    # Two documents of 250 in pieces of 100, 100 and 50, six of 50.
    assert fit.attended == pytest.approx((2 * (2 * 100**2 + 50**2) + 6 * 50**2) / 800)
    assert fit_of(Lengths(), 100) is None
    assert fit_of(Lengths.of(np.array([30])), 100).attended == 30


def test_real_lengths_lower_the_work_of_a_token():
    short = {"lengths": Lengths.of(np.full(10_000, 100))}
    whole, real = values(studied(*BASE[1:], "model.seq_len=1000", "batch.global_tokens=10_000")), values(
        studied(*BASE[1:], "model.seq_len=1000", "batch.global_tokens=10_000", web=short, books=short))  # fmt: skip
    assert whole["data.attended"].number == 1000
    assert real["data.attended"].number == 100
    assert real["model.flops_per_token"].number < whole["model.flops_per_token"].number
    unmasked = values(studied(*BASE[1:], "model.seq_len=1000", "batch.global_tokens=10_000", "data.mask_documents=false", web=short))
    assert unmasked["data.attended"].number == 1000


def test_vocabulary_and_training_are_weighed():
    found = values(studied(*BASE, "model.params=8M"))
    assert found["model.vocabulary_cost"].why.startswith("embedding and head for 50,257 entries")
    assert found["data.overtraining"].number == pytest.approx(500_000 / 8e6 / 20)
    assert "under-trained" in found["data.overtraining"].why
    wrong = studied(*BASE, "model.vocab_size=1000")
    assert [problem.code for problem in wrong.problems] == ["C017"]


def test_without_a_corpus_its_checks_are_named():
    bare = study(read_plan(None, ["data.mix={web: 0.7, books: 0.3}"]), [], Machine("cuda"))
    assert "repeat limits" in bare.skipped
    assert not any(note.section == "sources" for note in bare.notes)
    assert study(read_plan(None, ["data.mix={web: 0.7, books: 0.2}"]), [], Machine("cuda")).failed


def test_packed_rows_state_how_full_they_are(tmp_path):
    sources = {"web": random_documents(200, 60), "books": random_documents(60, 60, seed=1)}
    made = make_corpus(tmp_path, sources, pack=[64])
    found = values(study(read_plan(None, ["model.seq_len=64", "data.total_tokens=8192"]), [load_manifest(made)], Machine()))
    assert found["data.packing"].value == "best-fit"
    assert 0.5 < found["data.fill"].number <= 1
    padding = float(found["data.padding"].value.rstrip("%")) / 100
    assert found["data.fill"].number == pytest.approx(1 - padding, abs=1e-4)
