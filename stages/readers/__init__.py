"""Readers: files of any kind -> batches of documents; what cannot be read is said, never skipped.

Importing this costs nothing: Arrow and the format modules come with the first slice that needs them.
"""

from stages.readers.cut import split_points
from stages.readers.guess import FORMATS, compression_of, guess_format
from stages.readers.listing import Found, Listing, Skipped, list_files
from stages.readers.read import read_slice, recipe
from stages.readers.record import (
    DAMAGE_REASONS,
    REJECT_REASONS,
    Damaged,
    FileSlice,
    ReadSettings,
    Reject,
)
from stages.readers.streams import line_number
from stages.readers.template import CHAT, parse_template

__all__ = [
    "CHAT", "DAMAGE_REASONS", "FORMATS", "REJECT_REASONS",
    "Damaged", "FileSlice", "Found", "Listing", "ReadSettings", "Reject", "Skipped",
    "compression_of", "guess_format", "line_number", "list_files", "parse_template", "read_slice", "recipe",
    "split_points",
]  # fmt: skip
