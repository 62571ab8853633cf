"""The numbers that rules are made of, and their places in the table that the kernels fill."""

from __future__ import annotations

#: Lengths of n-grams, in words. Documents in scripts without spaces use twice as many units: a Chinese word has about two
#: characters, and 5 characters are repeated in any good text about one subject.
TOP_SIZES = (2, 3, 4)
REPEATED_SIZES = (5, 6, 7, 8, 9, 10)
UNITS_PER_WORD = 2
#: A document counts as written without spaces if more than one word in so many is a unit: Chinese about technical
#: matters is full of English words.
UNSPACED_FROM = 3

NAMES = (
    "characters", "words", "plain_words", "plain_word_characters", "alphabetic_words", "hashes", "ellipses",
    "units", "alphanumerics",
    "broken_lines", "bullet_lines", "ellipsis_lines",
    "filled_lines", "terminal_lines", "short_lines", "repeated_line_characters", "newlines",
    "lines", "duplicate_lines", "duplicate_line_characters", "longest_line",
    "paragraphs", "duplicate_paragraphs", "duplicate_paragraph_characters",
    *(f"top_{n}" for n in TOP_SIZES),
    *(f"repeated_{n}" for n in REPEATED_SIZES),
)  # fmt: skip
COLUMN = {name: number for number, name in enumerate(NAMES)}

# Numba takes globals as constants: one for each column.
(
    CHARACTERS, WORDS, PLAIN, PLAIN_CHARACTERS, ALPHABETIC, HASHES, ELLIPSES, UNITS, ALPHANUMERICS,
    BROKEN, BULLETS, ELLIPSIS_LINES, FILLED, TERMINAL_LINES, SHORT, REPEATED, NEWLINES, LINES, DUP_LINES,
    DUP_LINE_CHARACTERS, LONGEST, PARAGRAPHS, DUP_PARAGRAPHS, DUP_PARAGRAPH_CHARACTERS, TOP, *_,
) = range(len(NAMES))  # fmt: skip
REPEATED_NGRAMS = COLUMN[f"repeated_{REPEATED_SIZES[0]}"]
