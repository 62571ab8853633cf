"""The document that was planted in a step is found, whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.trainer.corpora import document_ids
from tests.trainer.tiny import alone
from tests.trainer.tools.sick import corpus, sets, speech, train
from trainer.checkpoint.attach import with_weights
from trainer.loader import Loader
from trainer.tools import spikes
from trainer.tools.runs import corpora, open_run, plan_of
from trainer.tools.spikes import SUSPECT, nearest, ranked, repetition, rules_for

TRAINED, STEPS = 100, 240

#: Numbers of planted documents in `web`.
PLANTED = list(range(25, 1000, 49))[:20]


def plant(sources) -> None:
    rng = np.random.default_rng(5)
    kinds = (
        lambda i: rng.integers(1, 64, 40).tolist(),  # noise
        lambda i: [int(rng.integers(1, 64))] * 40,  # one token again and again
        lambda i: rng.integers(1, 64, 3).tolist() * 13,  # a phrase again and again
        lambda i: speech(1, 40, seed=900 + i, dialect=7)[0] + speech(1, 40, seed=950 + i, dialect=7)[0],  # another language
    )
    for i, number in enumerate(PLANTED):
        sources["web"][number] = kinds[i % 4](i)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spikes")
    manifest = corpus(folder / "c", documents=1000, changed=plant)
    texts = sets(STEPS, f"stop.after_steps={TRAINED}", "lr_schedule.peak_lr=1e-2", "data.repeat_limit=100", "lr_schedule.decay=constant", "model.seq_len=64")
    train(manifest, folder / "r", *texts)
    return open_run(folder / "r")


def test_the_planted_document_is_first_in_19_of_20_trials(run):
    manifests, folders = corpora(run, [])
    plan = plan_of(run, manifests)
    names = document_ids("web", 1000)
    planted = {names[number].tobytes().hex() for number in PLANTED}
    trials = []
    with Loader(folders, plan, manifests) as loader:
        model = with_weights(plan, nearest(run, STEPS), alone())
        for number in PLANTED:
            name = names[number].tobytes()
            ((_, readings),) = loader.readings(name)
            for step in sorted({int(r["step"]) for r in readings if r["step"] >= TRAINED}):
                documents = ranked(model, loader, alone(), step)
                pieces = [one for one in documents if one.id == name.hex()]
                if max(len(one.ids) for one in pieces) >= 8:  # less of it says nothing
                    here = {one.id for one in documents} & planted
                    trials.append(name.hex() in {one.id for one in documents[: len(here)]})
    assert len(trials) >= 20
    assert sum(trials[:20]) >= 19
    assert sum(trials) >= 0.95 * len(trials)


def test_in_steps_without_a_planted_document_hardly_anything_is_suspect(run):
    manifests, folders = corpora(run, [])
    plan = plan_of(run, manifests)
    planted = {document_ids("web", 1000)[number].tobytes().hex() for number in PLANTED}
    alarms = looked = 0
    with Loader(folders, plan, manifests) as loader:
        model = with_weights(plan, nearest(run, STEPS), alone())
        for step in range(120, 240, 12):
            documents = ranked(model, loader, alone(), step)
            looked += 1
            alarms += any(one.suspicion > SUSPECT and one.id not in planted for one in documents)
    assert alarms <= looked // 5


def test_repetition():
    assert repetition(np.array([5] * 20)) > 0.9
    assert repetition(np.arange(20)) == 0.0
    assert repetition(np.array([1])) == 0.0


def test_the_command_writes_a_skip_file_that_a_plan_takes(run, monkeypatch):
    from click.testing import CliRunner

    from trainer.cli import cli
    from trainer.config import read_plan
    from trainer.loop import parallel

    monkeypatch.setattr(parallel, "join", lambda device: alone())
    monkeypatch.setattr(parallel, "leave", lambda: None)
    manifests, folders = corpora(run, [])
    names = document_ids("web", 1000)
    with Loader(folders, plan_of(run, manifests), manifests) as loader:
        model = with_weights(loader.plan, nearest(run, STEPS), alone())
        planted = {names[number].tobytes().hex() for number in PLANTED}
        step, name = next(
            (step, one.id)
            for step in range(TRAINED, STEPS)
            for one in spikes.weighed(model, loader, alone(), step)
            if one.id in planted and len(one.ids) > 25
        )
    done = CliRunner().invoke(cli, ["spikes", str(run.folder), "--step", str(step + 1)])
    assert done.exit_code == 3, done.output
    assert name in done.output
    folder = run.folder / f"spikes-{step + 1:08d}"
    assert yaml.safe_load((folder / "skip.yaml").read_text())["data"]["tombstones"] == "tombstones.txt"
    assert name in (folder / "tombstones.txt").read_text()
    assert "rules" in json.loads((folder / "report.json").read_bytes())
    plan = folder / "plan.yaml"
    plan.write_text(f"extends: [{folder / 'skip.yaml'}]\nname: again\n")
    assert read_plan(plan, ()).value.data.tombstones == str(folder / "tombstones.txt")
    done = CliRunner().invoke(cli, ["spikes", str(run.folder), "--step", "100000"])
    assert done.exit_code == 2
    assert "has steps 1 to 240" in done.output


def test_rules_fit_what_is_wrong(run):
    manifests, folders = corpora(run, [])
    plan = plan_of(run, manifests)
    with Loader(folders, plan, manifests) as loader:
        one = ranked(with_weights(plan, nearest(run, STEPS), alone()), loader, alone(), 120)[0]
    one.z_repetition, one.z_loss = 9.0, 0.0
    assert "max_repeated_ngrams" in rules_for([one])[0]
    one.z_repetition, one.z_loss = 0.0, 9.0
    assert rules_for([one])[0].startswith("- language")
    assert rules_for([]) == []


def test_without_an_earlier_checkpoint_it_says_so(run):
    with pytest.raises(spikes.SpecError, match="no sound checkpoint before step 3"):
        nearest(run, 3)


def test_text_of_a_tokenizer_that_cannot_be_read_is_numbers(run, tmp_path):
    (tmp_path / "t.json").write_text("{}")
    manifests, folders = corpora(run, [])
    with Loader(folders, plan_of(run, manifests), manifests) as loader:
        plan = loader.plan
        one = ranked(with_weights(plan, nearest(run, STEPS), alone()), loader, alone(), 120)[0]
    assert spikes.Reader(Path(tmp_path / "t.json")).snippet(one).replace(" ", "").isdigit()
