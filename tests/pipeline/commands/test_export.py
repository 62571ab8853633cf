"""Corpora to and from the files of other tools: the same documents, in the same order, or a refusal that says why."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.commands.bring import bring
from pipeline.commands.export import export
from stages.contract.manifest import load_manifest, verify_manifest
from stages.contract.problem import RunError, SpecError
from stages.contract.shard import read_index
from tests.pipeline.corpora import document, run_build, write_config, write_jsonl


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two sources in several shards."""
    folder = tmp_path_factory.mktemp("exchange")
    write_jsonl(folder / "in" / "web" / "a.jsonl", [document(i, 10 + i) for i in range(60)])
    write_jsonl(folder / "in" / "books" / "b.jsonl", [document(900 + i, 200) for i in range(9)])
    run_build(write_config(folder, folder / "in", "  - normalize\n"), ["output.shard_tokens=2048", "holdout.share=0"])
    return folder / "out"


def texts(folder: Path, source: str) -> list[list[int]]:
    """The token ids of every document of a source, in order."""
    found: list[list[int]] = []
    for shard in load_manifest(folder).sources[source].shards:
        lengths = read_index(shard.path(folder, "idx"), shard.tokens)["length"]
        flat = np.fromfile(shard.path(folder, "tok"), "<u2")
        found += [one.tolist() for one in np.split(flat, np.cumsum(lengths)[:-1])]
    return found


def test_megatron_and_back(built: Path, tmp_path: Path) -> None:
    export(built, "megatron", tmp_path / "mega")
    data = (tmp_path / "mega" / "web.idx").read_bytes()
    version, code, sequences, borders = struct.unpack_from("<QBQQ", data, 9)
    assert (data[:9], version, code, sequences, borders) == (b"MMIDIDX\0\0", 1, 8, 60, 61)
    assert len(data) == 34 + 4 * 60 + 8 * 60 + 8 * 61
    tokenizer = built / "tokenizer" / "tokenizer.json"
    inputs = {name: tmp_path / "mega" / f"{name}.bin" for name in ("web", "books")}
    text, _ = bring("megatron", inputs, tokenizer, tmp_path / "back", 2048)
    assert "web: 60 documents" in text
    manifest = load_manifest(tmp_path / "back")
    assert verify_manifest(tmp_path / "back", manifest, deep=True) == []
    assert len(manifest.sources["web"].shards) > 1
    for name in inputs:
        assert texts(tmp_path / "back", name) == texts(built, name)
    with pytest.raises(SpecError, match="is not empty"):
        export(built, "megatron", tmp_path / "mega")


def test_parquet_has_tokens_and_origins(built: Path, tmp_path: Path) -> None:
    export(built, "parquet", tmp_path / "p")
    rows = [row for file in sorted((tmp_path / "p" / "web").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert [row["input_ids"] for row in rows] == texts(built, "web")
    assert {row["uri"] for row in rows} == {"a.jsonl"}
    assert all(len(row["id"]) == 32 for row in rows)


def test_hf_datasets_and_back(built: Path, tmp_path: Path) -> None:
    export(built, "hf-datasets", tmp_path / "hf")
    table = pa.ipc.open_stream(sorted((tmp_path / "hf" / "web").glob("*.arrow"))[0]).read_all()
    assert table.column("input_ids").to_pylist() == texts(built, "web")[: len(table)]
    tokenizer = built / "tokenizer" / "tokenizer.json"
    bring("hf-datasets", {"web": tmp_path / "hf" / "web"}, tokenizer, tmp_path / "back", 10**6)
    assert texts(tmp_path / "back", "web") == texts(built, "web")


def test_hf_datasets_reads_what_was_written(built: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export(built, "hf-datasets", tmp_path / "hf")
    loaded = datasets.load_from_disk(str(tmp_path / "hf" / "web"))
    assert loaded["input_ids"][:] == texts(built, "web")


def test_a_bare_stream_is_divided_by_its_end_tokens(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eos = load_manifest(built).tokenizer.eos_id
    documents = [[5] * n for n in (3, 1, 0, 700, 2)]
    stream = [token for one in documents for token in (*one, eos)][:-1]  # the last one is not ended
    np.array(stream, "<u2").tofile(tmp_path / "train.bin")
    monkeypatch.setattr("pipeline.commands.bring.TOKENS", 100)
    arguments = ["import", f"web={tmp_path / 'train.bin'}", "--from", "nanogpt", "--tokenizer",
                 str(built / "tokenizer" / "tokenizer.json"), "--out", str(tmp_path / "out")]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert texts(tmp_path / "out", "web") == [[*one, eos] for one in documents if one]
    (step,) = load_manifest(tmp_path / "out").sources["web"].funnel
    assert (step.documents_in, step.documents_out, step.dropped) == (5, 4, {"empty": 1})


def test_what_is_no_such_file_is_refused(built: Path, tmp_path: Path) -> None:
    tokenizer = built / "tokenizer" / "tokenizer.json"
    eos = load_manifest(built).tokenizer.eos_id
    (tmp_path / "x.bin").write_bytes(b"\1\0" * 8)
    with pytest.raises(RunError, match=r"x\.idx is no index of Megatron-LM"):
        bring("megatron", {"web": tmp_path / "x.bin"}, tokenizer, tmp_path / "a", 10**6)
    np.array([60_000, 5, eos], "<u2").tofile(tmp_path / "y.bin")
    with pytest.raises(RunError, match="60,000 is not in a vocabulary"):
        bring("nanogpt", {"web": tmp_path / "y.bin"}, tokenizer, tmp_path / "b", 10**6)
    with pytest.raises(SpecError, match="there is no file"):
        bring("nanogpt", {"web": tmp_path / "z.bin"}, tokenizer, tmp_path / "c", 10**6)
    with pytest.raises(SpecError, match=r"the source name `\.\./web` holds"):
        bring("nanogpt", {"../web": tmp_path / "y.bin"}, tokenizer, tmp_path / "d", 10**6)
    (tmp_path / "e").mkdir()
    with pytest.raises(RunError, match="is no folder of `save_to_disk`"):
        bring("hf-datasets", {"web": tmp_path / "e"}, tokenizer, tmp_path / "f", 10**6)
    export(built, "hf-datasets", tmp_path / "hf")
    inside = pa.table({"input_ids": [[5, eos, 6]]})
    file = sorted((tmp_path / "hf" / "books").glob("*.arrow"))[0]
    with pa.ipc.new_stream(str(file), inside.schema) as writer:
        writer.write_table(inside)
    with pytest.raises(RunError, match="holds the end token"):
        bring("hf-datasets", {"books": tmp_path / "hf" / "books"}, tokenizer, tmp_path / "g", 10**6)


def test_pack_and_schema_on_the_command_line(built: Path, tmp_path: Path) -> None:
    import json
    import shutil

    shutil.copytree(built, tmp_path / "out")
    result = CliRunner().invoke(main, ["pack", str(tmp_path / "out"), "--length", "64", "--json"])
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.output)["result"]["rows"]) == {"web", "books"}
    schema = json.loads(CliRunner().invoke(main, ["schema", "--manifest"]).output)
    assert {"sources", "tokenizer", "order_version"} <= set(schema["properties"])
