"""A stage of a user's own, as corpus.yaml names it: `tests.pipeline.shout:Shout`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stages.contract.scalars import Count
from stages.stage import RowStage


class Shout(RowStage):
    """Makes text loud."""

    name: ClassVar[str] = "shout"

    marks: Annotated[Count, Field(description="How many exclamation marks.", ge=1)] = 1
    case: Annotated[Literal["upper", "title"], Field(description="How words are written.")] = "upper"
    table: str | None = None

    def problems(self) -> list[str]:
        """A table that is named must be called so."""
        return [f"there is no table `{self.table}`"] if self.table else []
