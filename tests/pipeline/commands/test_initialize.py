"""`pipeline init`: the config is right, says what was guessed, and leaves nothing out in silence."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from pipeline.commands import initialize as module
from pipeline.commands.initialize import InitResult, initialize, this_python
from pipeline.commands.peek import first_records, guess_fields, yaml_text
from pipeline.commands.survey import MOST_SOURCES, escape, look_at, source_name
from pipeline.corpus import load_corpus
from stages.contract.problem import SpecError
from stages.readers import list_files

SENTENCE = "A sentence that is long enough to be taken for the text of a document. "
CHINESE = "这是一段足够长的中文正文，句子之间没有空格，也要认得出来。水车转动，石磨碾碎麦粒，面粉从磨盘的缝隙里慢慢流出来，落进木槽。"


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(records: list[dict]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def from_folder(tmp_path: Path, name: str | None = None) -> InitResult:
    return initialize(tmp_path / "corpus", str(tmp_path / "raw"), name)


def pretend(monkeypatch: pytest.MonkeyPatch, std: Path, site: Path) -> None:
    """Gives the module under test, and nobody else, these folders of Python."""
    paths = {"stdlib": str(std), "purelib": str(site)}
    monkeypatch.setattr(module, "sysconfig", SimpleNamespace(get_paths=lambda: paths))


@pytest.fixture
def python_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small Python: standard library with site-packages inside, as in a plain installation."""
    std = tmp_path / "lib" / "python3"
    site = std / "site-packages"
    for name in ("abc.py", "json/decoder.py", "email/__init__.py", "urllib/parse.py"):
        put(std / name, f"# {name}\n")
    for name in ("test/test_abc.py", "tkinter/font.py", "json/data.bin", "site-packages/loose.py"):
        put(std / name, "left = 1\n")
    for name in ("pip/__init__.py", "pip/_vendor/rich/cells.py", "rich/cells.py", "attr/_make.py"):
        put(site / name, f"# {name}\n" * 10)
    put(site / "huge/big.py", "x = 1\n" * 4000)
    put(site / "rich-1.0.dist-info/METADATA", "Name: rich\nAuthor-email: a@example.org\n")
    put(site / "rich-1.0.dist-info/licenses/LICENSE", "Permission is hereby granted\n")
    put(site / "rich/locale/zh_CN/rich.po", 'msgid "page"\nmsgstr "页"\n')
    pretend(monkeypatch, std, site)
    monkeypatch.setattr(module, "PACKAGE_BYTES", 5_000)
    return std


# --- this-python --------------------------------------------------------------------------------------------


def test_this_python_config_is_valid_and_finds_its_files(python_tree: Path, tmp_path: Path) -> None:
    result = initialize(tmp_path / "demo", "this-python")
    corpus = load_corpus(result.config_path)
    assert corpus.name == "demo"
    assert list(corpus.sources) == ["stdlib", "packages", "descriptions", "licences", "translations"]
    listed = {
        name: [file.uri for file in list_files(source.path, "/", source.format).files]
        for name, source in corpus.sources.items()
    }
    assert listed["stdlib"] == ["abc.py", "email/__init__.py", "json/decoder.py", "urllib/parse.py"]
    assert listed["packages"] == [
        "attr/_make.py",
        "pip/__init__.py",
        "pip/_vendor/rich/cells.py",
        "rich/cells.py",
    ]
    assert listed["descriptions"] == ["rich-1.0.dist-info/METADATA"]
    assert listed["licences"] == ["rich-1.0.dist-info/licenses/LICENSE"]
    assert listed["translations"] == ["rich/locale/zh_CN/rich.po"]
    assert {source.name: source.files for source in result.sources} == {n: len(f) for n, f in listed.items()}


def test_this_python_prefers_pip_and_its_copies_within_the_budget(python_tree: Path) -> None:
    sources, _ = this_python()
    packages = next(source for source in sources if source.name == "packages")
    assert "/{pip,rich,attr}/" in packages.patterns[0]
    assert "huge" not in packages.patterns[0]


def test_this_python_without_packages_says_what_is_missing(
    python_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, python_tree, python_tree / "no-such-folder")
    sources, notes = this_python()
    assert [source.name for source in sources] == ["stdlib"]
    assert [note.split("`")[1] for note in notes if note.startswith("no source")] == [
        "packages", "descriptions", "licences", "translations",
    ]  # fmt: skip


def test_this_python_without_packages_is_still_a_valid_config(
    python_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, python_tree, python_tree / "no-such-folder")
    corpus = load_corpus(initialize(tmp_path / "demo", "this-python").config_path)
    assert list(corpus.sources) == ["stdlib"]


def test_real_python_gives_a_demo_of_a_sensible_size() -> None:
    sources, _ = this_python()
    assert sources[0].name == "stdlib"
    assert 5_000_000 < sum(source.bytes for source in sources) < 60_000_000


def test_same_disk_same_bytes(python_tree: Path, tmp_path: Path) -> None:
    one, two = (initialize(tmp_path / name / "demo", "this-python") for name in ("a", "b"))
    assert one.config_path.read_bytes() == two.config_path.read_bytes()


# --- what is written ----------------------------------------------------------------------------------------


def test_modeline_schema_and_comments(python_tree: Path, tmp_path: Path) -> None:
    result = initialize(tmp_path / "demo", "this-python", name="my-first")
    text = result.config_path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=corpus.schema.json\n")
    schema = json.loads((tmp_path / "demo" / "corpus.schema.json").read_bytes())
    assert "sources" in schema["properties"]
    assert yaml.safe_load(text)["name"] == "my-first"
    assert re.search(r"#.*[\u4e00-\u9fff]", text)
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "corpus.schema.json",
        "corpus.yaml",
    ]


def test_refuses_to_overwrite(python_tree: Path, tmp_path: Path) -> None:
    put(tmp_path / "demo" / "corpus.yaml", "name: mine\n")
    with pytest.raises(SpecError) as caught:
        initialize(tmp_path / "demo", "this-python")
    assert caught.value.problems[0].code == "C020"
    assert any("pipeline build" in repair for repair in caught.value.problems[0].repairs)
    assert (tmp_path / "demo" / "corpus.yaml").read_text() == "name: mine\n"


# --- a folder -----------------------------------------------------------------------------------------------


def test_folder_of_many_kinds(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    web = [{"url": f"https://example.org/{i}", "content": SENTENCE * 4, "lang": "en"} for i in range(30)]
    put(raw / "web" / "a.jsonl", lines(web))
    put(raw / "web" / "deep" / "b.jsonl.gz", gzip.compress(lines(web[:3]).encode()))
    put(raw / "web" / "README.md", "what this is\n")
    pq.write_table(pa.table({"id": [1, 2], "正文": [CHINESE, CHINESE]}), put(raw / "图书" / "a.parquet", b""))
    put(raw / "notes" / "today.md", SENTENCE)
    put(raw / "notes" / "old" / "then.txt", SENTENCE)
    put(raw / "src" / "main.py", "print(1)\n")
    put(raw / "src" / "lib.rs", "fn main() {}\n")
    put(raw / "src" / "README.md", "a program\n")
    put(raw / "src" / "settings.toml", "a = 1\n")
    put(raw / "scans" / "page.pdf", b"%PDF")
    put(raw / "scans" / "page2.pdf", b"%PDF")
    put(raw / "notes" / ".hidden.txt", "no")

    result = from_folder(tmp_path)
    corpus = load_corpus(result.config_path)
    assert set(corpus.sources) == {"web", "图书", "notes", "src"}
    assert corpus.sources["web"].text == "content"
    assert corpus.sources["web"].keep_meta == ("url",)
    assert corpus.sources["图书"].text == "正文"
    assert corpus.sources["src"].format == "tree"
    listed = {n: [f.uri for f in list_files(s.path, "/", s.format).files] for n, s in corpus.sources.items()}
    assert listed["web"] == ["a.jsonl", "deep/b.jsonl.gz"]
    assert listed["notes"] == ["old/then.txt", "today.md"]
    assert listed["src"] == ["README.md", "lib.rs", "main.py", "settings.toml"]
    assert {source.name: source.files for source in result.sources} == {n: len(f) for n, f in listed.items()}
    notes = "\n".join(result.notes)
    assert "2 not understood: .pdf (2)" in notes
    assert "1 left out as hidden: .hidden.txt (1)" in notes
    assert "1 left out as notes beside records: .md (1)" in notes
    assert result.notes[2] == "web: 2 files, 10.6 kB; text is the field `content` (seen in a.jsonl)"
    assert f"# {result.notes[2][5:]}" in result.config_path.read_text(encoding="utf-8")


def test_lone_folders_are_skipped_and_paths_below_the_config_are_relative(tmp_path: Path) -> None:
    put(tmp_path / "raw" / "v1" / "texts" / "a.txt", SENTENCE)
    put(tmp_path / "raw" / "v1" / "texts" / "b.txt", SENTENCE)
    result = initialize(tmp_path, str(tmp_path / "raw"))
    assert [(source.name, source.patterns) for source in result.sources] == [
        ("texts", ("raw/v1/texts/**/*.txt",))
    ]
    (source,) = load_corpus(result.config_path).sources.values()
    assert len(list_files(source.path, "/").files) == 2


def test_many_sub_folders_are_one_source(tmp_path: Path) -> None:
    for number in range(MOST_SOURCES + 1):
        put(tmp_path / "raw" / f"part-{number:05d}" / "x.jsonl", lines([{"text": SENTENCE}]))
    result = from_folder(tmp_path)
    assert [(source.name, source.files) for source in result.sources] == [("raw", MOST_SOURCES + 1)]
    assert f"{MOST_SOURCES + 1} sub-folders became one source" in result.notes[1]


def test_pages_are_extracted_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"<html><body><p>{SENTENCE}</p></body></html>"
    put(tmp_path / "raw" / "crawl" / "a.warc.gz", gzip.compress(b"WARC/1.0\r\n"))
    put(tmp_path / "raw" / "mirror" / "index.html", page)
    put(tmp_path / "raw" / "notes" / "a.txt", SENTENCE)
    config = from_folder(tmp_path).config_path
    assert load_corpus(config).stages[0].name == "extract"
    assert "  - extract: {only: [crawl, mirror]}  # main text" in config.read_text(encoding="utf-8")
    config.unlink()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    said = from_folder(tmp_path).config_path.read_text(encoding="utf-8")
    assert "  # - extract: {only: [crawl, mirror]}  # needs: pip install 'gristmill[web]'" in said


def test_folder_names_with_wildcards_and_other_characters(tmp_path: Path) -> None:
    names = ("web [2024]", "a{b}*", "con", "WEB-[2024]", "x" * 100, "ภาษาไทย", "cafe\u0301")
    for name in names:
        put(tmp_path / "raw" / name / "x.txt", SENTENCE)
    put(tmp_path / "raw" / "t[r]{e}e*" / "x.py", "x = 1\n")
    corpus = load_corpus(from_folder(tmp_path).config_path)
    assert len(corpus.sources) == len(names) + 1
    assert {"ภาษาไทย", "caf\u00e9"} <= set(corpus.sources)
    for source in corpus.sources.values():
        (file,) = list_files(source.path, "/", source.format).files
        assert file.uri.rsplit("/", 1)[-1] in ("x.txt", "x.py")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'{"a": 1}\n{"a": 2}\n', b"PAR1"])
def test_records_without_text_are_left_out_and_named(tmp_path: Path, content: bytes) -> None:
    put(tmp_path / "raw" / "good" / "a.txt", SENTENCE)
    put(tmp_path / "raw" / "odd" / "a.jsonl", content)
    put(tmp_path / "raw" / "broken" / "a.parquet", content)
    result = from_folder(tmp_path)
    assert [source.name for source in result.sources] == ["good"]
    assert sum("of odd left out" in note for note in result.notes) == 1
    assert sum("of broken left out" in note for note in result.notes) == 1
    load_corpus(result.config_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda raw: None, "is not there"),
        (lambda raw: put(raw, "x"), "is a file"),
        (lambda raw: put(raw / "a.pdf", "x"), "no file that a reader knows"),
        (lambda raw: put(raw / "a.jsonl", '{"n": 1}\n'), "looks like text"),
    ],
)
def test_nothing_to_read(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "raw")
    with pytest.raises(SpecError, match=message) as caught:
        from_folder(tmp_path)
    assert caught.value.problems[0].code == "D005"
    assert not (tmp_path / "corpus").exists()


def test_corpus_inside_of_its_own_input_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "raw" / "a.txt", SENTENCE)
    with pytest.raises(SpecError, match="inside of"):
        initialize(tmp_path / "raw" / "corpus", str(tmp_path / "raw"))


# --- samples and guesses ------------------------------------------------------------------------------------


RECORDS = [{"text": CHINESE, "n": n} for n in range(50)]


def arrow_bytes(file_format: bool) -> bytes:
    table, sink = pa.Table.from_pylist(RECORDS), pa.BufferOutputStream()
    writer = pa.ipc.new_file(sink, table.schema) if file_format else pa.ipc.new_stream(sink, table.schema)
    with writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("a.jsonl", "jsonl", lines(RECORDS).encode()),
        ("a.jsonl.zst", "jsonl", zstandard.compress(lines(RECORDS).encode())),
        ("a.jsonl", "jsonl", b"no json\n[1]\n" + lines(RECORDS).encode() + b'{"cut'),
        ("a.json", "json", json.dumps(RECORDS).encode()),
        ("a.json", "json", lines(RECORDS).encode()),
        ("a.arrow", "arrow", arrow_bytes(True)),
        ("a.arrow", "arrow", arrow_bytes(False)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_records(tmp_path: Path, name: str, kind: str, content: bytes) -> None:
    assert first_records(put(tmp_path / name, content), kind) == RECORDS[:20]


def test_first_record_longer_than_the_sample(tmp_path: Path) -> None:
    record = {"text": "x " * 2_500_000}
    assert first_records(put(tmp_path / "a.jsonl", lines([record])), "jsonl") == [record]


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        ({"text": "x y", "summary": SENTENCE}, ()),
        ({"content": "x y"}, (("text", "content"),)),
        ({"标题": "短 题", "正文": CHINESE}, (("text", '"正文"'),)),
        ({"messages": [{"role": "user", "content": "hi"}]}, (("messages", "chatml"),)),
        (
            {"conversations": [{"from": "human", "value": "hi"}]},
            (("text", "conversations"), ("messages", "chatml")),
        ),
        (
            {"essay": SENTENCE, "sha256": "0" * 64, "url": "http://a"},
            (("text", "essay"), ("keep_meta", "[url]")),
        ),
    ],
)
def test_guess_fields(record: dict, settings: tuple) -> None:
    assert guess_fields([record] * 3)[0] == settings


@pytest.mark.parametrize(
    "records", [[], [{"n": 1}], [{"sha256": "0" * 64}], [{"text": 5}], [{"a{b}": SENTENCE}]]
)
def test_guess_fields_gives_up_with_a_sentence(records: list[dict]) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        guess_fields(records)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "no",
        "1e3",
        "a: b",
        "#x",
        '"',
        "\\",
        "a\nb",
        "\u202e",
        "正文",
        "😀 x",
        "-",
        "",
        "null",
        "/a/b",
        "a b",
    ],
)
def test_yaml_text_reads_back(text: str) -> None:
    assert yaml.safe_load(f"key: {yaml_text(text)}") == {"key": text}


def test_source_names_are_unique_and_allowed(tmp_path: Path) -> None:
    taken: set[str] = set()
    assert [source_name(text, taken) for text in ("web", "Web", "a.b", "网页")] == [
        "web",
        "Web-2",
        "a-b",
        "网页",
    ]
    assert source_name("...", taken) not in ("", "...")


def test_escape_matches_the_path_alone(tmp_path: Path) -> None:
    put(tmp_path / "[a]*{b}?" / "x.txt", SENTENCE)
    pattern = f"{escape((tmp_path / '[a]*{b}?').as_posix())}/*.txt"
    assert [file.uri.rsplit("/", 1)[-1] for file in list_files(pattern, "/").files] == ["x.txt"]


def test_look_at_writes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "raw" / "a.txt", SENTENCE)
    look_at(tmp_path / "raw", tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
