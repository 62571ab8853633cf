"""The doctor names the fault that was planted, first; and nothing in a healthy run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.tools.sick import corpus, first, judged, running, sets, train
from trainer.loader import Loader
from trainer.tools.causes import progress
from trainer.tools.causes import running as causes_of_running
from trainer.tools.causes.case import Case
from trainer.tools.runs import open_run, plan_of


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def healthy(manifest, tmp_path_factory) -> Path:
    return train(manifest, tmp_path_factory.mktemp("run"), *sets(60, "checkpoint.save_every_steps=20", "monitoring.eval_every_steps=10"))


def test_a_healthy_run_has_nothing(healthy):
    assert first(healthy) == "", judged(healthy)


def test_learning_rate_times_100(manifest, tmp_path):
    train(manifest, tmp_path, *sets(40, "lr_schedule.peak_lr=0.3"))
    assert first(tmp_path) == "learning-rate"


class Shifted(Loader):
    """Labels that are the token itself."""

    def batch(self, *args, **kwargs):
        made = super().batch(*args, **kwargs)
        for micro in made.micros:
            micro["labels"][:] = np.where(micro["labels"] >= 0, micro["input_ids"], micro["labels"])
        return made


def test_labels_that_are_off_by_one(manifest, tmp_path, monkeypatch):
    train(manifest, tmp_path, *sets(30), loader=Shifted)
    monkeypatch.setattr("trainer.tools.doctor.Loader", Shifted)
    assert first(tmp_path) == "labels"
    assert "the token itself" in judged(tmp_path)[0].evidence[0]


def test_sources_one_behind_the_other(manifest, tmp_path):
    from tests.trainer.tiny import planned

    apart = (*sets(40), 'data.phases=[{name: a, share: 70%, mix: {web: 1, 书: 0}}, {name: b, share: 30%, mix: {web: 0, 书: 1}}]')
    other, _ = planned(manifest, *apart)

    class Unshuffled(Loader):
        def __init__(self, folders, plan, manifests, **options):
            super().__init__(folders, plan, manifests, **options)
            self.apart = Loader(folders, other, manifests, **options)

        def batch(self, *args, **kwargs):
            return self.apart.batch(*args, **kwargs)

    train(manifest, tmp_path, *sets(40), loader=Unshuffled)
    assert first(tmp_path) == "unshuffled"


def test_a_shard_of_garbage(tmp_path):
    def spoil(sources):
        rng = np.random.default_rng(9)
        for i in range(200, 250):
            sources["web"][i] = rng.integers(1, 64, 30).tolist()

    path = corpus(tmp_path / "c", changed=spoil, documents_per_shard=50)
    train(path, tmp_path / "r", *sets(60))
    found = judged(tmp_path / "r")
    assert found[0].cause == "garbage-shard"
    assert "shards/web/00004" in found[0].evidence[0]


def test_empty_documents(tmp_path):
    def empty(sources):
        for i in range(0, 400, 3):
            sources["书"][i] = []

    path = corpus(tmp_path / "c", changed=empty)
    train(path, tmp_path / "r", *sets(30))
    assert first(tmp_path / "r") == "empty-documents"


def test_a_frozen_layer(manifest, tmp_path, monkeypatch):
    with running(manifest, tmp_path, *sets(20, "checkpoint.save_every_steps=10")) as run:
        update = run.updater.step

        def without_a_layer(*args):
            for parameter in run.model.model.layers[1].mlp.parameters():
                parameter.grad.zero_()
            update(*args)

        monkeypatch.setattr(run.updater, "step", without_a_layer)
        run.run()
    found = judged(tmp_path)
    assert found[0].cause == "frozen"
    assert "model.layers.1.mlp.down_proj.weight" in " ".join(found[0].evidence)


class Restarted(Loader):
    """Reads from the start again behind step 20."""

    def batch(self, step, *args, **kwargs):
        return super().batch(step % 20, *args, **kwargs)


def test_a_resume_whose_data_start_over(manifest, tmp_path):
    train(manifest, tmp_path, *sets(30, "stop.after_steps=20"))
    train(manifest, tmp_path, *sets(30), loader=Restarted)
    found = judged(tmp_path)
    assert found[0].cause == "resume"
    assert "step 21 read the very tokens of step 1" in " ".join(found[0].evidence)


def test_a_resume_that_lost_the_weights(manifest, tmp_path):
    train(manifest, tmp_path, *sets(50, "stop.after_steps=40"))
    with running(manifest, tmp_path, *sets(50)) as run:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.5)
        run.run()
    assert first(tmp_path) == "resume"


def test_a_source_read_too_often(tmp_path):
    def few(sources):
        sources["书"][:] = sources["书"][:12]

    path = corpus(tmp_path / "c", changed=few)
    texts = sets(160, "data.repeat_limit=1000", "monitoring.eval_every_steps=16", "lr_schedule.peak_lr=1e-2", "data.mix={web: 0.6, 书: 0.4}")
    train(path, tmp_path / "r", *texts)
    found = judged(tmp_path / "r")
    assert found[0].cause == "over-repeated"
    assert found[0].title == "书 is read too often"


# ---- runs that are written down, not trained -------------------------------------------------------------------


def written(healthy: Path, out: Path, losses, starts=None, **fields) -> Path:
    """A run of these losses with the plan of a healthy one, stretched to their number; `fields` are columns, or numbers."""
    planned = json.loads((healthy / "plan.json").read_bytes())
    base = json.loads((healthy / "metrics.jsonl").read_text().splitlines()[0])
    lines = []
    for i, loss in enumerate(losses):
        own = {k: (v[i] if isinstance(v, list | np.ndarray) else v) for k, v in fields.items()}
        losses_of = {"web": loss, "书": loss}
        lines.append(base | {"step": i + 1, "loss": loss, "losses": losses_of, "digest": f"{i:032x}", "skipped": False, "seconds": 1.0, "data_wait": 0.0} | own)
    out.mkdir()
    (out / "plan.json").write_text(json.dumps(planned))
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "run.json").write_text(json.dumps({"starts": starts or [{"step": 0, "ranks": 1}]}))
    return out


def case(out: Path) -> Case:
    run = open_run(out)
    return Case(run, plan_of(run))


def decay(count: int, floor: float = 2.0, power: float = 0.3, noise: float = 0.02, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return (floor + 2.2 * np.arange(1, count + 1) ** -power + noise * rng.standard_normal(count)).tolist()


@pytest.fixture
def long_plan(manifest, tmp_path) -> Path:
    return train(manifest, tmp_path / "long", *sets(3000, "data.repeat_limit=1000", "stop.after_steps=2"))


def test_slow_late_progress_is_told_from_a_run_that_is_stuck(long_plan, tmp_path):
    slow = case(written(long_plan, tmp_path / "slow", decay(3000), lr=3e-3))
    assert progress.word(slow).startswith("slow but normal")
    assert list(progress.stuck(slow)) == []
    flat = decay(3000)
    flat[1200:] = [flat[1200] + 0.02 * float(x) for x in np.random.default_rng(1).standard_normal(1800)]
    dead = case(written(long_plan, tmp_path / "stuck", flat, lr=3e-3))
    assert [one.cause for one in progress.stuck(dead)] == ["stuck"]
    assert progress.word(dead).startswith("no progress")


def test_a_short_noisy_run_that_goes_as_before_is_not_called_stuck(long_plan, tmp_path):
    found = case(written(long_plan, tmp_path / "r", decay(63, noise=0.3), lr=3e-3))
    assert list(progress.stuck(found)) == []
    assert progress.word(found).startswith(("too noisy", "slow but normal"))


def test_over_twenty_seeds_slow_is_never_called_stuck(long_plan, tmp_path):
    called = [list(progress.stuck(case(written(long_plan, tmp_path / f"{s}", decay(1500, seed=s, power=0.25), lr=3e-3)))) for s in range(20)]
    assert sum(map(bool, called)) <= 1


def test_what_a_step_waits_for(long_plan, tmp_path):
    data = case(written(long_plan, tmp_path / "data", decay(100), seconds=1.0, data_wait=0.4))
    assert [one.cause for one in causes_of_running.waits_for_data(data)] == ["data-bound"]
    assert "data-bound" in causes_of_running.word(data)
    both = [{"step": 0, "ranks": 1}, {"step": 50, "ranks": 4}]
    speed = [100.0] * 50 + [180.0] * 50
    talk = case(written(long_plan, tmp_path / "talk", decay(100), starts=both, seconds=1.0, data_wait=0.0, tokens_per_second=speed))
    (found,) = causes_of_running.communication(talk)
    assert found.cause == "communication-bound"
    assert "100 tokens/s of each rank with 1, 45 with 4" in found.evidence[0]
    compute = case(written(long_plan, tmp_path / "compute", decay(100), seconds=1.0, data_wait=0.01))
    assert list(causes_of_running.waits_for_data(compute)) == list(causes_of_running.communication(compute)) == []
    assert causes_of_running.word(compute).endswith("compute-bound")


def test_a_profile_tells_communication(long_plan, tmp_path):
    out = written(long_plan, tmp_path / "r", decay(100), starts=[{"step": 0, "ranks": 8}], seconds=1.0, data_wait=0.0)
    (out / "profile").mkdir()
    events = [{"cat": "kernel", "name": "ncclDevKernel_AllGather", "dur": 40}, {"cat": "kernel", "name": "gemm", "dur": 60}]
    (out / "profile" / "profile-00000010-rank-00000.json").write_text(json.dumps({"traceEvents": events}))
    (found,) = causes_of_running.communication(case(out))
    assert "40% of the profiled time is communication" in found.evidence[0]


def test_a_loss_scale_at_its_floor(long_plan, tmp_path):
    scale = [65536.0 / 2**i for i in range(17)] + [1.0] * 43
    out = written(long_plan, tmp_path / "r", decay(60), loss_scale=scale, skipped=[True] * 17 + [False] * 43)
    assert first_of(out) == "loss-scale"


def first_of(out: Path) -> str:
    from trainer.tools.causes import findings

    return findings(case(out))[0].cause


def test_nan_by_a_gradient_that_grew_by_a_document_and_by_itself(long_plan, tmp_path):
    losses = [*decay(40), *[None] * 3]
    grown = [1.0] * 36 + [20.0, 60.0, 300.0, 900.0] + [None] * 3
    assert first_of(written(long_plan, tmp_path / "a", losses, grad_norm=grown)) == "learning-rate"
    calm = [1.0] * 40 + [None] * 3
    out = written(long_plan, tmp_path / "b", losses, grad_norm=calm)
    documents = [{"id": "aa" * 16, "source": "web", "loss": None}, {"id": "bb" * 16, "source": "web", "loss": 2.0}]
    (out / "incident-00000041.json").write_text(json.dumps({"step": 41, "verdict": "nonfinite", "documents": documents}))
    assert first_of(out) == "sample"
    assert first_of(written(long_plan, tmp_path / "c", losses, grad_norm=calm)) == "precision"


def test_memory_that_grows(long_plan, tmp_path):
    out = written(long_plan, tmp_path / "r", decay(100), memory=[(1000 + 5 * i) * 2**20 for i in range(100)])
    assert first_of(out) == "memory"


def test_spikes_that_come_again(long_plan, tmp_path):
    losses = decay(300)
    for i in (60, 120, 180, 240):
        losses[i] += 2.0
    assert first_of(written(long_plan, tmp_path / "r", losses)) == "spikes"


def test_the_command(healthy, tmp_path):
    from click.testing import CliRunner

    from trainer.cli import cli

    done = CliRunner().invoke(cli, ["doctor", str(healthy)])
    assert done.exit_code == 0, done.output
    assert "finished: 60 steps" in done.output
    done = CliRunner().invoke(cli, ["doctor", str(healthy), "--json"])
    assert json.loads(done.stdout.splitlines()[-1])["findings"] == [] or done.exit_code == 0
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert done.exit_code == 2
    assert "is no run folder" in done.output
