"""Inputs drawn from public bug reports, through a whole build: what must come out, and what must never happen."""

from __future__ import annotations

import html.parser
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from pipeline.engine.sealed import arrow_table
from stages.contract.manifest import Manifest, load_manifest
from stages.contract.problem import RunError, SpecError
from stages.contract.shard import read_index, read_tokens
from stages.tokenizer.encode import Encoder
from tests.pipeline.corpora import document, run_build, snapshot, write_jsonl

pytestmark = pytest.mark.data


@pytest.fixture
def inputs(shared: Path) -> Path:
    return shared / "cases" / "inputs"


def build(folder: Path, path: Path, stages: str = "[]", tokenizer: str = "{vocab_size: 300}", **source: object) -> Manifest:
    """The manifest of a build over one source, nothing held out."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.dumps({"path": str(path), **source}, ensure_ascii=False)
    (folder / "corpus.yaml").write_text(
        f"name: case\nsources: {{web: {settings}}}\nstages: {stages}\ntokenizer: {tokenizer}\n"
        "holdout: {share: 0}\noutput: {path: out}\n",
        encoding="utf-8",
    )
    run_build(folder / "corpus.yaml")
    return load_manifest(folder / "out")


def documents(folder: Path) -> list[tuple[dict, np.ndarray]]:
    """`(provenance, ids)` of every document in the shards of the build in `folder`."""
    out = folder / "out"
    manifest = load_manifest(out)
    found = []
    for source in manifest.sources.values():
        for shard in source.shards:
            lengths = read_index(shard.path(out, "idx"), shard.tokens)["length"]
            ids = read_tokens(shard.path(out, "tok"), np.dtype("<u2" if manifest.dtype == "uint16" else "<u4"), 0, shard.tokens)
            rows = arrow_table(shard.path(out, "docs")).to_pylist()
            found += list(zip(rows, np.split(ids, np.cumsum(lengths)[:-1]), strict=True))
    return found


def texts(folder: Path) -> list[str]:
    encoder = Encoder.load(folder / "out" / "tokenizer" / "tokenizer.json")
    return [encoder.decode(ids[:-1]) for _, ids in documents(folder)]


def dropped(folder: Path, source: str = "web") -> list[dict]:
    path = folder / "out" / "dropped" / source / "00000.arrow"
    return arrow_table(path).to_pylist() if path.exists() else []


def test_blank_lines_are_no_documents_and_no_errors(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "blank_lines.jsonl")
    assert manifest.sources["web"].documents == 5
    assert manifest.rejects.total == 0


def test_line_separators_inside_a_string_do_not_cut_it(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "unicode_linesep.jsonl")
    expected = [json.loads(line)["text"] for line in (inputs / "unicode_linesep.jsonl").read_bytes().split(b"\n") if line]
    assert texts(tmp_path) == expected


def test_every_id_survives_as_the_exact_string(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "mixed_ids.jsonl")
    ids = [row["user_id"] for row, _ in documents(tmp_path)]
    assert ids == ["7", "x-1", "12345678901234567890123", None, None]


def test_lone_surrogates_become_a_replacement_character(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "surrogates.jsonl")
    found = texts(tmp_path)
    assert manifest.sources["web"].documents == len(found)
    assert any("�" in text for text in found)
    assert any(ord(c) > 0xFFFF for text in found for c in text)  # a valid pair is its emoji


def test_an_empty_document_is_counted_and_leaves_no_lone_end_token(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "empty_first.jsonl")
    assert manifest.sources["web"].documents == 2
    assert manifest.sources["web"].funnel[-1].dropped == {"tokenize.empty": 2}
    assert all(len(ids) > 1 for _, ids in documents(tmp_path))


@pytest.mark.parametrize("code", ["eng", "English", "en"])
def test_spellings_of_a_language_are_one_language(inputs: Path, tmp_path: Path, code: str) -> None:
    manifest = build(tmp_path, inputs / "two_languages.jsonl", f"[language: {{keep: [{code}, zh-CN]}}]")
    assert manifest.sources["web"].documents == sum(1 for _ in (inputs / "two_languages.jsonl").open())


def test_an_unknown_language_is_an_error_before_anything_runs(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="xx"):
        build(tmp_path, inputs / "two_languages.jsonl", "[language: {keep: [xx]}]")


def test_good_chinese_passes_rules_made_for_english(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "zh_articles.jsonl", "[normalize, rules: {preset: gopher}, rules: {preset: fineweb}]")
    assert manifest.sources["web"].documents == 6


def test_personal_data_beside_chinese_is_replaced_and_nothing_else(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path / "zh", inputs / "zh_pii.jsonl", "[pii]")
    before = [json.loads(line) for line in (inputs / "zh_pii.jsonl").open(encoding="utf-8")]
    changed = [a != b["text"] for a, b in zip(texts(tmp_path / "zh"), before, strict=True)]
    assert any(changed)
    assert not all(changed)
    assert "13800138000" not in "".join(texts(tmp_path / "zh"))
    build(tmp_path / "not", inputs / "not_pii.jsonl", "[pii]")
    assert texts(tmp_path / "not") == [json.loads(line)["text"] for line in (inputs / "not_pii.jsonl").open(encoding="utf-8")]


def test_scrubbing_is_exact_behind_emoji_and_scrubbing_twice_changes_nothing(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path / "once", inputs / "offset_pii.jsonl", "[pii]")
    first = texts(tmp_path / "once")
    write_jsonl(tmp_path / "again.jsonl", first)
    build(tmp_path / "twice", tmp_path / "again.jsonl", "[pii]")
    assert texts(tmp_path / "twice") == first


def test_short_documents_are_not_one_big_duplicate(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "short_docs.jsonl", "[exact-dedup, minhash-dedup]")
    assert manifest.sources["web"].documents == 6
    assert [d["reason"] for d in dropped(tmp_path)] == ["exact-dedup.duplicate"] * 2


def test_pages_of_one_template_are_not_one_document(inputs: Path, tmp_path: Path) -> None:
    assert build(tmp_path, inputs / "templated.jsonl", "[exact-dedup, minhash-dedup]").sources["web"].documents == 40


@pytest.mark.parametrize("stages", ["[exact-dedup]", "[minhash-dedup]", "[exact-dedup, minhash-dedup]"])
def test_one_of_each_cluster_survives(inputs: Path, tmp_path: Path, stages: str) -> None:
    assert build(tmp_path, inputs / "copies.jsonl", stages).sources["web"].documents == 3


def test_changed_dedup_settings_are_never_mixed_with_old_signatures(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path / "a", inputs / "copies.jsonl", "[minhash-dedup: {ngram: 5}]")
    build(tmp_path / "a", inputs / "copies.jsonl", "[minhash-dedup: {ngram: 3, threshold: 0.7}]")
    build(tmp_path / "b", inputs / "copies.jsonl", "[minhash-dedup: {ngram: 3, threshold: 0.7}]")
    assert snapshot(tmp_path / "a" / "out") == snapshot(tmp_path / "b" / "out")


def test_another_text_field_in_the_same_folder_is_a_fresh_build(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path / "a", inputs / "two_fields.jsonl", "[exact-dedup, minhash-dedup]")
    build(tmp_path / "a", inputs / "two_fields.jsonl", "[exact-dedup, minhash-dedup]", text="title")
    build(tmp_path / "b", inputs / "two_fields.jsonl", "[exact-dedup, minhash-dedup]", text="title")
    assert snapshot(tmp_path / "a" / "out") == snapshot(tmp_path / "b" / "out")


def test_near_copies_in_chinese_are_found(inputs: Path, tmp_path: Path) -> None:
    assert build(tmp_path, inputs / "zh_near.jsonl", "[exact-dedup, minhash-dedup]").sources["web"].documents == 6


def test_a_vocabulary_below_the_floor_is_refused_and_one_too_large_becomes_real(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"25[67]"):
        build(tmp_path / "low", inputs / "small_corpus.jsonl", tokenizer="{vocab_size: 100}")
    manifest = build(tmp_path / "high", inputs / "small_corpus.jsonl", tokenizer="{vocab_size: 50_000}")
    library = Tokenizer.from_file(str(tmp_path / "high" / "out" / "tokenizer" / "tokenizer.json"))
    assert 257 < manifest.tokenizer.vocab_size == library.get_vocab_size() < 50_000


def test_quoted_special_tokens_are_ordinary_text(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "special_literals.jsonl")
    eos = load_manifest(tmp_path / "out").tokenizer.eos_id
    found = documents(tmp_path)
    assert sum(int((ids == eos).sum()) for _, ids in found) == 3
    assert texts(tmp_path) == [json.loads(line)["text"] for line in (inputs / "special_literals.jsonl").open(encoding="utf-8")]


def test_every_character_comes_back(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "roundtrip.jsonl")
    assert texts(tmp_path) == [json.loads(line)["text"] for line in (inputs / "roundtrip.jsonl").open(encoding="utf-8")]


def test_the_order_of_files_does_not_change_the_tokenizer(inputs: Path, tmp_path: Path) -> None:
    lines = (inputs / "small_corpus.jsonl").read_bytes().splitlines(keepends=True)
    for name, halves in (("a", (lines[:20], lines[20:])), ("b", (lines[20:], lines[:20]))):
        for i, half in enumerate(halves):
            path = tmp_path / name / "in" / f"{i}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(half))
        build(tmp_path / name, tmp_path / name / "in")
    both = [(tmp_path / n / "out" / "tokenizer" / "tokenizer.json").read_bytes() for n in "ab"]
    assert both[0] == both[1]


def library_tokenizer(path: Path, entries: int, template: bool = False) -> Path:
    """A byte-level tokenizer file; with `template` it adds BOS and EOS by itself, as many published ones do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *(f"<filler{i}>" for i in range(entries - len(alphabet)))])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    if template:
        ids = [("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>"))]
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def test_ids_above_sixteen_bits_are_stored_whole(inputs: Path, tmp_path: Path) -> None:
    path = library_tokenizer(tmp_path / "big.json", 70_000)
    manifest = build(tmp_path, inputs / "five_docs.jsonl", tokenizer=f"{{path: {path}}}")
    assert manifest.dtype == "uint32"
    assert manifest.byte_order == "little"
    assert manifest.tokenizer.largest_id == manifest.tokenizer.eos_id == 70_001  # the end token itself is a large id


def test_lengths_count_the_end_token(inputs: Path, tmp_path: Path) -> None:
    manifest = build(tmp_path, inputs / "five_docs.jsonl")
    source = json.loads((inputs / "five_docs.jsonl").open(encoding="utf-8").readline())
    assert texts(tmp_path)[0] == source["text"]
    shard = manifest.sources["web"].shards[0]
    assert sum(len(ids) for _, ids in documents(tmp_path)) == shard.tokens == shard.files["tok"].bytes // 2


def test_one_end_token_although_the_tokenizer_adds_its_own(inputs: Path, tmp_path: Path) -> None:
    path = library_tokenizer(tmp_path / "template.json", 300, template=True)
    build(tmp_path, inputs / "five_docs.jsonl", tokenizer=f"{{path: {path}}}")
    eos = load_manifest(tmp_path / "out").tokenizer.eos_id
    for _, ids in documents(tmp_path):
        assert int((ids == eos).sum()) == 1
        assert ids[-1] == eos
        assert ids[0] != eos - 1


def test_another_tokenizer_under_the_same_path_encodes_again(inputs: Path, tmp_path: Path) -> None:
    path = library_tokenizer(tmp_path / "t.json", 300)
    first = build(tmp_path, inputs / "small_corpus.jsonl", tokenizer=f"{{path: {path}}}")
    library_tokenizer(path, 400)
    second = build(tmp_path, inputs / "small_corpus.jsonl", tokenizer=f"{{path: {path}}}")
    assert first.tokenizer.sha256 != second.tokenizer.sha256
    assert second.tokenizer.eos_id == 401
    assert all(ids[-1] == 401 for _, ids in documents(tmp_path))


def test_no_name_from_data_leaves_the_output_folder(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path / "case", inputs / "traversal_ids.jsonl", keep_meta=["id"])
    rows = [row for row, _ in documents(tmp_path / "case")]
    assert any("../" in (row["user_id"] or "") for row in rows)  # the true id, inside the record
    inside = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*")}
    assert inside == {"case"}
    assert not Path("/srv/pwned_abs").exists()
    (tmp_path / "evil.yaml").write_text("name: x\nsources: {../x: {path: a.jsonl}}\noutput: {path: out}\n")
    with pytest.raises(SpecError, match=r"\.\./x"):
        run_build(tmp_path / "evil.yaml")


class Seen(html.parser.HTMLParser):
    """Collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_report_shows_markup_of_documents_as_text(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "html_injection.jsonl", "[normalize, exact-dedup]", license="<img src=x onerror=alert(1)>")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(page)
    assert not seen.tags & {"script", "img", "iframe", "svg", "a", "link", "object", "embed", "form"}
    assert not {a for a in seen.attributes if a.startswith("on") or a in ("src", "href")}
    assert "&lt;" in page


def test_secrets_appear_nowhere(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [document(i) for i in range(3)])
    secret = "exampleSecretValue000000000000001"
    (tmp_path / "corpus.yaml").write_text(
        f"name: s\nsources:\n  web: {{path: in/*.jsonl, storage_options: {{key: {secret}, secret: {secret}}}}}\n"
        "stages: []\ntokenizer: {vocab_size: 300}\noutput: {path: out}\n"
    )
    for command in (["plan"], ["check", "--origins"], ["build", "--inline", "-v", "--log", "log.txt"], ["build", "--inline", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *command, "corpus.yaml"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        assert done.returncode == 0, done.stderr.decode()
        assert secret.encode() not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "corpus.yaml":
            assert secret.encode() not in path.read_bytes(), path


def test_long_lines_are_documents(inputs: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(inputs / "make_long_lines.py")], cwd=tmp_path, check=True)
    manifest = build(tmp_path / "case", tmp_path / "long_lines.jsonl", "[normalize, exact-dedup, minhash-dedup]")
    assert manifest.sources["web"].documents == 2


def test_a_large_vocabulary_from_unspaced_text(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "zh_no_punct.txt", tokenizer="{vocab_size: 2000}")
    card = orjson.loads((tmp_path / "out" / "tokenizer" / "tokenizer-card.json").read_bytes())
    assert "cut" in json.dumps(card)  # pieces cut at the limit are counted


def test_words_of_long_documents_reach_the_vocabulary(inputs: Path, tmp_path: Path) -> None:
    build(tmp_path, inputs / "long_docs_vocab.jsonl", tokenizer="{vocab_size: 2000}")
    encoder = Encoder.load(tmp_path / "out" / "tokenizer" / "tokenizer.json")
    long = [json.loads(line)["text"] for line in (inputs / "long_docs_vocab.jsonl").open(encoding="utf-8")]
    longest = max(long, key=len)
    words = longest.split()
    made_up = max(set(words), key=words.count)
    ids, _ = encoder.encode_batch(pa.array([" " + made_up], pa.large_string()))
    assert len(ids) <= 2


def test_a_truncated_gzip_beside_a_healthy_file(inputs: Path, tmp_path: Path) -> None:
    for name in ("healthy.jsonl.gz", "truncated.jsonl.gz"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes((inputs / name).read_bytes())
    manifest = build(tmp_path / "case", tmp_path / "in" / "*.gz")
    assert [d.uri for d in manifest.damaged] == ["truncated.jsonl.gz"]
    assert "truncated" in manifest.damaged[0].reason
    assert {row["uri"] for row, _ in documents(tmp_path / "case")} == {"healthy.jsonl.gz"}


def test_nothing_left_is_said(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing is left"):
        build(tmp_path, inputs / "two_languages.jsonl", "[language: {keep: [ko]}]")
