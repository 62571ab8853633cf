"""Smoke: a sound plan passes every gate; each planted fault fails at its own gate first."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from stages.contract.problem import SpecError
from tests.trainer.tiny import alone, planned
from tests.trainer.tools.sick import BASE, corpus, running, sets, speech
from trainer import model
from trainer.checkpoint.verify import Prover
from trainer.loader import Loader
from trainer.model import attention
from trainer.tools import overfit, smoke
from trainer.tools.overfit import Gate, failed, first_batch, gates
from trainer.tools.smoke import data_gates, length, record_of, rehearsal_gates, rehearse, require

SETS = sets(60)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Fewer tokens to learn by heart."""
    monkeypatch.setattr(overfit, "TOKENS", 96)


def examined(manifest: Path, *texts: str, loader: type[Loader] = Loader, all_of_them: bool = False) -> list[Gate]:
    """The gates up to the first that does not pass, or all."""
    plan, manifests = planned(manifest, *(texts or SETS))
    found: list[Gate] = []
    with loader([manifest.parent], plan, manifests) as feed:
        for gate in chain(data_gates(manifests, [manifest.parent]), gates(plan, feed, alone())):
            found.append(gate)
            if not gate.passed and not all_of_them:
                break
    return found


def first_cause(found: list[Gate]) -> str:
    bad = failed(found)
    return bad[0].cause if bad else ""


def test_a_sound_plan_passes(manifest):
    found = examined(manifest)
    assert failed(found) == []
    assert [gate.name for gate in found][-2:] == ["one batch by heart", "what it predicts"]


def test_the_floor_is_what_identical_beginnings_cost(manifest):
    plan, manifests = planned(manifest, *SETS)
    with Loader([manifest.parent], plan, manifests) as loader:
        batch = first_batch(loader, alone())
    batch.tokens = torch.tensor([1, 2, 1, 3, 1, 2])
    batch.labels = torch.tensor([2, -100, 3, -100, 2, -100])
    batch.segments = attention.Segments.of([0, 2, 4, 6], "cpu")
    assert batch.floor == pytest.approx(-(2 * math.log(2 / 3) + math.log(1 / 3)) / 3)


def test_labels_off_by_one(manifest):
    class Shifted(Loader):
        def batch(self, *args, **kwargs):
            made = super().batch(*args, **kwargs)
            for micro in made.micros:
                micro["labels"][:] = np.where(micro["labels"] >= 0, np.roll(micro["labels"], -1, axis=1), micro["labels"])
            return made

    found = examined(manifest, loader=Shifted)
    assert first_cause(found) == "labels"


def test_labels_that_the_model_shifts_again(manifest, monkeypatch):
    plain = model.token_losses

    def shifted(hidden, head, labels, *rest):
        return plain(hidden, head, torch.where(labels >= 0, labels.roll(-1), labels).clamp_max(63), *rest)

    monkeypatch.setattr(model, "token_losses", shifted)
    assert "labels" in {gate.cause for gate in failed(examined(manifest, all_of_them=True))}


def test_a_mask_that_leaks_the_future(manifest, monkeypatch):
    def leaking(q, k, v, starts):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, attention._spread(k, q.shape[1]), attention._spread(v, q.shape[1])))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)

    monkeypatch.setattr(attention, "_per_document", leaking)
    found = examined(manifest)
    assert first_cause(found) == "leak"
    assert "the future leaks" in failed(found)[0].evidence


def test_a_mask_that_lets_documents_see_each_other(manifest, monkeypatch):
    plain = attention._per_document

    def joined(q, k, v, segments):
        return plain(q, k, v, attention.Segments.of([0, segments.starts[-1]], q.device))

    monkeypatch.setattr(attention, "_per_document", joined)
    found = examined(manifest)
    assert first_cause(found) == "leak"
    assert "documents see each other" in failed(found)[0].evidence


def test_a_learning_rate_100_times_too_high(manifest):
    assert first_cause(examined(manifest, *SETS, "lr_schedule.peak_lr=0.5")) == "learning-rate"


def test_a_frozen_layer(manifest, monkeypatch):
    plain = model.FeedForward.forward
    monkeypatch.setattr(model.FeedForward, "forward", lambda self, x: plain(self, x).detach())
    found = examined(manifest)
    assert first_cause(found) == "frozen"
    assert "mlp" in failed(found)[0].evidence


def test_first_weights_that_are_too_large(manifest, monkeypatch):
    def large(plan, world):
        made = model.build(plan, world)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(20.0 if parameter.ndim == 2 else 1.0)
        return made

    monkeypatch.setattr(overfit, "build", large)
    assert first_cause(examined(manifest)) == "initialisation"


def test_garbage_and_empty_documents(tmp_path):
    def spoil(sources):
        rng = np.random.default_rng(9)
        for i in range(200, 250):
            sources["web"][i] = rng.integers(1, 64, 30).tolist()

    bad = corpus(tmp_path / "a", changed=spoil, documents_per_shard=50)
    manifests = planned(bad, *SETS)[1]
    assert first_cause(list(data_gates(manifests, [bad.parent]))) == "garbage-shard"
    same = corpus(tmp_path / "c", changed=lambda s: s["web"].__setitem__(slice(200, 250), [[7, 8, 9] * 10] * 50), documents_per_shard=50)
    assert first_cause(list(data_gates(planned(same, *SETS)[1], [same.parent]))) == "garbage-shard"
    other = corpus(tmp_path / "d", changed=lambda s: s["web"].__setitem__(slice(200, 250), speech(50, dialect=9)), documents_per_shard=50)
    assert first_cause(list(data_gates(planned(other, *SETS)[1], [other.parent]))) == ""
    empty = corpus(tmp_path / "b", changed=lambda s: s["书"].__setitem__(slice(0, 100), [[] for _ in range(100)]))
    assert first_cause(list(data_gates(planned(empty, *SETS)[1], [empty.parent]))) == "empty-documents"


# ---- the rehearsal ---------------------------------------------------------------------------------------------


@pytest.fixture
def here(manifest, monkeypatch) -> None:
    """`trainer fit` of the rehearsal in this process."""

    def run(self, name, until, ranks):
        out = self.folder / name
        own = (f"stop.after_steps={until}", f"checkpoint.save_every_steps={self.steps}", "checkpoint.keep_last=9")
        with running(manifest, out, *SETS, *own) as one:
            one.run()
        return out

    monkeypatch.setattr(Prover, "run", run)


def test_the_length_of_a_rehearsal(manifest):
    plan = planned(manifest, *SETS)[0]
    assert length(plan) == 20
    assert length(plan, 7) == 6
    assert length(plan, 1000) == 60


def test_a_rehearsal_of_a_sound_plan_passes_and_lets_fit_start(manifest, here, tmp_path):
    plan, manifests = planned(manifest, *SETS)
    found = rehearse([], tmp_path, 20, 1, lambda _: None)
    with Loader([manifest.parent], plan, manifests) as loader:
        all_of_them = [*rehearsal_gates(found, plan), smoke.export_gate(found, plan, loader, alone(), tmp_path)]
    assert failed([gate for gate in all_of_them if gate.name != "throughput"]) == []
    assert {gate.name for gate in all_of_them} >= {"loss falls", "memory flat", "resume exact", "export loads", "throughput"}
    path = tmp_path / "smoke.json"
    path.write_text(json.dumps(record_of([gate for gate in all_of_them if gate.name != "throughput"], plan, 20)))
    require(path, plan)
    with pytest.raises(SpecError, match="is of plan"):
        require(path, planned(manifest, *sets(60, "lr_schedule.peak_lr=1e-3"))[0])
    path.write_text(json.dumps(record_of([Gate("mask", False, "")], plan, 20)))
    with pytest.raises(SpecError, match="did not pass: mask"):
        require(path, plan)
    with pytest.raises(SpecError, match="cannot be read"):
        require(tmp_path / "none.json", plan)


def test_a_resume_that_is_not_exact_fails_its_gate(manifest, here, tmp_path, monkeypatch):
    from trainer.loop.fit import Fit

    plain = Fit.load

    def forgetful(self, found):
        plain(self, found)
        self.updater.forget()

    monkeypatch.setattr(Fit, "load", forgetful)
    found = rehearse([], tmp_path, 8, 1, lambda _: None)
    bad = failed(list(rehearsal_gates(found, planned(manifest, *SETS)[0])))
    assert "resume" in {gate.cause for gate in bad}


@pytest.mark.long
def test_the_command_with_processes(manifest, tmp_path, monkeypatch):
    import subprocess
    import sys

    pairs = [part for text in (*BASE, f"data.total_tokens={256 * 60}") for part in ("--set", text)]
    words = ["smoke", "--manifest", str(manifest), *pairs, "--json"]
    done = subprocess.run([sys.executable, "-m", "trainer.cli", *words], capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    fit = ["fit", "--manifest", str(manifest), *pairs, "--after-smoke", "--set", "stop.after_steps=2"]
    again = subprocess.run([sys.executable, "-m", "trainer.cli", *fit], capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert again.returncode == 75, again.stderr


def test_fit_without_a_passed_smoke_is_refused(manifest, tmp_path, monkeypatch):
    from trainer.cli import cli

    monkeypatch.chdir(tmp_path)
    words = ["fit", "--manifest", str(manifest), "--after-smoke"]
    done = CliRunner().invoke(cli, [*words, *(part for text in SETS for part in ("--set", text))])
    assert done.exit_code == 2, done.output
    assert "trainer smoke" in done.output
