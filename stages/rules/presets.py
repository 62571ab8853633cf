"""Thresholds by name, as the papers and datatrove 0.10 have them."""

from __future__ import annotations

from typing import Any, Literal

Preset = Literal["gopher", "c4", "fineweb", "code"]

#: Rae et al., 2021 (Gopher), tables A1.
_GOPHER: dict[str, Any] = {
    "min_words": 50,
    "max_words": 100_000,
    "min_mean_word_length": 3,
    "max_mean_word_length": 10,
    "max_hashes": 0.1,
    "max_ellipses": 0.1,
    "max_bullet_lines": 0.9,
    "max_ellipsis_lines": 0.3,
    "min_alphabetic": 0.8,
    "min_stop_words": 2,
    "max_duplicate_lines": 0.3,
    "max_duplicate_line_characters": 0.2,
    "max_duplicate_paragraphs": 0.3,
    "max_duplicate_paragraph_characters": 0.2,
    "max_top_ngrams": {2: 0.20, 3: 0.18, 4: 0.16},
    "max_repeated_ngrams": {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10},
}
#: Raffel et al., 2020 (T5), section 2.2; citations and cookie lines as its code has them.
_C4: dict[str, Any] = {
    "line_rules": True,
    "line_end_punctuation": True,
    "min_words_per_line": 3,
    "max_word_length": 1000,
    "min_sentences": 5,
    "drop_lorem_ipsum": True,
    "drop_curly_brackets": True,
}
#: Penedo et al., 2024 (FineWeb), section 3.
_FINEWEB: dict[str, Any] = {
    "min_terminal_lines": 0.12,
    "max_short_lines": 0.67,
    "short_line_length": 30,
    "max_repeated_line_characters": 0.01,
    "max_newlines": 0.3,
}
#: Kocetkov et al., 2022 (The Stack), section 3: lines and letters of source code.
_CODE: dict[str, Any] = {"max_line_length": 1000, "max_mean_line_length": 100, "min_alphanumeric": 0.25}

PRESETS: dict[Preset, dict[str, Any]] = {
    "gopher": _GOPHER,
    "c4": _C4,
    "fineweb": _GOPHER | _C4 | _FINEWEB | {"line_end_punctuation": False},
    "code": _CODE,
}
