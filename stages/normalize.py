"""Normalisation: one form for the same text, without touching what a reader can see.

NFC, `\\n` as the only line break, no control characters, no invisible junk, no trailing space, no long gaps.
Never a compatibility form: full-width letters, circled digits and ligatures stay as they are, and so do the zero-width
joiners that Persian, the scripts of India and emoji need, and the ideographic space.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from stages.document import with_column
from stages.stage import RowStage
from stages.verdict import give_verdict, mark_column

# Character classes in the common syntax of RE2 and re; \x{...} of RE2 is avoided by writing the characters themselves.
#: Break a line: vertical tab, form feed, CR, NEL, LINE SEPARATOR, PARAGRAPH SEPARATOR (CR LF first).
_BREAK = "\r\n|[\v\f\r\u0085\u2028\u2029]"
#: Go: controls but tab and line feed, soft hyphen, word joiner, byte order mark, annotation marks, noncharacters.
_JUNK = (
    "[\x01-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u2060\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff"
    + "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(1, 17))
    + "\\x00]"  # NUL as an escape: a C string would end here
)
#: ZERO WIDTH SPACE parts words in scripts that write none; anywhere else it is junk.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1a20-\u1aaf"
_LOOSE_SPACE = f"(?<![{_UNSPACED}])\u200b+|\u200b+(?![{_UNSPACED}\u200b])"
_NO_BREAK_SPACE = "[\u00a0\u2007\u202f]"
#: What may stand at the end of a line without being seen.
_SPACE = "[ \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]"

#: A text that this does not match, and that is in NFC, is left alone (`blank_lines` adds its own pattern).
_SUSPECT = f"{_BREAK}|{_JUNK}|\u200b|{_SPACE}\n|^\n|{_SPACE}$|\n$"
#: Something that can be seen.
_VISIBLE = r"[^\s\pZ\p{Cf}\p{Cc}]"
_MAY_COMPOSE = "[\u0300-\U0010ffff]"  # below, every character is its own NFC


class Normalize(RowStage):
    """Unicode NFC, line breaks, control and zero-width characters, spaces at line ends, gaps; drops `normalize.empty`."""

    name: ClassVar[str] = "normalize"
    version: ClassVar[int] = 1
    changes_text: ClassVar[bool] = True

    blank_lines: Annotated[
        int, Field(ge=0, description="Longer runs of blank lines are cut to this many.")
    ] = 2
    no_break_space: Annotated[
        bool, Field(description="Turn no-break spaces (U+00A0, U+2007, U+202F) into plain ones.")
    ] = True

    def adds(self) -> dict[str, pa.DataType]:
        return mark_column(self)

    def recipe(self) -> dict[str, str]:
        return {"unicodedata": unicodedata.unidata_version}

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column("text")
        suspect = pc.match_substring_regex(texts, self._suspect())
        rows = np.flatnonzero(pc.or_(suspect, pc.match_substring_regex(texts, _MAY_COMPOSE)))
        if len(rows):
            certain = suspect.take(pa.array(rows)).to_pylist()
            old = texts.take(pa.array(rows)).to_pylist()
            new = [
                self.clean(text) if sure or not unicodedata.is_normalized("NFC", text) else text
                for text, sure in zip(old, certain, strict=True)
            ]
            changed = [i for i in range(len(rows)) if new[i] != old[i]]
            if changed:
                mask = np.zeros(len(texts), bool)
                mask[rows[changed]] = True
                fresh = pa.array([new[i] for i in changed], pa.large_string())
                texts = pc.replace_with_mask(texts, pa.array(mask), fresh)
                batch = with_column(batch, "text", texts)
        empty = np.asarray(pc.invert(pc.match_substring_regex(texts, _VISIBLE)))
        return give_verdict(self, batch, empty, "normalize.empty", "no visible character")

    def clean(self, text: str) -> str:
        """The normal form of one text; `clean(clean(text)) == clean(text)`."""
        text = _PATTERNS["break"].sub("\n", text)
        text = _PATTERNS["junk"].sub("", text)
        text = _PATTERNS["loose space"].sub("", text)
        if self.no_break_space:
            text = _PATTERNS["no-break space"].sub(" ", text)
        text = unicodedata.normalize("NFC", text)
        lines = [line.rstrip(_SPACES) for line in text.split("\n")]
        text = "\n".join(lines).strip("\n")
        limit = self.blank_lines + 1
        return re.sub(f"\n{{{limit + 1},}}", "\n" * limit, text)

    def _suspect(self) -> str:
        pattern = f"{_SUSPECT}|\n{{{self.blank_lines + 2}}}"
        return f"{pattern}|{_NO_BREAK_SPACE}" if self.no_break_space else pattern


_PATTERNS = {
    "break": re.compile(_BREAK),
    "junk": re.compile(_JUNK),
    "loose space": re.compile(_LOOSE_SPACE),
    "no-break space": re.compile(_NO_BREAK_SPACE),
}
_SPACES = "".join(c for c in map(chr, range(0x3001)) if re.fullmatch(_SPACE, c))
