"""Training as a global stage: the same tokenizer however the corpus is cut, budgets, floors, files, cases."""

from __future__ import annotations

import base64
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from stages.document import document_batch
from stages.tokenizer import bpe, pretokenize
from stages.tokenizer.bpe import TrainTokenizer, thin
from stages.tokenizer.encode import Encoder
from stages.tokenizer.patterns import named_pattern
from stages.tokenizer.tokenizer_json import tokenizer_files
from tests.stages.bsp import Ran, parts_of, run_global

WORDS = [
    "river",
    "stone",
    "engine",
    "winter",
    "ladder",
    "图书馆",
    "今天",
    "天气",
    "学生",
    "老师",
    "の図書館",
    "กรุงเทพ",
    "हिन्दी",
    "don't",
    "it's",
    "1234",
]


def corpus(documents: int, seed: int = 0, words: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [
        "".join(rng.choice([" ", "，", "\n", ""]) + rng.choice(WORDS) for _ in range(words))
        for _ in range(documents)
    ]


def documents_of(source: str, texts: list[str]) -> list[pa.RecordBatch]:
    """One part of a source; the ids depend on source and row alone."""
    return [document_batch(source, ["a.jsonl"] * len(texts), list(range(len(texts))), texts)]


def card(ran: Ran) -> dict[str, Any]:
    return json.loads(ran.artifacts()["tokenizer-card.json"])


def encoder(ran: Ran) -> Encoder:
    return Encoder.load(ran.artifacts()["tokenizer.json"])


def test_files_do_not_depend_on_parts_batches_or_order(tmp_path: Path) -> None:
    """A tokenizer is a function of the documents and the settings."""
    texts, stage = corpus(60), TrainTokenizer(vocab_size=500, train_on=6_000)
    whole = documents_of("web", texts)[0]
    layouts = {
        "one": [[whole]],
        "three": [[whole.slice(0, 7), whole.slice(7, 13)], [], [whole.slice(20)]],
        "turned": [[whole.slice(35)], [whole.slice(0, 35)]],
    }
    made = {name: run_global(stage, parts, tmp_path / name).artifacts() for name, parts in layouts.items()}
    assert made["one"] == made["three"] == made["turned"]
    assert set(made["one"]) == {
        "tokenizer.json", "tokenizer.tiktoken", "tokenizer-card.json", "tokenizer-report.json", "report.html"
    }  # fmt: skip
    finer = type("Finer", (TrainTokenizer,), {"rows_per_task": 4})(vocab_size=500, train_on=6_000)
    ran = run_global(finer, layouts["three"], tmp_path / "finer")
    assert len(finer.supersteps(ran.parts)) == 4
    assert ran.artifacts() == made["one"]


def test_a_table_sent_early_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, stage = corpus(60), TrainTokenizer(vocab_size=500)
    whole = run_global(stage, parts_of(texts, [60]), tmp_path / "whole").artifacts()
    monkeypatch.setattr(bpe, "FULL_TABLE", 10)
    monkeypatch.setattr(pretokenize, "CHUNK", 64)
    assert run_global(stage, parts_of(texts, [60]), tmp_path / "often").artifacts() == whole


def test_bytes_of_the_files_change_only_with_the_version(tmp_path: Path) -> None:
    """When this fails on purpose, raise `TrainTokenizer.version` with the new digest."""
    ran = run_global(
        TrainTokenizer(vocab_size=500, train_on=6_000), [documents_of("web", corpus(60))], tmp_path
    )
    assert TrainTokenizer.version == 2
    assert card(ran)["sha256"]["tokenizer.json"][:16] == "e858f7f0eafa8a71"


def test_sample_is_the_smallest_keys_up_to_the_budget(tmp_path: Path) -> None:
    texts = corpus(50)
    batches = documents_of("web", texts)
    stage = TrainTokenizer(vocab_size=400, train_on=5_000)
    numbers = stage.emit(batches[0], 0)
    order = np.argsort(numbers.column("key").to_numpy())
    sizes = numbers.column("bytes").to_numpy()
    assert sizes.tolist() == [len(text.encode()) for text in texts]
    filled = np.cumsum(sizes[order])
    expected = int(np.searchsorted(filled, 5_000)) + 1
    made = card(run_global(stage, [batches], tmp_path / "a"))
    assert made["trained_on"]["documents"] == expected
    assert made["trained_on"]["bytes"] == filled[expected - 1]
    other = stage.model_copy(update={"seed": 1})
    assert other.emit(batches[0], 0).column("key") != numbers.column("key")


def test_a_mix_is_kept_and_a_scarce_source_is_told(tmp_path: Path) -> None:
    parts = [
        documents_of("web", corpus(80, 1)),
        documents_of("books", corpus(5, 2)),
        documents_of("code", corpus(20, 3)),
    ]
    stage = TrainTokenizer(vocab_size=400, train_on=20_000, train_mix={"web": 0.5, "books": 0.5})
    ran = run_global(stage, parts, tmp_path, sources=["web", "books", "code"])
    sources, available = card(ran)["sources"], len("".join(corpus(5, 2)).encode())
    assert sources["web"]["bytes"] == pytest.approx(10_000, abs=700)
    assert sources["books"]["bytes"] == sources["books"]["bytes_available"] == available
    assert sources["code"]["bytes"] == sources["code"]["documents"] == 0
    assert ran.counters["books.bytes_missing"] == 10_000 - available
    assert any("books" in warning for warning in card(ran)["warnings"])


def test_without_a_mix_sources_count_by_their_bytes(tmp_path: Path) -> None:
    parts = [documents_of("web", corpus(90, 1)), documents_of("books", corpus(30, 2))]
    stage = TrainTokenizer(vocab_size=400, train_on=10_000)
    sources = card(run_global(stage, parts, tmp_path, sources=["web", "books"]))["sources"]
    assert sources["web"]["bytes"] / sources["books"]["bytes"] == pytest.approx(3, rel=0.25)


def test_dropped_documents_teach_nothing(tmp_path: Path) -> None:
    texts = ["qqqq zzzz"] * 4 + ["aaaa bbbb"] * 4
    ran = run_global(
        TrainTokenizer(vocab_size=300),
        [documents_of("web", texts)],
        tmp_path,
        dropped={0: np.arange(4, dtype=np.uint32)},
    )
    assert card(ran)["trained_on"]["documents"] == 4
    assert b"qq" not in ran.artifacts()["tokenizer.json"]
    assert b"aaaa" in ran.artifacts()["tokenizer.json"]


def test_vocabulary_below_the_floor_is_refused_with_the_floor() -> None:
    with pytest.raises(ValidationError, match="floor of 257: 256 bytes and 1 special"):
        TrainTokenizer(vocab_size=100)
    with pytest.raises(ValidationError, match="floor of 259"):
        TrainTokenizer(vocab_size=258, special_tokens=("<|a|>", "<|b|>", "<|c|>"))
    assert TrainTokenizer(vocab_size=257).vocab_size == 257


def test_vocabulary_above_what_the_text_gives_is_told(tmp_path: Path) -> None:
    ran = run_global(TrainTokenizer(vocab_size=50_000), [documents_of("web", corpus(3))], tmp_path)
    real = card(ran)["vocab_size"]["real"]
    assert card(ran)["vocab_size"]["asked"] == 50_000
    assert (
        real
        == encoder(ran).vocab_size
        == Tokenizer.from_buffer(ran.artifacts()["tokenizer.json"]).get_vocab_size()
    )
    assert ran.counters["vocab_missing"] == 50_000 - real > 0
    assert any("50,000" in warning for warning in card(ran)["warnings"])


@pytest.mark.parametrize("parts", [[[]], [documents_of("web", ["", "", ""])]])
def test_no_text_gives_the_bytes(parts: list[list[pa.RecordBatch]], tmp_path: Path) -> None:
    ran = run_global(TrainTokenizer(vocab_size=300), parts, tmp_path)
    assert encoder(ran).vocab_size == 257
    ids, _ = encoder(ran).encode_batch(pa.array(["天"], pa.large_string()))
    assert ids.tolist() == list("天".encode())


def test_files_agree_with_each_other(tmp_path: Path) -> None:
    """Bytes, merges, then special tokens; ranks of the .tiktoken file are the ids of tokenizer.json."""
    stage = TrainTokenizer(vocab_size=450, special_tokens=("<|endoftext|>", "<|user|>", "<|结束|>"))
    ran = run_global(stage, [documents_of("web", corpus(40))], tmp_path)
    files, loaded = ran.artifacts(), encoder(ran)
    assert loaded.fast
    assert [loaded.decode([i]) for i in (65, 447, 448, 449)] == ["A", "<|endoftext|>", "<|user|>", "<|结束|>"]
    assert (loaded.eos_id, card(ran)["eos"], card(ran)["special_tokens"]["<|user|>"]) == (
        447,
        "<|endoftext|>",
        448,
    )
    ranks = [line.split() for line in files["tokenizer.tiktoken"].splitlines()]
    assert [int(rank) for _, rank in ranks] == list(range(447))
    assert [base64.b64decode(token) for token, _ in ranks] == [loaded.token_bytes(i) for i in range(447)]
    library = Tokenizer.from_buffer(files["tokenizer.json"])
    library.encode_special_tokens = True
    for text in [*corpus(20, 9), "a <|user|> b\r\n\t ''S"]:
        ids, _ = loaded.encode_batch(pa.array([text], pa.large_string()))
        assert ids.tolist() == library.encode(text).ids
        assert library.decode(ids.tolist(), skip_special_tokens=False) == loaded.decode(ids) == text


@pytest.mark.parametrize("token", ["eos", "", " x", "\u0120<|x", "。"])
def test_special_tokens_that_text_could_become_are_refused(token: str) -> None:
    with pytest.raises(ValidationError, match="special token"):
        TrainTokenizer(vocab_size=400, special_tokens=(token,))


def test_settings_that_contradict() -> None:
    with pytest.raises(ValidationError, match="gpt2"):
        TrainTokenizer(vocab_size=400, pattern="gpt2", digits=1)
    with pytest.raises(ValidationError, match="twice"):
        TrainTokenizer(vocab_size=400, special_tokens=("<|a|>", "<|a|>"))
    with pytest.raises(ValidationError, match="train_mix"):
        TrainTokenizer(vocab_size=400, train_mix={"web": 0.0})


def test_han_apart_and_single_digits(tmp_path: Path) -> None:
    stage = TrainTokenizer(vocab_size=800, pattern="qwen2", split_han=True)
    loaded = encoder(run_global(stage, [documents_of("web", ["，图书馆x图书馆 1234 " * 9] * 5)], tmp_path))
    tokens = {loaded.decode([i]) for i in range(256, loaded.vocab_size - 1)}
    assert "图书馆" in tokens
    assert not any(("馆x" in t or "，图" in t or "12" in t) for t in tokens)


def test_thinning_keeps_every_count_right_in_expectation() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 6, 60_000)
    lengths = np.full(len(counts), 30)
    hashes = rng.integers(0, 2**64, len(counts), dtype=np.uint64)
    assert thin(lengths, counts, hashes, 10**9)[1] == 1
    assert np.array_equal(thin(lengths, counts, hashes, 10**9)[0], counts)
    weights, floor = thin(lengths, counts, hashes, 500_000)
    assert floor > 1
    assert 30 * np.count_nonzero(weights) <= 500_000
    for count in range(1, 6):
        assert weights[counts == count].mean() == pytest.approx(count, rel=0.08)


def test_thinning_is_counted_and_frequent_pieces_survive(tmp_path: Path) -> None:
    rng = random.Random(4)
    rare = ["".join(rng.choices("天地玄黄宇宙洪荒日月盈昃辰宿列张", k=12)) for _ in range(3000)]
    texts = [" ".join(rare[i : i + 30]) + " frequent" * 30 for i in range(0, 3000, 30)]
    ran = run_global(TrainTokenizer(vocab_size=600, max_counted=20_000), parts_of(texts, [60, 40]), tmp_path)
    pieces = card(ran)["pieces"]
    assert pieces["learned_from"] < pieces["distinct"]
    assert pieces["thinned_below_count"] > 1
    assert ran.counters["thinned_pieces"] == pieces["distinct"] - pieces["learned_from"]
    ids, _ = encoder(ran).encode_batch(pa.array([" frequent"], pa.large_string()))
    assert len(ids) == 1


def test_learned_from_small_counts_by_hand() -> None:
    files = tokenizer_files(np.array([[97, 98], [256, 99]], np.int32), ("<|e|>",), named_pattern("gpt2"))
    loaded = Encoder.load(files["tokenizer.json"], eos="<|e|>")
    ids, _ = loaded.encode_batch(pa.array(["abcab c"], pa.large_string()))
    assert (ids.tolist(), loaded.eos_id) == ([257, 256, 32, 99], 258)


@pytest.mark.data
def test_case_one_line_of_chinese(shared: Path, tmp_path: Path) -> None:
    text = (shared / "cases" / "inputs" / "zh_no_punct.txt").read_text(encoding="utf-8")
    start = time.perf_counter()
    ran = run_global(TrainTokenizer(vocab_size=2000), [documents_of("zh", [text])], tmp_path)
    assert time.perf_counter() - start < 3
    assert card(ran)["trained_on"]["cut"] == ran.counters["cut"] == 1
    assert card(ran)["vocab_size"]["real"] == 2000


@pytest.mark.data
def test_case_long_documents_are_learned_from(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "cases" / "inputs" / "long_docs_vocab.jsonl").read_bytes().splitlines()
    texts = [orjson.loads(line)["text"] for line in lines]
    ran = run_global(TrainTokenizer(vocab_size=600), [documents_of("web", texts)], tmp_path)
    assert card(ran)["trained_on"]["documents"] == len(texts)
    short = Counter(word for text in texts if len(text) < 1000 for word in text.split())
    made_up = [Counter(t.split()).most_common()[0][0] for t in texts if len(t) > 1000]
    made_up += [
        w for t in texts if len(t) > 1000 for w, n in Counter(t.split()).items() if w not in short and n > 50
    ]
    for word in set(made_up):
        ids, _ = encoder(ran).encode_batch(pa.array([f" {word}"], pa.large_string()))
        assert len(ids) <= 2


@pytest.mark.data
def test_case_same_digest_in_either_order(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "cases" / "inputs" / "small_corpus.jsonl").read_bytes().splitlines()
    [batch] = documents_of("web", [orjson.loads(line)["text"] for line in lines])
    layouts = [[[batch]], [[batch.slice(20)], [batch.slice(0, 20)]], [[batch.slice(i, 1)] for i in range(40)]]
    digests = {
        card(run_global(TrainTokenizer(vocab_size=700), layout, tmp_path / str(i)))["sha256"][
            "tokenizer.json"
        ]
        for i, layout in enumerate(layouts)
    }
    assert len(digests) == 1
