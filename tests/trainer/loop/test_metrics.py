"""What a run says at its end."""

from __future__ import annotations

from trainer.loop.metrics import summary


def test_the_end_of_a_run_names_its_first_and_last_loss_and_the_holdout():
    records = [{"kind": "step", "step": n, "loss": 9.0 / n} for n in (1, 2, 3)]
    assert summary(records) == "loss 9.0000 at step 1, 3.0000 at step 3"
    records += [{"kind": "step", "step": 4, "loss": None}, {"kind": "eval", "step": 4, "loss": 3.5, "bits_per_byte": 1.25}]
    assert summary(records).endswith("3.0000 at step 3; holdout 3.5000, 1.2500 bits per byte")


def test_a_run_without_a_step_has_nothing_to_say():
    assert summary([]) is None
