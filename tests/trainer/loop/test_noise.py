from __future__ import annotations

import numpy as np
import pytest

from tests.trainer.tiny import corpus, fit, lines, overrides
from trainer.loop.noise import followed, scale_of


def test_the_scale_of_a_known_noise_is_found():
    rng = np.random.default_rng(0)
    true, spread, small, big = 0.5, 3.0, 16, 256
    size, means = 100, []
    for _ in range(3000):
        noise = rng.normal(0, spread, (big, size))
        mean_small, mean_big = (true + noise[:n].mean(0) for n in (small, big))
        means = followed(means, (float((mean_big**2).sum()), big), (float((mean_small**2).sum()), small))
    assert means[2] == pytest.approx(1.0, abs=1e-6)
    assert scale_of(means) == pytest.approx(spread**2 / true**2, rel=0.25)


def test_nothing_is_said_before_there_is_something_or_when_the_gradient_drowns():
    assert scale_of([]) is None
    assert scale_of([1.0, -0.1, 1.0]) is None
    assert followed([1.0, 2.0, 0.5], (1.0, 8.0), (1.0, 8.0)) == [1.0, 2.0, 0.5]


def test_a_run_of_several_passes_reports_it_and_one_of_one_pass_does_not(tmp_path):
    path = corpus(tmp_path / "corpus")
    for micro, there in ((2, True), (8, False)):
        sets = overrides(6, f"batch.micro_batch_size={micro}", "monitoring.log_every_steps=2")
        with fit(path, tmp_path / str(micro), *sets) as run:
            run.run()
            assert bool(run.state.noise) == there
        assert all("noise_scale" not in record for record in lines(tmp_path / str(micro))) or there
