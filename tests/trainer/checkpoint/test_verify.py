"""The proof of resume finds nothing where nothing is wrong, and something where something is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.contract.problem import RunError
from tests.trainer.tiny import corpus, fit, overrides, planned
from trainer.checkpoint import verify
from trainer.checkpoint.verify import Prover, proof_text, prove

SETS = overrides(8, "monitoring.eval_every_steps=2")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def here(manifest, monkeypatch) -> None:
    """Runs in this process, on one rank whatever is asked for."""

    def run(self, name, until, ranks):
        out = self.folder / name
        sets = (*SETS, f"stop.after_steps={until}", f"checkpoint.save_every_steps={self.steps}", "checkpoint.keep_last=9")
        micro = (f"batch.micro_batch_size={8 // ranks}",)
        with fit(manifest, out, *sets, *micro) as one:
            one.run()
        return out

    monkeypatch.setattr(Prover, "run", run)


def proof_of(manifest: Path, folder: Path, worlds=()) -> verify.Proof:
    return prove(planned(manifest, *SETS)[0], [], folder, 2, 1, worlds, lambda _: None)


def test_a_sound_trainer_has_no_findings_and_a_record_of_it(manifest, tmp_path):
    proof = proof_of(manifest, tmp_path / "v", worlds=(2, 4))
    assert proof.findings == []
    assert {"model", "optimizer exp_avg_sq", "state window", "tokens of each step", "learning rate of each step"} <= set(proof.same)
    assert proof.control_differs
    text = proof_text(proof)
    assert "no findings: a resumed run is the run" in text
    assert "4 ranks: the same tokens in every step" in text
    record = json.loads((tmp_path / "v" / "verify.json").read_bytes())
    assert record["negative_control"]["differs"] is True
    assert len(record["digest"]) == 64


def test_state_that_is_lost_on_resume_is_found_by_name(manifest, tmp_path, monkeypatch):
    plain = verify.Prover.run

    def forgetful(self, name, until, ranks):
        if name == "halves" and until == 4:
            path = self.folder / name / "checkpoints" / "step-00000002"
            verify._change(path.parents[1], 2)
        return plain(self, name, until, ranks)

    monkeypatch.setattr(verify.Prover, "run", forgetful)
    proof = proof_of(manifest, tmp_path / "v")
    assert "model is not the same at step 4" in proof.findings
    assert proof.same["optimizer exp_avg"][1] is False
    assert "DIFFERS" in proof_text(proof)


def test_a_comparison_that_cannot_fail_is_a_finding(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "_change", lambda out, steps: "nothing")
    proof = proof_of(manifest, tmp_path / "v")
    assert proof.findings == ["the comparison is blind: nothing was changed and nothing came out different"]


def test_other_tokens_in_another_world_are_a_finding(manifest, tmp_path):
    one = tmp_path / "one"
    with fit(manifest, one, *SETS) as run:
        run.run()
    shutil.copytree(one, tmp_path / "two")
    path = tmp_path / "two" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[0])
    path.write_text("".join([json.dumps(record | {"digest": "0" * 32}) + "\n", *lines[1:]]))
    assert verify._other_world(one, tmp_path / "two", 1e-4) == "step 1 read other tokens"
    path.write_text("".join([json.dumps(record | {"loss": record["loss"] * 1.01}) + "\n", *lines[1:]]))
    assert "the loss of step 1 is" in verify._other_world(one, tmp_path / "two", 1e-4)


def test_a_run_too_short_to_be_halved_is_told_so(manifest, tmp_path):
    with pytest.raises(RunError, match=r"twice 5 steps, but the run has 8[\s\S]*--steps 4"):
        prove(planned(manifest, *SETS)[0], [], tmp_path / "v", 5, 1, (), lambda _: None)


@pytest.mark.long
def test_the_command_with_processes_and_ranks(manifest, tmp_path):
    words = ["verify", "--manifest", str(manifest), "--steps", "2", "--world", "2", "--out", str(tmp_path / "v"), "--json"]
    pairs = [part for text in SETS for part in ("--set", text)]
    done = subprocess.run([sys.executable, "-m", "trainer.cli", *words, *pairs], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["findings"] == []
    assert found["worlds"] == {"2": "same tokens, same loss"}
