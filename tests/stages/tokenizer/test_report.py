"""The report on a tokenizer: counts by hand, text that must stay text, tokenizers of every kind."""

from __future__ import annotations

import json

import pyarrow as pa

from stages.tokenizer.encode import Encoder
from stages.tokenizer.report import SAMPLE, as_html, measure, report, shown, total
from tests.stages.tokenizer.test_encode import added, changed, remodelled, spec


def sample(*rows: tuple[str, str, str]) -> pa.Table:
    return pa.table([pa.array([row[i] for row in rows]) for i in range(3)], schema=SAMPLE)


def test_counts_by_source_and_language() -> None:
    encoder = Encoder.load(spec())
    texts = ["The dog", "今天天气", "", "The"]
    table = sample(*zip(["web", "zh", "web", "web"], ["en", "zh", None, "en"], texts, strict=True))
    groups, used, failures = measure(encoder, table)
    assert [(g["source"], g["language"]) for g in groups] == [("web", ""), ("web", "en"), ("zh", "zh")]
    assert [g["bytes"] for g in groups] == [0, 10, 12]
    assert [g["characters"] for g in groups] == [0, 10, 4]
    assert [g["words"] for g in groups] == [0, 3, 4]
    lengths = [len(encoder.encode_batch(pa.array([text], pa.large_string()))[0]) for text in texts]
    assert [g["tokens"] for g in groups] == [0, lengths[0] + lengths[3], lengths[1]]
    assert total(groups)["tokens"] == used.sum() == sum(lengths)
    assert failures == 0


def test_a_vocabulary_by_hand() -> None:
    made = report("x", Encoder.load(spec()), sample(("web", "en", "The quick dog " * 50)))
    shares = {row["script"]: row["tokens"] for row in made["scripts"]}
    assert sum(shares.values()) == 500
    assert shares["parts of characters"] >= 128
    assert shares["Han"] > 0
    assert made["unused"]["tokens"] < made["unused"]["of"] == 500 - 256
    assert [row["vocab_size"] for row in made["sizes"]] == [502]
    assert made["sizes"][0]["parameters"][0] == 502 * 768
    assert made["sizes"][0]["bytes_per_token"] == round(700 / made["measured"][0]["tokens"], 4)


def test_fewer_merges_are_a_smaller_tokenizer() -> None:
    text = pa.array(["The quick brown fox doesn't jump 今天天气很好"], pa.large_string())
    encoder = Encoder.load(spec())
    tokens = [encoder.tokens_with(text, size) for size in (258, 300, 400, 502)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] == len(text[0].as_py().encode())
    assert tokens[-1] == len(encoder.encode_batch(text)[0])


def test_others_are_measured_on_the_same_text() -> None:
    slow = Encoder.load(remodelled(byte_fallback=True))
    assert not slow.fast
    made = report("x", Encoder.load(spec()), sample(("web", "", "dog, fox")), [("slow", slow)])
    assert made["others"][0]["measured"] == made["measured"]
    alone = report("slow", slow, sample(("web", "", "dog, fox")))
    assert alone["sizes"][0]["bytes_per_token"] is None
    assert b"<svg" not in as_html(alone)


def test_the_page_escapes_what_comes_from_data() -> None:
    evil = '<script>alert("1")</script>'
    tokens = [*json.loads(spec())["added_tokens"], added(evil, 600)]
    encoder = Encoder.load(changed(added_tokens=tokens))
    page = as_html(report(evil, encoder, sample((evil, evil, "x"))))
    assert b"<script" not in page
    assert b"&lt;script&gt;" in page
    assert as_html(report("empty", encoder, SAMPLE.empty_table()))


def test_tokens_are_shown_so_that_everything_is_seen() -> None:
    assert shown(b" a\n\tb\x1b") == "·a\\n\\tb\\x1b"
    assert shown("天".encode()[:2]) == "<E5 A4>"
    assert shown("\u202e".encode()) == "\\u202e"
