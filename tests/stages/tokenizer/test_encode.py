"""Ids equal to those of `tokenizers`, for our own and for published tokenizers; EOS, specials, forks."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.contract.problem import SpecError
from stages.tokenizer import piece_cache
from stages.tokenizer.encode import Encoder
from stages.tokenizer.learn import learn_merges
from stages.tokenizer.patterns import Pattern, named_pattern
from stages.tokenizer.tokenizer_json import byte_alphabet, token_bytes, tokenizer_files

SAMPLE = (
    "The quick brown fox doesn't jump; the lazy dog's the one. 1234567 times\n\n\tdef f(x):\n        return x\r\n"
    "我们今天去图书馆看书，然后去吃饭。今天天气很好，我们很高兴。 日本語のテキストです。 กรุงเทพมหานคร हिन्दी में 👩‍💻 "
)
TEXTS = st.lists(
    st.text() | st.text(st.sampled_from(SAMPLE + "<|endoftext|>\u0301\x00"), max_size=300), max_size=6
)

LLAMA3 = named_pattern("llama3")
PARTS = ["<tool>", "<", "tool", ">", " ", "中", "e\u0301", "<|endoftext|>"]


@functools.cache
def spec(pattern: Pattern = LLAMA3) -> bytes:
    """A tokenizer.json learned from the sample."""
    pieces = [piece.encode() for piece in ["".join(SAMPLE[i : i + 9]) for i in range(len(SAMPLE) - 9)]]
    distinct = sorted(set(pieces))
    offsets = np.r_[0, np.cumsum([len(piece) for piece in distinct])].astype(np.int64)
    counts = np.array([pieces.count(piece) for piece in distinct], np.int64)
    merges = learn_merges(np.frombuffer(b"".join(distinct), np.uint8), offsets, counts, EOS)
    return tokenizer_files(merges, ("<|endoftext|>", "<|im_start|>"), pattern)["tokenizer.json"]


#: Bytes and merges of the sample come before it.
EOS = 500


def changed(**keys: Any) -> bytes:
    return json.dumps({**json.loads(spec()), **keys}).encode()


def remodelled(**settings: Any) -> bytes:
    return changed(model={**json.loads(spec())["model"], **settings})


def added(content: str, number: int, special: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **flags}


def merged_outside_of_the_alphabet() -> bytes:
    model = json.loads(spec())["model"]
    vocab = {**model["vocab"], "\u4e2d": 6000, "\u4e2da": 6001}
    return remodelled(vocab=vocab, merges=[*model["merges"], "\u4e2d a"])


def by_library(content: bytes, texts: list[str]) -> list[list[int]]:
    library = Tokenizer.from_buffer(content)
    library.encode_special_tokens = True
    library.no_truncation()
    return [library.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    ids, offsets = encoder.encode_batch(pa.array(texts, pa.large_string()))
    assert (ids.dtype, offsets.dtype, len(offsets)) == (np.uint32, np.int64, len(texts) + 1)
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2", "o200k"])
@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
def test_ids_are_those_of_the_library_and_decode_to_the_text(name: Any, texts: list[str]) -> None:
    content = spec(named_pattern(name))
    encoder = Encoder.load(content)
    assert encoder.fast
    ids = encoded(encoder, texts)
    assert ids == by_library(content, texts)
    assert [encoder.decode(text) for text in ids] == texts


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS)
def test_whole_pieces_in_the_vocabulary_come_before_merges(texts: list[str]) -> None:
    vocab = json.loads(spec())["model"]["vocab"]
    whole = {"Ġlazzzy": 5000, "å¤©å¤©å¤©": 5001, "Ġ" * 40: 5002}
    content = remodelled(ignore_merges=True, vocab={**vocab, **whole})
    texts = [*texts, "a lazzzy lazzzyy day\n天天天 x" + " " * 41 + "y"]
    ids = encoded(Encoder.load(content), texts)
    assert ids == by_library(content, texts)
    assert {5000, 5001, 5002} <= set(ids[-1])


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS)
def test_nfc_is_applied_where_the_tokenizer_says_so(texts: list[str]) -> None:
    content = changed(normalizer={"type": "NFC"})
    encoder = Encoder.load(content)
    assert encoder.fast
    texts = [*texts, "e\u0301te\u0301", "\u1112\u1161\u11ab", "plain", "\u0344 \ufb1d"]
    assert encoded(encoder, texts) == by_library(content, texts)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(PARTS), max_size=8).map("".join), max_size=4))
def test_added_tokens_that_are_not_special_are_found_as_the_library_finds_them(texts: list[str]) -> None:
    tokens = [*json.loads(spec())["added_tokens"], added("<tool>", 7000), added("中中", 7001)]
    for normalizer in (None, {"type": "NFC"}):
        content = changed(added_tokens=tokens, normalizer=normalizer)
        encoder = Encoder.load(content)
        assert encoder.fast
        assert encoded(encoder, texts) == by_library(content, texts)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: changed(normalizer={"type": "NFKC"}), "NFKC"),
        (
            lambda: changed(
                pre_tokenizer={
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            ),
            "pre-token",
        ),
        (lambda: remodelled(byte_fallback=True), "byte_fallback"),
        (lambda: merged_outside_of_the_alphabet(), "stand for no byte"),
        (
            lambda: changed(model={"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}),
            "WordLevel",
        ),
    ],
)
def test_other_tokenizers_go_through_the_library(content: Any, reason: str) -> None:
    encoder = Encoder.load(content())
    assert not encoder.fast
    assert reason in str(encoder.why_slow)
    texts = ["a", "", "ﬁrst text", "说 <|endoftext|>"]
    assert encoded(encoder, texts) == by_library(content(), texts)


def test_special_tokens_are_plain_text_also_after_saving(tmp_path: Path) -> None:
    """Quoted markers become ordinary tokens and come back; a save and a load by a worker do not change that."""
    path = tmp_path / "tokenizer.json"
    Tokenizer.from_buffer(spec()).save(str(path))
    encoder = Encoder.load(path)
    text = "In GPT-2 <|endoftext|> ends a text, <|im_start|> begins a turn."
    [ids] = encoded(encoder, [text])
    assert not {encoder.eos_id, encoder.eos_id + 1} & set(ids)
    assert encoder.decode(ids) == text
    slow = Encoder.load(changed(normalizer={"type": "NFKC"}))
    assert encoded(slow, [text]) == [ids]
    assert encoder.decode([*ids, encoder.eos_id]) == text + "<|endoftext|>"


def test_post_processor_truncation_and_padding_are_not_run() -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}
                           for name, number in (("<|endoftext|>", EOS), ("<|im_start|>", EOS + 1))},
    }  # fmt: skip
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    for normalizer in (None, {"type": "NFKC"}):
        content = changed(post_processor=template, truncation=truncation, normalizer=normalizer)
        assert encoded(Encoder.load(content), ["one two three four <|endoftext|>"]) == encoded(
            Encoder.load(spec()), ["one two three four <|endoftext|>"]
        )


def test_nulls_slices_and_empty_arrays() -> None:
    encoder = Encoder.load(spec())
    array = pa.array(["first", None, "", "天气"], pa.large_string())
    ids, offsets = encoder.encode_batch(array)
    assert offsets[1] == offsets[2] == offsets[3]
    tail, _ = encoder.encode_batch(array.slice(3))
    assert tail.tolist() == ids[offsets[3] :].tolist() == encoded(encoder, ["天气"])[0]
    assert encoded(encoder, []) == []


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"NARROW_LIMIT": 8},
        {"WIDE_LIMIT": 8},
        {"NARROW_LIMIT": 64, "WIDE_LIMIT": 32},
    ],
)
def test_full_tables_of_pieces_change_nothing(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices(SAMPLE, k=400)) for _ in range(200)]
    expected = encoded(Encoder.load(spec()), texts)
    monkeypatch.setattr(piece_cache, "_FIRST", 8)
    for name, limit in limits.items():
        monkeypatch.setattr(piece_cache, name, limit)
    encoder = Encoder.load(spec())
    assert [encoded(encoder, [text])[0] for text in texts] == expected


@pytest.mark.parametrize("unit", ["天", "ab", " ", "我们今天去图书馆看书"])
def test_long_pieces_take_the_heap_and_give_the_same(unit: str) -> None:
    texts = [unit * n for n in (40, 127, 128, 129, 2000)]
    assert encoded(Encoder.load(spec()), texts) == by_library(spec(), texts)


def test_a_million_characters_without_a_space() -> None:
    """Quadratic merging would take hours here."""
    text = "今天天气很好我们去图书馆" * 80_000
    encoder = Encoder.load(spec())
    [ids] = encoded(encoder, [text])
    assert encoder.decode(ids) == text


MANY = "".join(chr(0x5920 + i) for i in range(40)) + "неэтояćąęłńóのですまた "


def learned_across_characters(seed: int, shuffled: bool = False) -> bytes:
    """A tokenizer.json whose merges come from windows of bytes: many reach into a character and out of it."""
    rng = random.Random(seed)
    # one character between many: what is common is its end with the first byte of any other, and its other side
    text = "".join(c + rng.choice("的是не") for c in rng.choices(MANY, k=3000)).encode()
    counted = Counter(text[at : at + rng.randint(2, 9)] for at in range(len(text) - 9))
    offsets = np.r_[0, np.cumsum([len(window) for window in counted])].astype(np.int64)
    counts = np.array(list(counted.values()), np.int64)
    merges = learn_merges(np.frombuffer(b"".join(counted), np.uint8), offsets, counts, 700)
    content = json.loads(tokenizer_files(merges, ("<|endoftext|>",), LLAMA3)["tokenizer.json"])
    if shuffled:
        rng.shuffle(content["model"]["merges"])
    return json.dumps(content).encode()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shuffled", [False, True])
def test_merges_that_reach_into_characters(seed: int, shuffled: bool) -> None:
    """Characters that begin as one token must never hide such a merge, nor merges in an order no training gives."""
    content = learned_across_characters(seed, shuffled)
    rng = random.Random(-seed)
    texts = ["".join(rng.choices(MANY + "的是не" * 20, k=rng.randint(1, 60))) for _ in range(400)]
    assert encoded(Encoder.load(content), texts) == by_library(content, texts)


def test_runs_of_spaces_that_are_added_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest at the leftmost place, again behind it, and around special tokens, which stay text."""
    own = [{**added(" " * n, 7000 + n), "normalized": True} for n in range(2, 25)]
    tokens = [
        *json.loads(spec())["added_tokens"],
        *own,
        added("| ", 7100),
        added("<|x|>  y", 7101, special=True),
    ]
    content = changed(added_tokens=tokens, normalizer={"type": "NFC"})
    rng = random.Random(5)
    units = [" ", "  ", " " * 30, "x", "\n", "<|endoftext|>", "<|x|>  y", "| ", "|", "中", ""]
    texts = ["".join(rng.choices(units, k=rng.randint(0, 12))) for _ in range(400)]
    encoder = Encoder.load(content)
    monkeypatch.setattr(encoder, "_by_library", None)  # the fast path takes them all
    assert encoded(encoder, texts) == by_library(content, texts)


def test_threads_share_an_encoder() -> None:
    rng = random.Random(2)
    texts = [["".join(rng.choices(SAMPLE, k=300)) for _ in range(100)] for _ in range(8)]
    encoder = Encoder.load(spec())
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(functools.partial(encoded, encoder), texts))
    assert results == [by_library(spec(), some) for some in texts]


def test_bytes_of_the_alphabet_round_trip() -> None:
    assert len(set(byte_alphabet())) == 256
    assert token_bytes("".join(byte_alphabet())) == bytes(range(256))
    assert token_bytes("｜") == "｜".encode()


def test_an_id_outside_of_the_vocabulary_is_refused() -> None:
    encoder = Encoder.load(spec())
    assert encoder.decode([]) == ""
    for number in (-1, EOS + 2):
        with pytest.raises(IndexError):
            encoder.decode([0, number])


def test_end_token_is_named_found_or_asked_for() -> None:
    encoder = Encoder.load(spec())
    assert (encoder.eos_token, encoder.eos_id, encoder.vocab_size) == ("<|endoftext|>", EOS, EOS + 2)
    assert Encoder.load(spec(), eos="<|im_start|>").eos_id == EOS + 1
    with pytest.raises(SpecError, match=r"<\|im_start\|>") as wrong:
        Encoder.load(spec(), eos="<end>")
    assert wrong.value.problems[0].repairs[0] == 'tokenizer.eos: "<|endoftext|>"'
    with pytest.raises(SpecError, match="usual name") as missing:
        Encoder.load(changed(added_tokens=[added("<|fin|>", EOS, special=True)]))
    assert "<|fin|>" in missing.value.problems[0].message


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        Encoder.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"model": 3}')
    with pytest.raises(SpecError, match=r"bad\.json"):
        Encoder.load(tmp_path / "bad.json")


_SLOW_TOO = [{}, {"normalizer": {"type": "NFKC"}}]


def _in_worker(content: bytes, texts: list[str], queue: Any) -> None:
    queue.put(encoded(Encoder.load(content), texts))


_FORKING = """
import multiprocessing, sys
import tests.stages.tokenizer.test_encode as t
texts = ["hello 天气 <|endoftext|>"] * 50
if __name__ == "__main__":
    for keys in t._SLOW_TOO:
        content = t.changed(**keys)
        expected = t.encoded(t.Encoder.load(content), texts)
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            workers = [context.Process(target=t._in_worker, args=(content, texts, queue)) for _ in range(2)]
            [worker.start() for worker in workers]
            assert [queue.get(timeout=50) for _ in workers] == [expected] * 2
            [worker.join(50) for worker in workers]
    print("same")
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_use_in_the_parent_then_fork_and_spawn_neither_hangs_nor_warns(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(_FORKING)
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    environment.pop("TOKENIZERS_PARALLELISM", None)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "same\n"
    assert done.stderr == ""


def _stored(path: Path) -> bytes:
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def _published(folder: Path, name: str) -> bytes:
    if name != "gpt2":
        return _stored(folder / name / "tokenizer.json.zst")
    merges = _stored(folder / "gpt2" / "vocab.bpe.zst").decode().split("\n")[1:]
    model = {
        "vocab": json.loads(_stored(folder / "gpt2" / "encoder.json.zst")),
        "merges": [m for m in merges if m],
    }
    base = json.loads(spec(named_pattern("gpt2")))
    base["model"].update(model)
    base["added_tokens"] = [added("<|endoftext|>", 50256, special=True)]
    return json.dumps(base).encode()


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "fast", "column"),
    [("gpt2", True, "tiktoken:gpt2"), ("qwen3", True, "tokenizers:qwen3"), ("gpt_neox", True, "tokenizers:gpt_neox"),
     ("deepseek_v3", True, "tokenizers:deepseek_v3")],
)  # fmt: skip
def test_published_tokenizers_on_real_text(shared: Path, name: str, fast: bool, column: str) -> None:
    folder = shared / "data" / "tokenizers"
    content = _published(folder, name)
    encoder = Encoder.load(content)
    assert encoder.fast == fast
    vectors = [orjson.loads(line) for line in _stored(folder / "vectors" / "dev.jsonl.zst").splitlines()]
    plain = [row for row in vectors if not any(s in row["text"] for s in ("<|", "｜"))]
    assert encoded(encoder, [row["text"] for row in plain]) == [row["ids"][column] for row in plain]
    texts = [row["text"] for row in vectors]
    for path in sorted((shared / "data" / "mixture").glob("*/*.jsonl.zst")):
        lines = _stored(path).splitlines()
        texts += [orjson.loads(line)["text"][:4000] for line in lines[:: max(1, len(lines) // 8)]]
    assert encoded(encoder, texts) == by_library(content, texts)


@pytest.mark.data
def test_o200k_and_its_rank_file_are_those_of_tiktoken(shared: Path) -> None:
    """The same ids on real text, in every language of the mixture, from the same regex in another engine."""
    tiktoken = pytest.importorskip("tiktoken")
    pattern = named_pattern("o200k")
    content = spec(pattern)
    ranks = {token_bytes(token): number for token, number in json.loads(content)["model"]["vocab"].items()}
    other = tiktoken.Encoding("o", pat_str=pattern.regexes[0], mergeable_ranks=ranks, special_tokens={})
    texts = []
    for path in sorted((shared / "data" / "mixture").glob("*/*.jsonl.zst")):
        lines = _stored(path).splitlines()
        texts += [orjson.loads(line)["text"][:4000] for line in lines[:: max(1, len(lines) // 4)]]
    assert encoded(Encoder.load(content), texts) == [other.encode_ordinary(text) for text in texts]


@pytest.mark.data
def test_round_trip_case(shared: Path) -> None:
    """Tabs, doubled spaces, line ends, full-width letters, signs of Devanagari: all come back."""
    lines = (shared / "cases" / "inputs" / "roundtrip.jsonl").read_bytes().splitlines()
    texts = [orjson.loads(line)["text"] for line in lines]
    encoder = Encoder.load(spec())
    assert [encoder.decode(ids) for ids in encoded(encoder, texts)] == texts
