"""Names that are safe in paths, the one JSON form that is hashed, and digests.

Source names come from a user and become folder names; other strings (ids, addresses) come from data and may
become file names. Neither may ever reach outside of the output folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Any

#: Device names of Windows: a file of that name, with any ending, cannot be made there.
RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{p}{i}" for p in ("com", "lpt") for i in range(10))})

LONGEST_NAME = 64  # characters
LONGEST_NAME_BYTES = 200  # file systems take 255 bytes; endings are put behind a name

_CLEAN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_HASHED = re.compile(r".*-[0-9a-f]{16}")


def canonical_json(value: Any) -> bytes:
    """The value as JSON in the one form that is hashed: keys sorted, no spaces, UTF-8.

    NaN and infinities raise ValueError, since JSON has none. A lone surrogate (it comes with file names that are
    not UTF-8) is written as its JSON escape: the bytes stay valid UTF-8 and read back as the same string.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def digest(*parts: bytes | str) -> str:
    """SHA-256 of the parts as 64 hex digits. Each part goes in behind its length, so ("ab", "c") != ("a", "bc")."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def source_uid(name: str) -> str:
    """What the data order knows a source by: 16 hex digits of the SHA-256 of its name."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def check_source_name(name: str) -> str | None:
    """What is wrong with the name of a source, as a sentence; None if nothing is.

    Letters, marks and digits of any script, `_` and `-`. No dot: `web.0` names a bucket of `web`.
    """
    shown = f"`{name}`"
    if not name:
        return "a source name is empty"
    if len(name) > LONGEST_NAME or len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME_BYTES:
        return f"the source name {shown} is longer than {LONGEST_NAME} characters or {LONGEST_NAME_BYTES} bytes"
    wrong = [c for c in name if c not in "_-" and unicodedata.category(c)[0] not in "LMN"]
    if wrong:
        listed = " ".join(dict.fromkeys("a space" if c == " " else c for c in wrong))
        return f"the source name {shown} holds {listed}; allowed are letters, digits, `_` and `-`"
    if name.startswith("-") or unicodedata.category(name[0]).startswith("M"):
        return f"the source name {shown} must start with a letter, a digit or `_`"
    if unicodedata.normalize("NFC", name) != name:
        return f"the source name {shown} is not in Unicode form NFC, so it would not be the same name everywhere"
    if name.casefold() in RESERVED:
        return f"the source name {shown} is the name of a device on Windows"
    return None


def path_name(text: str) -> str:
    """A file name for any string, ASCII, at most 64 characters; different strings get different names.

    A plain name stays as it is. Anything else keeps its harmless characters for the eye and gets 16 hex digits of
    its SHA-256; so does a plain name that already ends that way, or it could be made to collide.
    """
    if _CLEAN.fullmatch(text) and not _HASHED.fullmatch(text) and text.casefold() not in RESERVED:
        return text
    readable = re.sub(r"[^A-Za-z0-9_]+", "_", text)[:40].strip("_") or "x"
    return f"{readable}-{digest(text)[:16]}"
