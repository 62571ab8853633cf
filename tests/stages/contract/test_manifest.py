"""The manifest: what is stated is checked against the bytes, and a foreign file is said to be one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stages.contract import manifest as m
from stages.contract.problem import SpecError
from tests.trainer.corpora import make_corpus, random_documents


@pytest.fixture
def corpus(tmp_path):
    sources = {"web": random_documents(60, 30), "书": random_documents(20, 90, seed=1)}
    make_corpus(tmp_path, sources, documents_per_shard=25, holdout={"web": random_documents(5, 20, seed=2)})
    return tmp_path


def messages(problems):
    return "\n".join(f"{problem.code} {problem.message}" for problem in problems)


def test_it_reads_back_as_written_and_names_nothing_of_the_machine(corpus):
    manifest = m.load_manifest(corpus)
    assert m.load_manifest(corpus / "manifest.json") == manifest
    data = (corpus / "manifest.json").read_bytes()
    assert manifest.to_bytes() == data
    assert data.endswith(b"}\n")
    assert "书".encode() in data
    assert str(corpus).encode() not in data
    assert list(json.loads(data)) == sorted(json.loads(data))
    assert manifest.sources["web"].uid == m.source_uid("web")
    assert len(manifest.sources["web"].shards) == 3


def test_a_sound_corpus_has_no_problems(corpus):
    manifest = m.load_manifest(corpus)
    assert m.verify_manifest(corpus, manifest) == []
    assert m.verify_manifest(corpus, manifest, deep=True) == []


def test_a_file_that_is_cut_or_missing_is_found_by_its_size(corpus):
    manifest = m.load_manifest(corpus)
    shard = corpus / "shards/web/00001.tok"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-100])
    (corpus / "holdout/web/00000.idx").unlink()
    (corpus / "tokenizer/tokenizer.json").write_text("another")
    for deep in (False, True):
        text = messages(m.verify_manifest(corpus, manifest, deep))
        assert f"{shard} has {size - 100:,} bytes, but the manifest states {size:,}" in text
        assert "00000.idx is missing" in text
        assert "tokenizer.json has SHA-256" in text
        assert len(text.splitlines()) == 3


def test_a_flipped_token_at_the_ends_of_a_shard_is_found_at_once_one_inside_by_reading(tmp_path):
    make_corpus(tmp_path, {"web": [[7] * 50_000] * 3})
    manifest = m.load_manifest(tmp_path)
    path = tmp_path / "shards/web/00000.tok"
    sound = np.fromfile(path, "<u2")
    for place, at_once in ((0, True), (75_000, False), (150_000, True)):
        tokens = sound.copy()
        tokens[place] = 999
        path.write_bytes(tokens.tobytes())
        assert ("is damaged: tokens" in messages(m.verify_manifest(tmp_path, manifest))) == at_once
        text = messages(m.verify_manifest(tmp_path, manifest, deep=True))
        assert "SHA-256" in text
        assert "D003" in text
        assert "holds id 999, which a vocabulary of 256 does not have" in text


def test_a_manifest_that_contradicts_itself(corpus):
    tree = json.loads((corpus / "manifest.json").read_bytes())
    tree["dtype"] = "uint32"
    tree["sources"]["web"]["tokens"] += 1
    tree["sources"]["web"]["largest_id"] = 256
    tree["sources"]["web"]["digest"] = "0" * 64
    tree["sources"]["web"]["shards"][0]["files"]["idx"]["bytes"] = 7
    text = messages(m.verify_manifest(corpus, m.Manifest.model_validate(tree)))
    for part in (
        "a vocabulary of 256 entries is stored as uint16",
        "source web states",
        "holds id 256",
        "another digest",
        "states 7 bytes of .idx, but its counts make 500",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no manifest"),
        ("not json", "is not JSON"),
        ('["a"]', "no manifest of `pipeline build`"),
        ('{"version": 3}', "no manifest of `pipeline build`"),
        ('{"format": 2, "sources": {}}', "this version reads format 1"),
        ('{"format": 1, "order_version": 2, "sources": {}}', "order 2"),
        ('{"format": 1, "sources": {"web": 3}, "colour": 1}', "sources.web"),
    ],
)
def test_a_file_that_is_no_manifest_is_said_to_be_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(SpecError) as caught:
        m.load_manifest(tmp_path)
    assert {problem.code for problem in caught.value.problems} == {"D001"}
    assert message in messages(caught.value.problems)


def test_the_length_histogram_counts_documents_and_tokens():
    lengths = np.array([1, 1, 2, 3, 4, 7, 8, 1000])
    found = m.Lengths.of(lengths)
    assert found.edges == tuple(1 << i for i in range(10))
    assert found.documents == (2, 2, 2, 1, 0, 0, 0, 0, 0, 1)
    assert found.tokens == (2, 5, 11, 8, 0, 0, 0, 0, 0, 1000)
    assert m.Lengths.of(lengths[:3]) + m.Lengths.of(lengths[3:]) == found
    assert m.Lengths.of(np.array([], np.int64)) + found == found
    assert m.Lengths.of(np.array([2**32 - 1])).documents[-1] == 1


def test_the_digest_of_a_source_is_over_content_and_order(corpus):
    shards = m.load_manifest(corpus).sources["web"].shards
    renamed = [shard.model_copy(update={"name": f"x{i}"}) for i, shard in enumerate(shards)]
    assert m.source_digest(renamed) == m.source_digest(shards)
    assert m.source_digest(shards[::-1]) != m.source_digest(shards)
