"""Two runs side by side: what differs, where they part first, and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.trainer.tools.sick import corpus, sets, train
from trainer.cli import cli
from trainer.tools.diff import compared
from trainer.tools.runs import open_run

SETS = sets(12)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"), documents=150)


@pytest.fixture(scope="module")
def base(manifest, tmp_path_factory) -> Path:
    return train(manifest, tmp_path_factory.mktemp("base"), *SETS)


def against(manifest: Path, base: Path, out: Path, *more: str):
    return compared(open_run(base), open_run(train(manifest, out, *SETS, *more)))


def test_the_same_run_twice_is_the_same(manifest, base, tmp_path):
    found = against(manifest, base, tmp_path / "b")
    assert found.same
    assert found.why is None


@pytest.mark.parametrize(
    ("more", "why", "step"),
    [
        ("lr_schedule.peak_lr=1e-3", "another learning rate: schedule.min_lr", 1),
        ("seed=7", "read other tokens: the order of the data differs from link 0 on: the seed of the order", 1),
        # The first update is the sign of the gradient whatever beta2 is, so but for rounding the second is the first to differ.
        ("optimizer.beta2=0.5", "another update the step before: optimizer.beta2 0.95 / 0.5", (2, 3)),
        ("model.norm_eps=1e-2", "other weights or arithmetic: model.norm_eps", 1),
        ("data.mix={web: 0.5, 书: 0.5}", "read other tokens: the order of the data differs from link 1 on", 1),
    ],
)
def test_why_they_part(manifest, base, tmp_path, more, why, step):
    found = against(manifest, base, tmp_path / "b", more)
    assert found.why is not None
    assert why in found.why
    assert found.partings[0].step in (step if isinstance(step, tuple) else (step,))


def test_labels_that_were_taken_away(manifest, base, tmp_path):
    from tests.trainer.corpora import document_ids

    names = tmp_path / "ids.txt"
    names.write_text("".join(f"{one.tobytes().hex()}\n" for one in document_ids("web", 60)))
    found = against(manifest, base, tmp_path / "b", f"data.tombstones={names}")
    assert "with other labels: data.tombstones" in (found.why or "")


def test_a_version_and_rounding(base, tmp_path):
    shutil.copytree(base, tmp_path / "b")
    about = json.loads((tmp_path / "b" / "run.json").read_bytes())
    about["starts"][-1]["torch"] = "9.9"
    (tmp_path / "b" / "run.json").write_text(json.dumps(about))
    lines = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    next(one for one in lines if one["kind"] == "step" and one["step"] == 5)["loss"] *= 1 + 1e-7
    (tmp_path / "b" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compared(open_run(base), open_run(tmp_path / "b"))
    assert found.why is not None
    assert found.why.startswith("step 5: rounding")
    assert "/ 9.9" in found.why


def test_the_command(manifest, base, tmp_path):
    done = CliRunner().invoke(cli, ["diff", str(base), str(base)])
    assert done.exit_code == 0, done.output
    assert "every step that both have is the same" in done.output
    train(manifest, tmp_path / "b", *SETS, "lr_schedule.peak_lr=1e-3")
    done = CliRunner().invoke(cli, ["diff", str(base), str(tmp_path / "b")])
    assert done.exit_code == 3
    assert "schedule.peak_lr" in done.output
    assert "they part here: step 1 has another learning rate" in done.output
    done = CliRunner().invoke(cli, ["diff", str(base), str(tmp_path / "b"), "--json"])
    assert json.loads(done.stdout.splitlines()[-1])["partings"][0]["step"] == 1
