"""Personal details and secrets: found by form and check digit, replaced by tags.

A compiled pass over the whole batch finds the places that may hold something (`hits.py`); only a window around each is
looked at in Python, with bounded patterns and without `\\b` (which sees no boundary between a digit and a Chinese
character). `addresses.py`, `numbers.py`, `phones.py` and `credentials.py` find; `spans.py` resolves overlaps and replaces.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar, Literal

import numpy as np
import phonenumbers
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.contract.config import Secret
from stages.document import with_column
from stages.pii.spans import KINDS, Kind, Scrubber, find_spans
from stages.stage import RowStage
from stages.verdict import give_verdict, mark_column


class Pii(RowStage):
    """Replaces e-mail addresses, phone numbers, ids, bank cards, IBANs, public IPs and secrets; counts them per row.

    Adds `pii.<kind>` (int32, how many were found). With `mark` the text stays as it is and rows are marked `pii.found`.
    """

    name: ClassVar[str] = "pii"
    version: ClassVar[int] = 3
    changes_text: ClassVar[bool] = True

    kinds: Annotated[tuple[Kind, ...], Field(min_length=1, description="What to look for.")] = tuple(KINDS)
    replace: Annotated[
        Literal["tag", "pseudonym", "remove"],
        Field(
            description="`<EMAIL>`, `<EMAIL-kqzjxbwp>` (the same letters for the same value and key), or nothing."
        ),
    ] = "tag"
    key: Annotated[Secret | None, Field(description="Key of the pseudonyms.")] = None

    @model_validator(mode="after")
    def _has_key(self) -> Pii:
        if self.replace == "pseudonym" and self.key is None:
            raise ValueError(
                "`replace: pseudonym` needs a `key`, so that nobody else can undo it by trying values"
            )
        return self

    def adds(self) -> dict[str, pa.DataType]:
        return {f"pii.{kind}": pa.int32() for kind in self._ordered()} | mark_column(self)

    def recipe(self) -> dict[str, str]:
        recipe = {}
        if "phone" in self.kinds:
            recipe["phonenumbers"] = phonenumbers.__version__
        if self.key is not None:  # the key itself is shown nowhere, and yet another key gives other bytes
            recipe["key"] = hashlib.blake2b(b"gristmill", key=self._key(), digest_size=8).hexdigest()
        return recipe

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column("text")
        kinds = self._ordered()
        clean, counts_NK = Scrubber(kinds, self.replace, self._key()).scrub(texts)
        mask = np.zeros(len(texts), bool)
        mask[list(clean)] = True
        if clean and not self.mark:
            fresh = pa.array([clean[row] for row in sorted(clean)], pa.large_string())
            batch = with_column(batch, "text", pc.replace_with_mask(texts, pa.array(mask), fresh))
        for column, kind in enumerate(kinds):
            batch = with_column(batch, f"pii.{kind}", pa.array(counts_NK[:, column], pa.int32()))
        return give_verdict(self, batch, mask, "pii.found", "") if self.mark else batch

    def explain(self, batch: pa.RecordBatch) -> list[str]:
        text = batch.column("text")[0].as_py()
        return [
            f"{span.kind} at {span.start} to {span.stop}: {text[span.start : span.stop]}"
            for span in find_spans(text, self._ordered())
        ]

    def _ordered(self) -> tuple[Kind, ...]:
        """The kinds in the order of `KINDS`, each once: the order a user writes them in changes nothing."""
        return tuple(kind for kind in KINDS if kind in self.kinds)

    def _key(self) -> bytes:
        """64 bytes at most, as BLAKE2b takes them; a longer key counts by its digest."""
        secret = b"" if self.key is None else self.key.reveal().encode()
        return secret if len(secret) <= 64 else hashlib.blake2b(secret).digest()
