"""The byte-level form of tokenizer.json: how bytes are written in it, and writing one from learned merges."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence

import numpy as np

from stages.tokenizer.patterns import Pattern


@functools.cache
def byte_alphabet() -> tuple[str, ...]:
    """The character that stands for each byte in a byte-level tokenizer.json.

    Printable Latin-1 stands for itself, the other 68 bytes are U+0100 upwards in order (the GPT-2 convention).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


@functools.cache
def _byte_of() -> dict[str, int]:
    return {char: byte for byte, char in enumerate(byte_alphabet())}


def token_bytes(token: str) -> bytes:
    """The bytes of a token as written in a byte-level vocabulary; one with other characters is its own UTF-8."""
    byte_of = _byte_of()
    if all(char in byte_of for char in token):
        return bytes(byte_of[char] for char in token)
    return token.encode()


def flat_tokens(tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """`(flat, offsets)`, uint8 and int64: the bytes of tokens as written in a byte-level vocabulary, back to back.

    ValueError if one has a character that stands for no byte.
    """
    table = np.full(1 << 16, -1, np.int16)
    for char, byte in _byte_of().items():
        table[ord(char)] = byte
    codes = np.frombuffer("".join(tokens).encode("utf-16-le", "surrogatepass"), "<u2")
    flat = table[codes]
    if flat.min(initial=0) < 0:
        raise ValueError("one of its tokens has characters that stand for no byte")
    offsets = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=offsets[1:])
    return flat.astype(np.uint8), offsets


def tokenizer_files(
    merges: np.ndarray, special_tokens: tuple[str, ...], pattern: Pattern
) -> dict[str, bytes]:
    """tokenizer.json and tokenizer.tiktoken for merges (int32, M x 2), by name."""
    alphabet = byte_alphabet()
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in merges.tolist():
        tokens.append(tokens[left] + tokens[right])
    written = ["".join(alphabet[byte] for byte in token) for token in tokens]
    added = [
        {
            "id": len(tokens) + number,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, content in enumerate(special_tokens)
    ]
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": pattern.pre_tokenizer(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(written)},
            "merges": [f"{written[left]} {written[right]}" for left, right in merges.tolist()],
        },
    }
    ranks = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))
    return {
        "tokenizer.json": (json.dumps(spec, ensure_ascii=False, indent=1) + "\n").encode(),
        "tokenizer.tiktoken": ranks,
    }
