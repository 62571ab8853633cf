"""Text to token ids, equal to what the `tokenizers` library gives for the same tokenizer.json, only faster.

Three promises hold for every tokenizer. Special tokens are never matched inside text (the switch that the library
forgets on saving is set after every load). No post-processor runs, so a document never brings its own BOS or EOS:
whoever writes shards appends `eos_id`, once. Nothing starts threads, so a fork before or after is harmless.

Byte-level BPE with a known pattern takes the fast path: compiled splitting, a bounded table of pieces seen before,
exact merging of new ones. Every other kind of tokenizer goes to the library, as do texts with an added token in them
whose rules are not ours; where a tokenizer asks for NFC, texts that NFC might change are normalized by the library.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

from stages.contract.problem import Problem, SpecError
from stages.document import text_buffers
from stages.text.memory import copy_bytes
from stages.tokenizer.added_tokens import AddedTokens, replace_ids
from stages.tokenizer.characters import nfc_unsafe
from stages.tokenizer.merging import LARGEST_ID, Merges, compile_merges
from stages.tokenizer.patterns import Pattern, recognise
from stages.tokenizer.piece_cache import PieceCache
from stages.tokenizer.pieces import PieceTable
from stages.tokenizer.tokenizer_json import byte_alphabet, flat_tokens, token_bytes

#: Names under which tokenizers keep the end of a document, the likeliest first.
EOS_NAMES = (
    "<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>", "<eos>", "<|eos|>", "[EOS]",
    "<end_of_text>", "<|eod|>", "<EOD>",
)  # fmt: skip

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class Encoder:
    """One loaded tokenizer. Safe to use from several threads: each has its own table of pieces.

    eos_id      id of the token that ends a document
    vocab_size  largest id + 1 (gaps in the numbering count)
    fast        whether the compiled path is taken; `why_slow` says what stands against it, else None
    """

    def __init__(self, content: bytes, eos: str | int | None = None, name: str = "tokenizer.json") -> None:
        """From the bytes of a tokenizer.json; `name` is for messages. SpecError: unreadable, or no EOS to be found."""
        self._content, self._name = content, name
        try:
            self._spec: dict[str, Any] = json.loads(content)
            ids = _ids_by_file(self._spec)
        except ValueError as error:
            raise SpecError(Problem("D004", f"{name} is not a tokenizer.json: {error}")) from error
        except (AttributeError, KeyError, TypeError):  # a form that is not known here
            ids = None
        if ids is None:
            ids = self._library.get_vocab(with_added_tokens=True)
        vocabulary = self._ids = ids
        self.vocab_size = max(vocabulary.values()) + 1
        if isinstance(eos, int):
            eos = next((token for token, number in ids.items() if number == eos), f"number {eos}")
        self.eos_token = _choose_eos(self._spec, vocabulary, eos, name)
        self.eos_id: int = vocabulary[self.eos_token]
        self.why_slow = _why_slow(self._spec)
        self._local = threading.local()
        self._nfc = _normalizer(self._spec) == ["NFC"]
        if self.why_slow is None:
            self._pattern: Pattern = recognise(self._spec["pre_tokenizer"])  # type: ignore[assignment]
            try:
                self._merges, self._whole = _compile(self._spec["model"])
            except ValueError as error:
                self.why_slow = str(error)
            normalize = NFC().normalize_str if self._nfc else str
            self._added = AddedTokens(self._spec.get("added_tokens") or [], vocabulary, normalize)
        self.fast = self.why_slow is None

    @classmethod
    def load(cls, source: str | Path | bytes, eos: str | int | None = None) -> Encoder:
        """From a path or the content of a tokenizer.json. `eos` is the end token, or its id, where it has an unusual name."""
        if isinstance(source, bytes):
            return cls(source, eos)
        try:
            content = Path(source).read_bytes()
        except OSError as error:
            raise SpecError(
                Problem("D004", f"the tokenizer {source} cannot be read: {error.strerror}")
            ) from error
        return cls(content, eos, str(source))

    def encode_batch(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, offsets)`: uint32 ids of all texts back to back, int64 offsets (n + 1); no EOS, no other additions.

        texts: a large_string array; a null is an empty text.
        """
        if texts.null_count:
            texts = pc.fill_null(texts, "")
        if not self.fast:
            return _joined([self._by_library(text) for text in texts.to_pylist()])
        changed = nfc_unsafe(*text_buffers(texts)) if self._nfc else np.zeros(len(texts), bool)
        normal = self._normalized(texts, changed)
        by_library = self._doubtful(texts, normal, changed)
        if not by_library.any():
            return self._encode(*text_buffers(normal))
        rest = pc.if_else(pa.array(by_library), pa.scalar("", pa.large_string()), normal)
        ids, bounds = self._encode(*text_buffers(rest))
        parts: list[np.ndarray] = []
        first = 0
        lengths = np.diff(bounds)
        for text in np.flatnonzero(by_library).tolist():
            made = self._by_library(texts[text].as_py())
            parts += [ids[bounds[first] : bounds[text]], made]
            lengths[text] = len(made)
            first = text
        parts.append(ids[bounds[first] :])
        return np.concatenate(parts), np.r_[0, np.cumsum(lengths)]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids, special tokens included as they are written; broken UTF-8 becomes U+FFFD.

        IndexError for an id outside of the vocabulary.
        """
        numbers = np.asarray(ids, np.int64)
        if not self.fast:
            return self._library.decode(numbers.tolist(), skip_special_tokens=False)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.vocab_size:
            raise IndexError(f"an id outside of 0 ... {self.vocab_size - 1}")
        return _gather(numbers, *self._spelling).tobytes().decode("utf-8", "replace")

    @functools.cached_property
    def _library(self) -> Tokenizer:
        """The tokenizer in the library, loaded when something needs it. SpecError if the library cannot read the file."""
        try:
            library = Tokenizer.from_buffer(self._content)
        except Exception as error:  # the library raises bare Exception
            raise SpecError(Problem("D004", f"{self._name} is not a tokenizer.json: {error}")) from error
        library.encode_special_tokens = True
        library.no_padding()
        library.no_truncation()
        return library

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that text never becomes."""
        added = self._spec.get("added_tokens") or []
        return frozenset(self._ids[token["content"]] for token in added if token.get("special"))

    def tokens_with(self, texts: pa.Array, vocab_size: int) -> int:
        """How many tokens the texts would have if the merge list ended where the vocabulary has that many ids.

        For the fast path only; added tokens are left out of account.
        """
        model = self._spec["model"]
        merges = model["merges"][: max(0, vocab_size - (self.vocab_size - len(model["merges"])))]
        cache = PieceCache(*_compile({**model, "merges": merges, "ignore_merges": False}), self._pattern)
        return len(cache.encode(*text_buffers(texts))[0])

    def token_bytes(self, number: int) -> bytes:
        """The bytes that an id stands for, empty for an id without a token."""
        flat, offsets = self._spelling
        return flat[offsets[number] : offsets[number + 1]].tobytes()

    @functools.cached_property
    def _spelling(self) -> tuple[np.ndarray, np.ndarray]:
        """`(flat, offsets)`, uint8 and int64: the bytes of all ids back to back."""
        spelled = [b""] * self.vocab_size
        added = {token["content"] for token in self._spec.get("added_tokens") or []}
        for token, number in self._ids.items():
            spelled[number] = token_bytes(token) if self.fast and token not in added else token.encode()
        offsets = np.zeros(len(spelled) + 1, np.int64)
        np.cumsum([len(token) for token in spelled], out=offsets[1:])
        return np.frombuffer(b"".join(spelled), np.uint8), offsets

    def _by_library(self, text: str) -> np.ndarray:
        """uint32 ids from the library; single calls, because its batches start threads."""
        return np.array(self._library.encode(text, add_special_tokens=False).ids, np.uint32)

    def _normalized(self, texts: pa.Array, changed: np.ndarray) -> pa.Array:
        """The texts with those of the mask in NFC, by the library's tables."""
        if not changed.any():
            return texts
        mask = pa.array(changed)
        normalize = NFC().normalize_str
        normal = [normalize(text) for text in texts.filter(mask).to_pylist()]
        return pc.replace_with_mask(texts, mask, pa.array(normal, pa.large_string()))

    def _doubtful(self, texts: pa.Array, normal: pa.Array, changed: np.ndarray) -> np.ndarray:
        """bool per text: whether an added token stands in it that only the library finds rightly.

        That is so where NFC changes a text, for some tokens are searched before it and some behind it, and for
        tokens with wishes about their surroundings.
        """
        if not self._added.some or (self._added.plain and not changed.any()):
            return np.zeros(len(texts), bool)
        found = self._added.stands_in(*text_buffers(texts)) | self._added.stands_in(*text_buffers(normal))
        return found & changed if self._added.plain else found

    def _encode(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fast path over Arrow buffers."""
        cuts, tokens = self._added.find(data, offsets)
        ids, bounds = self._cache().encode(data, cuts)
        return replace_ids(ids, bounds, cuts, tokens, offsets) if len(cuts) > len(offsets) else (ids, bounds)

    def _cache(self) -> PieceCache:
        """The table of pieces of this thread."""
        cache = getattr(self._local, "cache", None)
        if cache is None:
            cache = self._local.cache = PieceCache(self._merges, self._whole, self._pattern)
        return cache


def _ids_by_file(spec: dict[str, Any]) -> dict[str, int] | None:
    """The id of each token of a BPE, added ones included; None where the library may see it in another way.

    The library numbers added tokens itself: by the vocabulary, else behind all others, whatever the file says.
    """
    vocab = spec["model"]["vocab"]
    if spec["model"].get("type") != "BPE" or set(map(type, vocab.values())) != {int} or min(vocab.values()) < 0:
        return None
    ids, highest = dict(vocab), len(vocab) - 1
    seen = set()
    for token in spec.get("added_tokens") or []:
        content, number = token["content"], token["id"]
        if not content or content in seen or number != ids.get(content, highest + 1):
            return None
        seen.add(content)
        ids[content] = number
        highest = max(highest, number)
    return ids


def _choose_eos(spec: dict[str, Any], vocabulary: dict[str, int], wanted: str | None, name: str) -> str:
    """The token that ends documents: `wanted`, else the first usual name that the vocabulary has. SpecError if none."""
    special = [a["content"] for a in spec.get("added_tokens") or [] if a.get("special")]
    candidates = ", ".join(special[:8]) or "none is marked special"
    if wanted is not None:
        if wanted in vocabulary:
            return wanted
        message = f"{name} has no token {wanted!r} to end documents with; special tokens: {candidates}"
        raise SpecError(Problem("C005", message, repairs=tuple(f'tokenizer.eos: "{s}"' for s in special[:4])))
    for usual in EOS_NAMES:
        if usual in vocabulary:
            return usual
    message = f"{name} has no end-of-document token under a usual name; special tokens: {candidates}"
    raise SpecError(Problem("C002", message, repairs=tuple(f'tokenizer.eos: "{s}"' for s in special[:4])))


def _normalizer(spec: dict[str, Any]) -> list[str]:
    """The types of all normalizers, in order."""
    normalizer = spec.get("normalizer")
    if not normalizer:
        return []
    if normalizer["type"] == "Sequence":
        return [step["type"] for step in normalizer["normalizers"]]
    return [normalizer["type"]]


def _why_slow(spec: dict[str, Any]) -> str | None:
    """Why the compiled path cannot run this tokenizer; None if it can."""
    model = spec["model"]
    if model.get("type", "BPE") != "BPE":
        return f"its model is {model['type']}, not BPE"
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(setting):
            return f"its BPE has {setting}"
    missing = [byte for byte, char in enumerate(byte_alphabet()) if char not in model["vocab"]]
    if not _NEVER_IN_UTF8.issuperset(missing):
        return f"its vocabulary lacks {len(missing)} of the 256 bytes"
    if max(len(model["merges"]), *model["vocab"].values()) >= LARGEST_ID:
        return f"it has ids or merges above {LARGEST_ID:,}"
    if _normalizer(spec) not in ([], ["NFC"]):
        return f"its normalizer is {' + '.join(_normalizer(spec))}"
    if recognise(spec.get("pre_tokenizer")) is None:
        return "its pre-tokenizer is not one of the compiled patterns"
    return None


def _compile(model: dict[str, Any]) -> tuple[Merges, tuple[PieceTable, np.ndarray] | None]:
    """The merges as arrays and, for `ignore_merges`, the table of whole tokens with their ids.

    ValueError if a merge is not of tokens of the vocabulary in the byte alphabet.
    """
    vocab: dict[str, int] = model["vocab"]
    written = [token for token in vocab if token]
    try:
        flat, offsets = flat_tokens(written)
    except ValueError:  # some are not of bytes
        alphabet = frozenset(byte_alphabet())
        written = [token for token in written if alphabet.issuperset(token)]
        flat, offsets = flat_tokens(written)
    ids = np.array([*map(vocab.__getitem__, written)], np.int32)
    table = PieceTable(len(written), len(flat))
    table.intern(flat, 0, offsets[1:])
    pairs = model["merges"]
    if pairs and isinstance(pairs[0], str):
        parts = " ".join(pairs).split(" ")  # no token of bytes has a space
    else:
        parts = [part for pair in pairs for part in pair]
    flat, bounds = flat_tokens(parts)
    if len(parts) != 2 * len(pairs):
        raise ValueError("one of its merges is not of two tokens")
    found = [table.find(flat, b) for b in (bounds, bounds[::2].copy())]
    if min(f.min(initial=0) for f in found) < 0:
        raise ValueError("a token of its merges is not in its vocabulary")
    triples = np.stack([ids[found[0][::2]], ids[found[0][1::2]], ids[found[1]]], axis=1)
    byte_ids = np.array([vocab.get(char, -1) for char in byte_alphabet()], np.int32)
    return compile_merges(byte_ids, triples, flat, bounds), (table, ids) if model.get(
        "ignore_merges"
    ) else None


def _joined(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """`(ids, offsets)` of one array per text."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.concatenate([np.empty(0, np.uint32), *parts]), offsets


@njit(
    types.uint8[::1](types.Array(types.int64, 1, "A", readonly=True), _BYTES, types.int64[::1]),
    cache=True,
    nogil=True,
)
def _gather(ids, flat, offsets):  # type: ignore[no-untyped-def]
    """The bytes of the ids back to back."""
    size = np.int64(0)
    for number in ids:
        size += offsets[number + 1] - offsets[number]
    made = np.empty(size, np.uint8)
    at = np.int64(0)
    for number in ids:
        length = offsets[number + 1] - offsets[number]
        copy_bytes(made, at, flat, offsets[number], length)
        at += length
    return made
