from __future__ import annotations

import json
import pickle
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.corpus import DEFAULT_STAGES, Corpus, corpus_schema, load_corpus
from stages.contract.problem import SpecError
from stages.contract.scalars import reveal
from stages.readers import guess, template
from stages.stage import REGISTRY

SMALLEST = """\
name: small
sources: {web: {path: data/*.jsonl}}
output: {path: out}
"""

NO_STAGES = SMALLEST + "stages: []\n"

#: Every key that there is, the parts that are not built yet among them.
WHOLE = """\
name: zh-en
seed: 7
sources:
  web:
    path: data/web/*.jsonl.zst
    text: content
    id: url
    keep_meta: [url, timestamp]
    max_document: 8MiB
    on_damaged: keep-good-part
  crawl: {path: data/crawl/*.warc.gz}
  books: {path: [data/books/**/*.parquet, s3://bucket/more/*.parquet], priority: 10, license: public-domain,
          storage_options: {key: EXAMPLEKEY0000000001, secret: exampleSecretValue, anon: no}}
  代码: {path: data/src/, format: tree, priority: 5}
  chats: {path: chats.jsonl, messages: chatml}
stages:
  - extract: {only: [crawl]}
  - normalize
  - urls: {only: [web, crawl], block: lists/domains.txt}
  - repeated-lines: {only: [web, crawl], scope: site, min_documents: 50}
  - exact-dedup: {except: [代码], max_loss: 60%}
  - quality: {only: [web, crawl], model: models/edu.bin, column: edu, keep_top: 60%}
  - decontaminate: {benchmarks: benchmarks/*.jsonl, ngram: 13}
buckets:
  web: {by: quality.edu, quantiles: [50%, 80%]}
tokenizer: {vocab_size: 65536, train_on: 4GiB, train_mix: {web: 50%, books: 25%, 代码: 25%}}
mix: {web: 0.50, crawl: 0.10, books: 0.20, 代码: 0.10, chats: 10%}
phases:
  - {name: foundation, share: 80%, mix: {web: 0.55, crawl: 0.10, books: 0.15, 代码: 0.10, chats: 0.10}}
  - {name: refine, share: 20%, mix: {web.2: 0.30, crawl: 0.10, books: 0.40, 代码: 0.10, chats: 0.10}}
holdout: {share: 0.5%, max_documents: 5000}
output:
  path: out/zh-en
  layout: arrow
  shard_tokens: 128M
  packing: {lengths: [4096]}
  mixture: {materialized: {tokens: 20B}}
run: {address: local, workers: auto}
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Writes a text as corpus.yaml and loads it."""
    monkeypatch.chdir(tmp_path)

    def inner(text: str, *overrides: str) -> Corpus:
        Path("corpus.yaml").write_text(text, encoding="utf-8")
        return load_corpus("corpus.yaml", overrides)

    return inner


@pytest.fixture
def wrong(read):
    def inner(text: str, *overrides: str):
        with pytest.raises(SpecError) as error:
            read(text, *overrides)
        return error.value.problems

    return inner


def test_the_smallest_file_is_enough(read, tmp_path):
    corpus = read(NO_STAGES)
    assert corpus.sources["web"].path == (str(tmp_path / "data/*.jsonl"),)
    assert corpus.output.path == str(tmp_path / "out")
    assert corpus.tokenizer.vocab_size == 32_768
    assert corpus.mix is None
    assert (corpus.run.address, corpus.run.workers, corpus.output.shard_tokens) == ("local", "auto", 128_000_000)
    assert (corpus.holdout.share, corpus.holdout.max_documents) == (0.005, 5000)
    assert corpus.file == "corpus.yaml"


def test_without_stages_the_default_ones_run(read):
    corpus = read(SMALLEST)
    assert tuple(stage.name for stage in corpus.stages) == DEFAULT_STAGES
    assert corpus.default_stages
    assert not read(NO_STAGES).default_stages
    assert read(NO_STAGES).stages == ()


def test_the_whole_grammar_is_understood_and_only_what_is_not_there_is_refused(wrong):
    Path("lists").mkdir()
    Path("lists/domains.txt").write_text("example.com\n", encoding="utf-8")
    problems = wrong(WHOLE)
    assert {problem.code for problem in problems} == {"C015"}
    named = " / ".join(problem.message for problem in problems)
    parts = ("quality: there is no model file `models/edu.bin`", "decontaminate: `benchmarks` names no file: benchmarks/*.jsonl")
    for part in parts:
        assert part in named
    assert len(problems) == len(parts)


def test_the_example_of_the_design_is_understood(shared):
    example = shared / "examples" / "corpus.yaml"
    if not example.exists():
        pytest.skip("the examples are not there")
    with pytest.raises(SpecError) as error:
        load_corpus(example)
    assert {problem.code for problem in error.value.problems} <= {"C009", "C015"}  # its lists are nowhere


def test_stages_are_instances_of_their_classes(read):
    corpus = read(
        NO_STAGES.replace("[]", "[normalize, exact-dedup: {only: [web], max_loss: 60%}, exact-dedup: , "
                                "'tests.pipeline.shout:Shout': {marks: 2e0}]")
    )  # fmt: skip
    assert [stage.name for stage in corpus.stages] == ["normalize", "exact-dedup", "exact-dedup", "shout"]
    assert corpus.stages[1].only == ("web",)
    assert corpus.stages[1].max_loss == 0.6
    assert corpus.stages[3].marks == 2


def test_overrides_reach_stages_and_show_as_typed(read, wrong):
    text = NO_STAGES.replace("[]", "[normalize, exact-dedup]")
    corpus = read(text, "stages.exact-dedup.max_loss=25%", "output.shard_tokens=64M", "seed=9", "mix={web: 1}")
    assert (corpus.stages[1].max_loss, corpus.output.shard_tokens, corpus.seed, corpus.mix) == (0.25, 64_000_000, 9, {"web": 1})
    assert corpus.origins["stages[1].exact-dedup.max_loss"].text == "--set stages.exact-dedup.max_loss=25%"
    assert corpus.origins["sources.web.path"].line == 2
    (problem,) = wrong(text, "stages.exact-dedup.max_los=25%")
    assert problem.where.text == "--set stages.exact-dedup.max_los=25%"
    assert problem.repairs[0] == "did you mean `max_loss`?"


@pytest.mark.parametrize("name", ["../x", "a/b", "web.0", "CON", "a b", "'~root'", '"nul\\0byte"', "'...'"])
def test_a_source_name_cannot_leave_the_folder(wrong, name):
    problems = wrong(NO_STAGES.replace("web:", f"{name}:"))
    assert [problem.code for problem in problems] == ["C016"]
    assert problems[0].where.line == 2


@pytest.mark.parametrize(
    ("extra", "codes"),
    [
        ("mix: {web: 0.7}", ["C007"]), ("mix: {web: 99.8%}", []), ("mix: {web: 98B}", []), ("mix: {wbe: 1}", ["C018", "C006"]),
        ("mix: {web.1: 1}", ["C018", "C006"]), ("mix: {web: a lot}", ["C004"]), ("mix: {web: 0}", ["C007"]),
        ("tokenizer: {train_mix: {web: 60%}}", ["C007"]), ("tokenizer: {train_mix: {x: 1}}", ["C006"]),
        ("tokenizer: {path: t.json, train_on: 1GiB}", ["C017"]), ("tokenizer: {path: t.json}", []),
        ("phases: [{name: a, share: 1, mix: {web: 1}}]", []), ("phases: [{name: a, share: 90%, mix: {web: 1}}]", ["C007"]),
        ("phases: [{name: a, share: 1, mix: {wab: 1}}]", ["C018", "C006"]),
        ("phases: [{name: a, share: 50%}, {name: a, share: 50%}]", ["C017"]),
        ("run: {address: 'ray://h:10001'}", ["C019"]), ("run: {address: '10.0.0.1:6379'}", []), ("run: {workers: 0}", ["C005"]),
        ("run: {address: nowhere}", ["C004"]), ("holdout: {share: 0}", []), ("holdout: {share: 2}", ["C005"]),
    ],
)  # fmt: skip
def test_relations(read, wrong, extra, codes):
    text = NO_STAGES + extra + "\n"
    if codes:
        assert [problem.code for problem in wrong(text)] == codes
    else:
        read(text)


def test_a_forgotten_source_is_named_and_zero_means_zero(read, wrong):
    text = NO_STAGES.replace("web: {path: data/*.jsonl}", "web: {path: a.jsonl}, books: {path: b.jsonl}")
    (problem,) = wrong(text + "mix: {web: 1}\n")
    assert problem.repairs == ("write books: 0 to leave it out",)
    read(text + "mix: {web: 1, books: 0}\n")
    read(text + "tokenizer: {train_mix: {web: 1}}\n")  # a training sample may leave a source out


def test_a_mix_beside_phases_is_their_average(read, wrong):
    text = NO_STAGES.replace("web: {path: data/*.jsonl}", "web: {path: a.jsonl}, books: {path: b.jsonl}")
    phases = """
phases:
  - {name: a, share: 50%, mix: {web: 0.9, books: 0.1}}
  - {name: b, share: 50%, ramp: 20%, mix: {web: 0.5, books: 0.5}}
"""
    read(text + "mix: {web: 72%, books: 28%}" + phases)  # (0.9 + 0.5 + 0.1 * 0.4) / 2
    assert [p.code for p in wrong(text + "mix: {web: 70%, books: 30%}" + phases)] == ["M002", "M002"]


def test_a_wrong_type_does_not_hide_a_wrong_name(wrong):
    problems = wrong(NO_STAGES + "seed: x\nmix: {web: 1, y: 0}\n")
    assert [problem.code for problem in problems] == ["C004", "C006"]


def test_settings_of_a_reader(read):
    corpus = read(NO_STAGES.replace("path: data/*.jsonl", "path: a.jsonl, text: '{t}: {b}', id: key, max_document: 1MB"))
    settings = corpus.sources["web"].settings("web")
    assert (settings.source, settings.text, settings.id, settings.max_document) == ("web", "{t}: {b}", "key", 10**6)


def test_formats_and_chat_forms_are_those_of_the_readers():
    source = corpus_schema()["definitions"]["Source"]["properties"]
    assert source["format"]["anyOf"][0]["enum"] == list(guess.FORMATS)
    assert source["messages"]["anyOf"][0]["enum"] == list(template.CHAT)


# ---- digest, secrets -------------------------------------------------------------------------------------------


def test_the_digest_is_of_what_changes_the_output(read):
    base = read(NO_STAGES).config_digest()
    same = ("output.path=elsewhere", "run.workers=3", "run.address=cluster", "sources.web.path=/abs/other/*.jsonl",
            "sources.web.storage_options={key: x}", "seed=0", "output.shard_tokens=128_000_000")  # fmt: skip
    assert {read(NO_STAGES, override).config_digest() for override in same} == {base}
    other = ("seed=1", "name=b", "sources.web.path=data/*.json", "output.shard_tokens=64M", "stages=[normalize]",
             "holdout.share=0", "sources.web.text=body", "mix={web: 1}")  # fmt: skip
    assert len({read(NO_STAGES, override).config_digest() for override in other} | {base}) == len(other) + 1


def test_secrets_stay_out_of_everything_that_is_written(read):
    text = NO_STAGES.replace(
        "path: data/*.jsonl", "path: 's3://b/*.jsonl', storage_options: {key: EXAMPLEKEY01, token: tok_example, anon: false}"
    )
    corpus = read(text)
    assert reveal(corpus.sources["web"].storage_options) == {"key": "EXAMPLEKEY01", "token": "tok_example", "anon": False}
    shown = [repr(corpus), str(corpus), json.dumps(corpus.resolved()), corpus.model_dump_json(), repr(corpus.origins)]
    for secret in ("EXAMPLEKEY01", "tok_example"):
        assert all(secret not in one for one in shown)


def test_a_corpus_crosses_a_process_border(read):
    corpus = read(NO_STAGES.replace("[]", "[normalize]"))
    copied = pickle.loads(pickle.dumps(corpus))
    assert copied == corpus
    assert copied.config_digest() == corpus.config_digest()
    assert copied.sources["web"].path[0].written == "data/*.jsonl"


# ---- schema ----------------------------------------------------------------------------------------------------


def schema_findings(text: str) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(corpus_schema()).iter_errors(yaml.safe_load(text))]


def test_the_schema_knows_stages_and_their_settings():
    schema = corpus_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    assert "$defs" not in json.dumps(schema)
    bare, single = schema["properties"]["stages"]["items"]["anyOf"]
    assert bare["anyOf"][0]["enum"] == list(REGISTRY)
    settings = single["properties"]["exact-dedup"]["anyOf"][0]
    assert settings["properties"]["scope"]["description"]
    assert settings["properties"]["max_loss"]["description"]
    assert "except" in settings["properties"]


def test_the_schema_agrees_with_the_reader(read):
    good = NO_STAGES.replace("[]", "[normalize, {exact-dedup: {only: [web], max_loss: 60%}}, {exact-dedup: }]")
    read(good)
    assert schema_findings(good) == []
    assert schema_findings(SMALLEST) == []
    for bad in ("stagez: []", "stages: [normalise]", "stages: [{exact-dedup: {scop: all}}]", "stages: [{a: 1, b: 2}]",
                "seed: -1", "run: {workers: many}", "output: {path: out, shard_tokens: 128MB}"):  # fmt: skip
        assert schema_findings(NO_STAGES.replace("stages: []\n", "") + bad + "\n")


def test_a_place_is_opened_in_one_way(wrong):
    text = """\
name: a
sources:
  web: {path: "s3://b/web/*.jsonl", storage_options: {anon: true}}
  more: {path: ["s3://b/web/*.jsonl.zst"], storage_options: {profile: me}}
  books: {path: "s3://b/books/*.jsonl", storage_options: {profile: me}}
output: {path: out}
"""
    problems = wrong(text)
    assert [p.code for p in problems] == ["C017"]
    assert problems[0].message == "sources.web and sources.more open s3://b/web/ with different storage_options"
    assert problems[0].where.line == 4
