"""The commands that look at the data order, on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from stages.contract.manifest import load_manifest
from stages.contract.order import Order
from tests.trainer.corpora import document_ids, make_corpus, random_documents
from trainer.cli import cli
from trainer.config import read_plan
from trainer.loader import Loader
from trainer.look import check_order
from trainer.planning.plan import Machine, resolve

SETS = ["--set", "model.seq_len=32", "--set", "batch.global_tokens=320", "--set", "data.total_tokens=9600"]


@pytest.fixture(params=[False, True], ids=["windows", "packed"])
def corpus(request, tmp_path):
    sources = {"web": random_documents(150, 40), "books": random_documents(60, 90, seed=1)}
    make_corpus(tmp_path, sources, documents_per_shard=13, pack=(32,) if request.param else ())
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_a_step_names_its_documents_and_a_document_its_steps(corpus):
    code, text, _ = run("batch", "--manifest", corpus, *SETS, "--step", "7", "--json")
    assert code == 0
    found = json.loads(text.splitlines()[-1])
    rows = found["documents"]
    assert {row["row"] for row in rows} == set(range(10))
    plan = resolve(read_plan(None, SETS[1::2]), [load_manifest(corpus)], Machine())
    with Loader([corpus], plan) as loader:
        (micro,) = loader.batch(7, micro=10).micros
        assert [row["id"] for row in rows] == [one.tobytes().hex() for one in micro["span_id"][micro["span_document"] >= 0]]
    code, text, _ = run("where", "--manifest", corpus, *SETS, rows[3]["id"], "--json")
    assert code == 0
    readings = json.loads(text.splitlines()[-1])["readings"]
    assert {"phase": "train", "slot": rows[3]["row"], "source": rows[3]["source"], "step": 7} in readings
    code, text, _ = run("batch", "--manifest", corpus, *SETS, "--step", "7", "--rank", "1", "--world", "2")
    assert code == 0
    ids = [row["id"] for row in rows if row["row"] >= 5]
    assert [line.split()[2] for line in text.splitlines()[1:]] == ids


def test_what_is_no_step_or_document_is_said(corpus):
    assert "the run has steps 0 to 29" in run("batch", "--manifest", corpus, *SETS, "--step", "30")[2]
    code, _, err = run("where", "--manifest", corpus, *SETS, "web/1")
    assert code == 2
    assert "is no document id" in err
    assert "no source of this plan holds" in run("where", "--manifest", corpus, *SETS, "ab" * 16)[2]
    unread = document_ids("books", 60)[0].tobytes().hex()
    code, text, _ = run("where", "--manifest", corpus, *SETS, "--set", "data.mix={web: 1, books: 0}", unread)
    assert (code, text) == (0, "no step of this plan reads it\n")


def test_a_sound_order_has_no_findings(corpus):
    code, text, _ = run("order-check", "--manifest", corpus, *SETS)
    assert code == 0
    assert "no findings" in text
    code, text, _ = run("order-check", "--manifest", corpus, *SETS, "--set", "data.skip=[[3, 5]]", "--json")
    found = json.loads(text.splitlines()[-1])
    assert (code, found["findings"], found["every_step"]) == (0, [], True)


def test_an_order_that_lies_is_found_out(corpus, monkeypatch):
    plan = resolve(read_plan(None, SETS[1::2]), [load_manifest(corpus)], Machine())
    honest = Order._resolve

    def lying(self, p, slot):
        found = honest(self, p, slot)
        found["offset"][found["source"] == 0] = found["offset"][found["source"] == 0][:1] if len(found) else 0
        return found

    monkeypatch.setattr(Order, "_resolve", lying)
    _, findings, whole = check_order(plan)
    assert whole
    assert any("is read" in one for one in findings)
    assert any("ranks read another batch" in one or "not found again" in one for one in findings)


def test_a_long_run_is_checked_at_places_that_lie_evenly_spread(monkeypatch):
    monkeypatch.setattr("trainer.look.MOST_SAMPLES", 1_000)
    from tests.trainer.planning.test_plan import small

    plan = small("model.seq_len=16", "batch.global_tokens=512", "data.total_tokens=1_000_000")
    checks, findings, whole = check_order(plan)
    assert not whole
    assert findings == []
    assert 0 < sum(check.found for check in checks) <= plan.steps * 32
    assert np.all([check.most is None for check in checks])
