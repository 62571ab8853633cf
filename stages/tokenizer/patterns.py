r"""Patterns: the regular expressions that cut text into pieces, by name, as settings and as tokenizer.json has them.

    gpt2     ' ?' before a run of letters, numbers or others; contractions in lower case
    gpt4     any one character but a line break before letters; up to 3 digits; line breaks end a run of others
    llama3   the same as gpt4
    qwen2    the same with single digits
    o200k    the same, but a word is capitals and then small letters, marks belong to words, a contraction ends its word
             (GPT-4o)
    deepseek numbers of 3 digits and runs of Han and kana first; in what is left, one ASCII sign with the ASCII letters
             behind it, any one sign that is neither before letters and marks, ' ?' before signs (DeepSeek V3)

The default is llama3: tools that run exported models know it by name, and numbers of three digits keep the length
of a number visible while they cost a third of the tokens. `split_han` adds `\p{Han}+` in front, so that no piece
mixes Han with Latin or kana letters or takes a punctuation mark before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PatternName = Literal["gpt2", "gpt4", "llama3", "qwen2", "o200k", "deepseek"]

#: Families of patterns.
GPT2, GPT4, O200K, DEEPSEEK = 0, 1, 2, 3

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_DEEPSEEK_REGEXES = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    + "\r\n" + r"""]*|\s*[""" + "\r\n" + r"""]+|\s+(?!\S)|\s+""",
)  # fmt: skip


@dataclass(frozen=True)
class Pattern:
    """How text is cut. `digits` is the longest run of numbers in one piece, 0 for any length (gpt2 only)."""

    family: int = GPT4
    digits: int = 3
    split_han: bool = False

    @property
    def regexes(self) -> tuple[str, ...]:
        """The same cutting as regular expressions (Oniguruma syntax, as `tokenizers` reads it).

        Each cuts what the one before it left: matches, and what lies between them, are pieces of their own.
        """
        if self.family == GPT2:
            return (_GPT2_REGEX,)
        if self.family == DEEPSEEK:
            return _DEEPSEEK_REGEXES
        numbers = r"\p{N}" if self.digits == 1 else rf"\p{{N}}{{1,{self.digits}}}"
        if self.family == O200K:
            words = (
                f"{_BEFORE}{_CAPITALS}*{_SMALL}+{_CONTRACTIONS}?|{_BEFORE}{_CAPITALS}+{_SMALL}*{_CONTRACTIONS}?"
            )
            return (rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",)
        han = r"\p{Han}+|" if self.split_han else ""
        letters = r"[\p{L}&&[^\p{Han}]]+" if self.split_han else r"\p{L}+"
        return (
            rf"{_CONTRACTIONS}|{han}{_BEFORE}{letters}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )

    def pre_tokenizer(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json that cuts like this."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.family == GPT2,
        }
        if self.family == GPT2:
            return byte_level
        splits = [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in self.regexes
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def named_pattern(name: PatternName, digits: int | None = None, split_han: bool = False) -> Pattern:
    """The pattern of that name, with another limit for digits or with Han apart. ValueError where it has neither."""
    if name in ("gpt2", "deepseek"):
        if digits is not None or split_han:
            raise ValueError(f"the pattern {name} is fixed: it takes neither `digits` nor `split_han`")
        return Pattern(GPT2, digits=0) if name == "gpt2" else Pattern(DEEPSEEK)
    if name == "o200k":
        if split_han:
            raise ValueError("the pattern o200k keeps Han in words with other letters: it takes no `split_han`")
        return Pattern(O200K, digits=digits or 3)
    return Pattern(digits=digits or (1 if name == "qwen2" else 3), split_han=split_han)


_KNOWN = {
    p.regexes: p
    for p in (
        Pattern(GPT2, digits=0),
        Pattern(DEEPSEEK),
        *(Pattern(O200K, digits) for digits in (1, 2, 3)),
        *(Pattern(GPT4, digits, han) for digits in (1, 2, 3) for han in (False, True)),
    )
}


def recognise(pre_tokenizer: Mapping[str, Any] | None) -> Pattern | None:
    """The pattern that the `pre_tokenizer` of a tokenizer.json cuts by, or None if it is none of ours."""
    steps = [pre_tokenizer] if pre_tokenizer else []
    if steps and steps[0].get("type") == "Sequence":
        steps = list(steps[0]["pretokenizers"])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    own_regex = steps.pop().get("use_regex", True)
    if not steps:
        return _KNOWN[(_GPT2_REGEX,)] if own_regex else None
    known = None if own_regex else _KNOWN.get(tuple(step.get("pattern", {}).get("Regex") for step in steps))
    # "Removed" with `invert` removes what the pattern does not match: the same, where a pattern matches everything.
    ways = {(step.get("type"), step.get("behavior"), step.get("invert", False)) for step in steps}
    allowed = {("Split", "Isolated", False)} | ({("Split", "Removed", True)} if len(steps) == 1 else set())
    return known if ways <= allowed else None
