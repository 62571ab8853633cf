"""`trainer plan` and `trainer fit` as processes: kills, signals, ranks, exit codes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny import corpus, lines, overrides
from trainer import checkpoint

STEPS = 24
SETS = overrides(
    STEPS,
    "batch.micro_batch_size=4",
    "checkpoint.save_every_steps=4",
    "checkpoint.keep_last=100",
    "monitoring.eval_every_steps=12",
    "monitoring.log_every_steps=12",
    "checkpoint.keep_best=false",
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def command(manifest: Path, out: Path, ranks: int, sets=SETS, *more: str) -> list[str]:
    pairs = [part for text in sets for part in ("--set", text)]
    fit = ["fit", "--manifest", str(manifest), "--out", str(out), "--ranks", str(ranks), *more, *pairs]
    return [sys.executable, "-m", "trainer.cli", *fit]


def start(arguments: list[str]) -> subprocess.Popen:
    def one_core() -> None:  # one thread: two wait for each other where cores are shared
        if (
            "--ranks" in arguments
            and arguments[arguments.index("--ranks") + 1] == "1"
            and sys.platform == "linux"
        ):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})

    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True, preexec_fn=one_core)


def run(arguments: list[str]) -> tuple[int, str, str]:
    process = start(arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def done(out: Path) -> checkpoint.Checkpoint:
    found, _ = checkpoint.newest(out / "checkpoints")
    assert found is not None
    assert found.step == STEPS
    return found


@pytest.fixture(scope="module")
def whole(manifest, tmp_path_factory) -> dict[int, Path]:
    """Runs that were never stopped, by ranks; `stdout` holds what `--json` printed."""
    found = {}
    for ranks in (1, 2):
        found[ranks] = tmp_path_factory.mktemp("whole") / str(ranks)
        code, out, err = run(command(manifest, found[ranks], ranks, SETS, "--json"))
        assert code == 0, err
        assert "next: open" in err.splitlines()[-1]
        (found[ranks] / "stdout").write_text(out)
    return found


def same_end(a: Path, b: Path) -> None:
    """Both runs have the same parameters, optimizer state and metrics, bit for bit."""
    one, two = done(a), done(b)
    assert one.record.files == two.record.files  # with the SHA-256 of every file
    assert (one.path / checkpoint.COMPLETE).read_bytes() == (two.path / checkpoint.COMPLETE).read_bytes()
    for kind in ("step", "eval"):
        assert lines(a, kind) == lines(b, kind)


def wait_for_step(process: subprocess.Popen, out: Path, step: int) -> None:
    path = out / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b'"kind":"step"') < step:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def kill_while_saving(process: subprocess.Popen, root: Path, step: int) -> str:
    """SIGKILL when a save of `step` or a later one has begun; what the process had said."""
    while process.poll() is None:
        names = [path.name for path in root.glob("step-*.tmp")] if root.is_dir() else []
        if any(int(name[5:13]) >= step for name in names):
            process.kill()
        time.sleep(0.001)
    return process.communicate()[1]


def kill_rounds(manifest: Path, out: Path, sets: tuple[str, ...], rounds: int, stride: int) -> None:
    """Start, kill and start again, every second time in the middle of a save, else at a random step; then to the end."""
    rng = random.Random(rounds)
    root = out / "checkpoints"
    for number in range(rounds):
        before = max(checkpoint.folders(root), default=0)
        process = start(command(manifest, out, 1, sets))
        if number % 2 == 0:
            kill_while_saving(process, root, before + 5)
        else:
            wait_for_step(process, out, before + rng.randrange(1, stride))
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        if found := checkpoint.newest(root)[0]:
            assert found.step >= before
    code, _, err = run(command(manifest, out, 1, sets))
    assert code == 0, err
    assert "resumed from" in err


def test_three_kills_and_the_end_is_that_of_a_run_that_was_never_stopped(manifest, tmp_path, whole):
    kill_rounds(manifest, tmp_path, SETS, 3, 5)
    same_end(whole[1], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("background", ["false", "true"])
def test_twenty_kills_and_the_end_is_that_of_a_run_that_was_never_stopped(manifest, tmp_path, background):
    sets = (
        *overrides(240, "data.repeat_limit=100", "monitoring.eval_every_steps=20", f"checkpoint.async_save={background}"),
        "checkpoint.save_every_steps=4",
    )
    code, _, err = run(command(manifest, tmp_path / "a", 1, sets))
    assert code == 0, err
    kill_rounds(manifest, tmp_path / "b", sets, 20, 7)
    ends = [checkpoint.newest(tmp_path / name / "checkpoints")[0] for name in "ab"]
    assert ends[0].step == ends[1].step == 240
    assert ends[0].record == ends[1].record
    for kind in ("step", "eval"):
        assert lines(tmp_path / "a", kind) == lines(tmp_path / "b", kind)


def test_two_ranks_killed_then_stopped_end_as_never_stopped(manifest, tmp_path, whole):
    for step, how in ((6, signal.SIGKILL), (14, signal.SIGTERM)):  # 14 is beyond the lines of the first
        process = start(command(manifest, tmp_path, 2))
        wait_for_step(process, tmp_path, step)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        assert len(lines(tmp_path)) < STEPS
    assert "resumed from" in err
    assert process.returncode == 75
    assert "--ranks 2" in err.splitlines()[-1]
    code, _, err = run(command(manifest, tmp_path, 2))
    assert code == 0, err
    same_end(whole[2], tmp_path)


def test_two_ranks_see_the_batches_of_one_and_learn_the_same(whole):
    one, two = lines(whole[1]), lines(whole[2])
    assert [r["digest"] for r in one] == [r["digest"] for r in two]
    assert [r["targets"] for r in one] == [r["targets"] for r in two]
    for a, b in zip(one[:5], two[:5], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)


def parameters(path: Path) -> dict[str, torch.Tensor]:
    """The model of a checkpoint as whole tensors, whatever number of ranks wrote it."""
    found = checkpoint.read(path)
    assert isinstance(found, checkpoint.Checkpoint)
    named = {
        key.removeprefix("model/"): whole.shape
        for key, whole in found.record.tensors.items()
        if key[:6] == "model/"
    }
    tensors = {name: torch.zeros(shape) for name, shape in named.items()}
    checkpoint.load(found, {"model": tensors})
    return tensors


def test_two_ranks_have_the_parameters_of_one(whole):
    one, two = (parameters(whole[ranks] / "checkpoints" / "step-00000004") for ranks in (1, 2))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert float((tensor - two[name]).abs().max()) < 1e-5, name


def test_another_number_of_ranks_and_micro_batches_goes_on_with_the_same_batches(manifest, tmp_path, whole):
    root = tmp_path / "checkpoints"
    shutil.copytree(whole[1] / "checkpoints" / "step-00000004", root / "step-00000004")
    shutil.copy(whole[1] / "metrics.jsonl", tmp_path)
    code, _, err = run(command(manifest, tmp_path, 2, (*SETS, "batch.micro_batch_size=2")))
    assert code == 0, err
    assert f"4 of {STEPS} steps done" in err
    assert [r["digest"] for r in lines(tmp_path)] == [r["digest"] for r in lines(whole[1])]
    for a, b in zip(lines(tmp_path), lines(whole[1]), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def test_a_shard_that_is_shorter_than_stated_stops_before_the_first_step(tmp_path):
    path = corpus(tmp_path / "corpus")
    shard = next((tmp_path / "corpus" / "shards" / "web").glob("*.tok"))
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-100])
    code, _, err = run(command(path, tmp_path / "run", 1))
    assert code == 1
    assert shard.name in err
    assert f"{size:,}" in err
    assert f"{size - 100:,}" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_flipped_byte_is_found_when_asked_for(tmp_path):
    path = corpus(tmp_path / "corpus")
    shard = next((tmp_path / "corpus" / "shards" / "web").glob("*.tok"))
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    code, _, err = run(command(path, tmp_path / "run", 1, SETS, "--check-data"))
    assert code == 1
    assert shard.name in err


NAN = """
import sys, torch
import trainer.loop.fit, trainer.model
plain, step, forward = trainer.loop.fit.Fit.train_step, [0], trainer.model.Llama.forward
def train_step(self, batch, now):
    step[0] = now + 1
    return plain(self, batch, now)
def poisoned(self, *inputs):
    out = forward(self, *inputs)
    bad = step[0] in STEPS and torch.distributed.get_rank() == 1 and torch.is_grad_enabled()
    return out * float("nan") if bad else out
trainer.loop.fit.Fit.train_step, trainer.model.Llama.forward = train_step, poisoned
from trainer.cli import main
main()
"""


def ranks_of(script: Path, manifest: Path, out: Path, meeting: Path, sets) -> list[subprocess.Popen]:
    """Two ranks of `fit` under another program, as a scheduler would start them."""
    arguments = [
        sys.executable,
        str(script),
        *command(manifest, out, 2, sets)[3:],
        "--rendezvous",
        str(meeting),
    ]
    found = []
    for rank in (0, 1):
        names = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "PYTHONPATH": str(Path.cwd())}
        found.append(subprocess.Popen(arguments, env=os.environ | names, stderr=subprocess.PIPE, text=True))
    return found


def test_nan_on_one_rank_is_a_decision_of_all(manifest, tmp_path):
    script = tmp_path / "nan.py"
    script.write_text(NAN.replace("STEPS", "(7, *range(9, 99))"))
    sets = overrides(30, "monitoring.on_nonfinite=skip", "checkpoint.save_every_steps=8")
    ranks = ranks_of(script, manifest, tmp_path / "run", tmp_path / "meet", sets)
    errors = [rank.communicate(timeout=90)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], errors
    for step in (7, *range(9, 19)):
        incident = json.loads((tmp_path / "run" / f"incident-{step:08d}.json").read_text())
        assert incident["ranks"] == [1]
        assert len(incident["rows"]) == 8
    assert "step 7 was skipped on every rank" in errors[0]
    assert "error[T003]: 10 steps in a row" in errors[0]
    assert [r["skipped"] for r in lines(tmp_path / "run")] == [False] * 6 + [True, False] + [True] * 10
    last = checkpoint.newest(tmp_path / "run" / "checkpoints")[0]
    assert last.step == 16  # of finite parameters: no save takes others
    assert last.record.state.skipped == 9


def test_a_checkpoint_is_measured_and_writes_on(whole, manifest, tmp_path):
    pairs = [part for text in SETS for part in ("--set", text)]
    rest = ["--manifest", str(manifest), "--out", str(whole[1]), *pairs]
    code, out, err = run([sys.executable, "-m", "trainer.cli", "eval", *rest, "--json"])
    assert code == 0, err
    found = json.loads(out)
    assert found["step"] == STEPS
    assert 3 < found["sources"]["web"]["loss"] < 6
    assert found["sources"]["web"]["bits_per_byte"] is None  # the stand-in of a tokenizer has no vocabulary
    code, _, err = run([sys.executable, "-m", "trainer.cli", "eval", *rest, "--step", "5"])
    assert code == 2
    assert "no checkpoint of step 5" in err
    assert "4, 8, 12" in err
    code, _, err = run([sys.executable, "-m", "trainer.cli", "eval", *rest, "--set", "model.ffn=128"])
    assert code == 2
    assert "model.ffn: checkpoint 64, plan 128" in err


def test_json_lines_end_with_the_result(whole):
    for ranks in (1, 2):
        records = [json.loads(line) for line in (whole[ranks] / "stdout").read_text().splitlines()]
        assert [r["kind"] for r in records] == ["plan", "step", "eval", "step", "eval", "result"]
        assert {r["schema"] for r in records} == {1}
        assert records[-1]["exit"] == 0
        assert records[-1]["step"] == STEPS


def test_plan_prints_the_plan_without_torch(manifest):
    pairs = [part for text in SETS for part in ("--set", text)]
    program = "import sys; sys.argv[0] = 'trainer'\nfrom trainer.cli import main\ntry:\n main()\nfinally:\n print(sorted({'torch', 'ray', 'pyarrow', 'numba'} & sys.modules.keys()))"
    code, out, err = run([sys.executable, "-c", program, "plan", "--manifest", str(manifest), *pairs])
    assert code == 0, err
    assert out.splitlines()[-1] == "[]"
    assert "8 x 32" in out
    assert "书" in out
    assert err.splitlines()[-1].startswith("next: trainer fit --manifest ")


def test_help_imports_nothing_heavy():
    program = "import sys\nfrom trainer.cli import main\nsys.argv = ['trainer', '--help']\ntry:\n main()\nfinally:\n print(sorted({'torch', 'ray', 'pyarrow', 'numba', 'numpy', 'pydantic'} & sys.modules.keys()))"
    code, out, _ = run([sys.executable, "-c", program])
    assert code == 0
    assert out.splitlines()[-1] == "[]"


def test_wrong_command_lines_and_plans_are_code_2(manifest, tmp_path):
    code, _, err = run(command(manifest, tmp_path, 1, (*SETS, "model.widht=64")))
    assert code == 2
    assert "widht" in err
    assert not (tmp_path / "checkpoints").exists()
    code, _, _ = run([sys.executable, "-m", "trainer.cli", "fti"])
    assert code == 2
    code, _, err = run(command(tmp_path / "nothing", tmp_path, 1))
    assert code == 2
    assert "error[D001]" in err
