"""What a plan may ask for and `fit` cannot do yet; `trainer plan` prices it all the same."""

from __future__ import annotations

from stages.contract.config import Loaded
from stages.contract.problem import SpecError
from stages.contract.tree import path_text, value_at
from trainer.config import PlanConfig

#: Values that `fit` knows, by key. A key that is not here is known with every value that plan.yaml allows.
BUILT: dict[tuple[str, str], tuple[object, ...]] = {
    ("parallel", "tensor_parallel"): (1,),
    ("parallel", "pipeline_parallel"): (1,),
}


def check_built(loaded: Loaded[PlanConfig]) -> None:
    """SpecError with every value that `fit` cannot do."""
    problems = []
    for path, known in BUILT.items():
        section, key = path
        asked = getattr(getattr(loaded.value, section), key)
        if asked not in known and value_at(loaded.tree, path) is not None:
            choices = " or ".join(str(one).lower() for one in known if one is not None)
            message = f"{path_text(path)}: {str(asked).lower()} can be planned, but not trained with"
            problems.append(loaded.problem("C009", message, path, (f"write {choices}",)))
    if problems:
        raise SpecError(*problems)
