"""What can be planned but not trained with is refused by name before a run."""

from __future__ import annotations

import pytest

from stages.contract.problem import SpecError
from trainer.config import PlanConfig, read_plan
from trainer.planning.built import BUILT, check_built


def test_what_is_not_built_is_refused_with_all_that_is():
    with pytest.raises(SpecError) as caught:
        check_built(read_plan(None, ["parallel.tensor_parallel=2", "precision.compute=bf16"]))
    (problem,) = caught.value.problems
    assert problem.code == "C009"
    assert problem.repairs == ("write 1",)


def test_the_defaults_are_built():
    check_built(read_plan(None))
    for section, key in BUILT:
        assert getattr(getattr(PlanConfig(), section), key) in BUILT[section, key]
