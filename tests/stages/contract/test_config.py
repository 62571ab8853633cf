from __future__ import annotations

import json
import pickle
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from stages.contract.config import (
    Count,
    FilePath,
    Model,
    Secret,
    Share,
    Size,
    Span,
    StorageOptions,
    json_schema,
    load,
    reveal,
)
from stages.contract.problem import Problem, SpecError
from stages.contract.scalars import secret_name


class Optimizer(Model):
    lr: Annotated[float, Field(description="Peak learning rate.")] = 0.1
    eps: float = 1e-9
    steps: int = 0
    name: str = "adamw"
    nesterov: bool = True


class Longer(Model):
    tokens: Count


class Materialized(Model):
    materialized: Longer


class Everything(Model):
    title: str = ""
    optimizer: Optimizer = Optimizer()
    mix: dict[str, Share] = {}
    sizes: tuple[int, ...] = ()
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    mixture: Literal["by-source"] | Materialized = "by-source"
    data: FilePath | None = None
    except_: Annotated[tuple[str, ...] | None, Field(alias="except")] = None
    token: Secret | None = None
    storage_options: StorageOptions = StorageOptions()
    maybe: int | None = 3


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Writes a text as a config file and loads it."""
    monkeypatch.chdir(tmp_path)

    def inner(text, *overrides, model=Everything):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "c.yaml").write_bytes(data)
        return load("c.yaml", model, overrides)

    return inner


@pytest.fixture
def wrong(read):
    """The problems of a text."""

    def inner(text, *overrides, model=Everything) -> tuple[Problem, ...]:
        with pytest.raises(SpecError) as error:
            read(text, *overrides, model=model)
        return error.value.problems

    return inner


# ---- scalars ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Count, "140B", 140 * 10**9), (Count, "4M", 4_000_000), (Count, "1_000", 1000), (Count, "2e9", 2 * 10**9),
        (Count, "1.5B", 1_500_000_000), (Count, "4k", 4000), (Count, "1T", 10**12), (Count, 7, 7), (Count, 7.0, 7),
        (Count, "4_194_304", 4_194_304), (Count, "0.1M", 100_000),
        (Share, "70%", 0.7), (Share, "0.7", 0.7), (Share, 1, 1.0), (Share, "0.5 %", 0.005), (Share, "1e-3", 0.001),
        (Size, "80GiB", 80 * 2**30), (Size, "64MB", 64 * 10**6), (Size, "1_000", 1000), (Size, "1.5KiB", 1536),
        (Size, "10B", 10), (Size, 12, 12), (Size, "4 GiB", 4 * 2**30),
        (Span, "30m", 1800.0), (Span, "1h", 3600.0), (Span, "1h30m", 5400.0), (Span, "40d", 40 * 86400.0),
        (Span, "250ms", 0.25), (Span, "90", 90.0), (Span, 1.5, 1.5), (Span, "1h 30m", 5400.0),
    ],
)  # fmt: skip
def test_scalars(kind, given, value):
    read = TypeAdapter(kind).validate_python(given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Count, "128MB"), (Count, "1.5"), (Count, "-3"), (Count, ""), (Count, "M"), (Count, True), (Count, "1_x"),
        (Count, "9e99"), (Count, "nan"), (Count, "0x10"), (Count, None), (Count, "１２x"),
        (Share, "140%"), (Share, "70"), (Share, "-1%"), (Share, float("nan")), (Share, "inf"), (Share, "half"),
        (Size, "4G"), (Size, "4 gib"), (Size, "1.5B"), (Size, "64Mb"),
        (Span, "12:30:00"), (Span, "1h30"), (Span, "soon"), (Span, "m"), (Span, ""),
    ],
)  # fmt: skip
def test_what_scalars_refuse(kind, given):
    with pytest.raises(ValidationError) as error:
        TypeAdapter(kind).validate_python(given)
    assert {e["type"] for e in error.value.errors()} <= {"expected", "bound"}


def test_bounds_go_on_top_of_a_scalar():
    adapter = TypeAdapter(Annotated[Count, Field(ge=1)])
    assert adapter.validate_python("4M") == 4_000_000
    with pytest.raises(ValidationError):
        adapter.validate_python("0")


# ---- reading ---------------------------------------------------------------------------------------------------


def test_the_field_says_what_a_scalar_means(read):
    value = read(
        "title: no\n"
        "optimizer: {lr: 3e-4, eps: 1e-8, steps: 2e9, name: 12:30:00, nesterov: no}\n"
        "mix: {no: 70%, 1: 0.3}\n"
        "sizes: [1_000, 1e6, 16, 7]\n"
    ).value
    assert value.title == "no"
    assert value.optimizer == Optimizer(lr=0.0003, eps=1e-8, steps=2_000_000_000, name="12:30:00", nesterov=False)
    assert value.mix == {"no": 0.7, "1": 0.3}
    assert value.sizes == (1000, 1_000_000, 16, 7)


def test_numbers_as_people_write_them(shared, read):
    class Numbers(Model):
        lr: float
        max_tokens: int
        min_lr: float
        budget_bytes: int
        total: int

    value = read((shared / "cases/inputs/numbers.yaml").read_bytes(), model=Numbers).value
    assert value == Numbers(lr=3e-4, max_tokens=10**6, min_lr=3e-5, budget_bytes=1000, total=2 * 10**9)


def test_numbers_as_people_write_them_without_shared_data(read):
    text = "optimizer: {lr: 3e-4, steps: 1e6, eps: 3.0e-5}\nsizes: [1_000, 2e9]\n"
    value = read(text).value
    assert (value.optimizer.lr, value.optimizer.steps, value.optimizer.eps) == (3e-4, 10**6, 3e-5)
    assert value.sizes == (1000, 2 * 10**9)


@pytest.mark.parametrize("number", ["2.5", "1e-1", "two", "2e99", "1e999999999", ".inf", "true"])
def test_what_is_no_whole_number(wrong, number):
    (problem,) = wrong(f"optimizer:\n  steps: {number}\n")
    assert problem.code == "C004"
    assert f"optimizer.steps is `{number}`; it must be a whole number" in problem.message
    assert (problem.where.line, problem.where.column) == (2, 10)


def test_quoted_and_plain_nulls(read):
    assert read("maybe: null").value.maybe is None
    assert read("maybe: ~").value.maybe is None
    assert read('title: "null"').value.title == "null"
    assert read("maybe: 2").value.maybe == 2


def test_unions_give_one_sentence(wrong):
    (problem,) = wrong("workers: lots")
    assert problem.message == "workers is `lots`; it must be `auto` or a whole number such as 2000"
    (problem,) = wrong("mixture: {materialized: {tokens: many}}")
    assert problem.message.startswith("mixture.materialized.tokens is `many`; it must be a whole number")
    problems = wrong("mixture: {}")
    assert [p.message for p in problems] == ["`materialized` is missing in mixture"]


def test_all_problems_come_at_once_in_the_order_of_lines(wrong):
    problems = wrong("titel: a\noptimizer:\n  lr: fast\n  stepps: 3\n  lr: slow\nsizes: [1, b, 3, d]\nextra: 1\n")
    assert [(p.code, p.where.line, p.where.column) for p in problems] == [
        ("C001", 1, 1), ("C001", 4, 3), ("C003", 5, 3), ("C004", 5, 7), ("C004", 6, 12), ("C004", 6, 18), ("C001", 7, 1),
    ]  # fmt: skip
    assert problems[0].repairs[0] == "did you mean `title`?"
    assert problems[1].repairs == ("did you mean `steps`?", "keys here: eps, lr, name, nesterov, steps")


def test_aliased_fields_are_named_as_in_the_file(wrong, read):
    assert read("except: [a]").value.except_ == ("a",)
    (problem,) = wrong("except: a")
    assert problem.message.startswith("except is `a`; it must be a list")
    assert problem.repairs == ("write [a]",)


def test_positions_count_characters(wrong):
    (problem,) = wrong("mix: {网页: 70%, 图书: 很多}\n")
    assert (problem.where.line, problem.where.column, problem.where.width) == (1, 20, 2)
    assert problem.where.text[problem.where.column - 1 :].startswith("很多")


def test_line_numbers_are_those_of_an_editor(wrong):
    (problem,) = wrong('title: "a\u2028b\u0085c"\r\n# \u2029\r\nsizes: 5\r\n')
    assert problem.where.line == 3
    assert problem.where.text == "sizes: 5"


def test_a_byte_order_mark_is_fine(read):
    assert read(b"\xef\xbb\xbftitle: a").value.title == "a"


def test_not_utf8(wrong):
    (problem,) = wrong("title: ok\n# 中文\nmix: ".encode() + "{网页: 1}\n".encode("gbk"))
    assert problem.code == "C010"
    assert "byte 0x" in problem.message
    assert problem.where.line == 3
    (problem,) = wrong("title: a".encode("utf-16"))
    assert problem.code == "C010"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file(wrong, text):
    (problem,) = wrong(text)
    assert (problem.code, problem.message) == ("C010", "c.yaml is empty")


def test_a_missing_file(tmp_path):
    with pytest.raises(SpecError, match=r"C010.*there is no file"):
        load(tmp_path / "no.yaml", Everything)
    with pytest.raises(SpecError, match="C010"):
        load(tmp_path, Everything)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1, 2\nb: 3", "expected ',' or ']'"), ("a: {b: 1", "expected ',' or '}'"), ('a: "open', "end of stream"),
        ("a: *b", "undefined alias"), ("a: @b", "cannot start any token"), ("a: 1\n---\nb: 2", "another document"),
        ("a: \x07", "U+0007"), ("- a", "mapping"), ("just text", "mapping"), ("? [a, b]\n: 1", "a key must be text"),
        ("[" * 5000, "deep"), ("a: !!python/object/apply:os.system [ls]", "tag"), ("a: !env SECRET", "tag"),
    ],
)  # fmt: skip
def test_not_yaml(wrong, text, says):
    problems = wrong(text)
    assert any(says in p.message for p in problems)
    assert all(p.where is not None for p in problems)


def test_a_file_of_a_terabyte_is_not_read(wrong):
    (problem,) = wrong(b"a" * (4 * 2**20 + 1))
    assert problem.code == "C010"


def test_anchors_aliases_and_merge_keys(read):
    text = "optimizer: &o {lr: 1e-3, steps: 5}\nsizes: &s [1, 2]\n"
    value = read(text + "mix: {<<: {a: 50%, b: 1}, b: 50%}\n").value
    assert value.mix == {"a": 0.5, "b": 0.5}
    value = read("title: &t x\ntoken: *t\n").value
    assert value.token.reveal() == "x"


# ---- extends ---------------------------------------------------------------------------------------------------


def test_extends_merges_and_remembers_files(read, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "one.yaml").write_text("title: one\noptimizer: {lr: 1, steps: 1}\nsizes: [1, 2]\ndata: sub/x\n")
    (tmp_path / "two.yaml").write_text("extends: base/one.yaml\noptimizer: {lr: 2}\nmix: {a: 1}\n")
    loaded = read("extends: [two.yaml]\noptimizer: {steps: 3}\nsizes: [9]\nmix: {b: 0}\n")
    assert loaded.value.optimizer == Optimizer(lr=2, steps=3)
    assert loaded.value.title == "one"
    assert loaded.value.sizes == (9,)
    assert loaded.value.mix == {"a": 1, "b": 0}
    assert loaded.value.data == str(tmp_path / "base" / "sub" / "x")
    origins = {path: where.file for path, where in loaded.origins.items()}
    assert origins == {
        "title": "base/one.yaml", "data": "base/one.yaml", "optimizer.lr": "two.yaml", "optimizer.steps": "c.yaml",
        "sizes[0]": "c.yaml", "mix.a": "two.yaml", "mix.b": "c.yaml",
    }  # fmt: skip
    assert loaded.given(("optimizer", "lr"))
    assert not loaded.given(("optimizer", "eps"))
    assert loaded.where(("optimizer", "eps")).file == "c.yaml"


def test_a_diamond_is_no_cycle(read, tmp_path):
    (tmp_path / "root.yaml").write_text("title: root\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"extends: root.yaml\nsizes: [{ord(name)}]\n")
    assert read("extends: [a.yaml, b.yaml]").value.sizes == (98,)


def test_what_extends_refuses(wrong, tmp_path):
    (tmp_path / "d.yaml").write_text("extends: c.yaml\n")
    assert wrong("extends: d.yaml")[0].code == "C013"
    assert wrong("extends: c.yaml")[0].code == "C013"
    assert wrong("extends: none.yaml")[0].code == "C013"
    assert wrong("extends: [[a]]")[0].code == "C013"
    assert wrong("extends: {a: b}")[0].code == "C013"


# ---- --set -----------------------------------------------------------------------------------------------------


class Settings(Model):
    replace: str = "mask"
    kinds: tuple[str, ...] = ()


class Named(Model):
    name: str
    share: Share = 0.0


class Listed(Model):
    stages: tuple[str | dict[str, Settings | None], ...] = ()
    phases: tuple[Named, ...] = ()
    mix: dict[str, float] = {}


LISTED = """
stages: [normalize, pii: {kinds: [email]}, rules: , rules: {replace: x}]
phases: [{name: one, share: 20%}, {name: two}]
mix: {web.0: 1, web: 0}
"""


def test_overrides_win(read):
    value = read("title: a\noptimizer: {lr: 1}", "optimizer.lr=2e-4", "title=bc", "sizes=[1, 2]").value
    assert value.optimizer.lr == 2e-4
    assert value.title == "bc"
    assert value.sizes == (1, 2)
    assert read("title: a", "mix.web=70%", "mix.web=30%").value.mix == {"web": 0.3}
    assert read("maybe: 4", "maybe=").value.maybe is None
    assert read("title: a", "title=a=b").value.title == "a=b"


def test_overrides_walk_lists(read):
    value = read(
        LISTED, "stages.pii.replace=tag", "stages.normalize.replace=drop", "stages.3.rules.replace=y",
        "stages.2.replace=z", "phases.two.share=80%", "phases.0.share=10%", 'mix."web.0"=2', "mix.web.0=3", model=Listed,
    ).value  # fmt: skip
    assert value.stages == (
        {"normalize": Settings(replace="drop")},
        {"pii": Settings(replace="tag", kinds=("email",))},
        {"rules": Settings(replace="z")},
        {"rules": Settings(replace="y")},
    )
    assert [phase.share for phase in value.phases] == [0.1, 0.8]
    assert value.mix == {"web.0": 3, "web": 0}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("title", "path=value"), ("=a", "path=value"), ("a..b=1", "path=value"), (".a=1", "path=value"), ("", "path=value"),
        ("stages.rules.replace=a", "2 items called `rules`; say which: stages.2, stages.3"),
        ("stages.quality.x=1", "no item called `quality`"), ("stages.9=a", "no item 9"),
        ("mix.web.a=1", "mix.web is text, so it has no `a`"), ("mix.a=[", "not valid YAML"),
        ("extends=[b.yaml]", "in a file only"),
    ],
)  # fmt: skip
def test_what_overrides_refuse(wrong, override, says):
    (problem,) = wrong(LISTED, override, model=Listed)
    assert says in problem.message
    assert problem.where.file == "--set"
    assert problem.where.text == f"--set {override}"


def test_a_wrong_override_is_shown_as_typed(wrong):
    (problem,) = wrong("title: a", "optimizer.steps=soon")
    assert problem.where.text == "--set optimizer.steps=soon"
    assert problem.where.text[problem.where.column - 1 :] == "soon"
    (problem,) = wrong("title: a", "optimizer.stepps=3")
    assert problem.code == "C001"
    assert problem.where.text[problem.where.column - 1 :].startswith("optimizer.stepps")


# ---- secrets and paths -----------------------------------------------------------------------------------------

MADE_UP = "exampleSecretValue/01"


def test_a_secret_is_shown_nowhere(read):
    text = f"token: {MADE_UP}\nstorage_options: {{key: {MADE_UP}, secret: [{MADE_UP}], anon: true, port: 9000, url: x}}\n"
    loaded = read(text)
    value = loaded.value
    assert value.token.reveal() == MADE_UP
    assert reveal(value.storage_options) == {"key": MADE_UP, "secret": [MADE_UP], "anon": True, "port": 9000, "url": "x"}
    shown = [repr(value), str(value), value.model_dump_json(), repr(value.model_dump()), repr(loaded.origins), str(value.token)]
    assert all(MADE_UP not in one for one in shown)
    assert json.loads(value.model_dump_json())["storage_options"]["key"] == "***"
    assert loaded.digest == read(text.replace(MADE_UP, "other")).digest


@pytest.mark.parametrize(
    "override", [f"token=[{MADE_UP}]", f"storage_options.secret=[{MADE_UP}", f"optimizer.api_key={MADE_UP}",
                 f"optimizer={{password: {MADE_UP}}}", f"password: {MADE_UP}"],
)  # fmt: skip
def test_a_secret_in_an_override_is_not_shown(wrong, override):
    for problem in wrong("title: a", override):
        assert MADE_UP not in str(SpecError(problem))
        assert MADE_UP not in repr(problem)


def test_secrets_of_a_file_with_a_mistake_beside_them(shared, wrong):
    text = (shared / "cases/inputs/secrets.yaml").read_text()
    shown = str(SpecError(*wrong(text))) + str(SpecError(*wrong(text + "bad: [", model=Everything)))
    for secret in ("EXAMPLEKEY0000000001", "exampleSecretValue", "0000example1111example", "tok_example"):
        assert secret in text
        assert secret not in shown


@pytest.mark.parametrize(
    ("key", "inside", "secret"),
    [
        ("api_key", None, True), ("hub_token", None, True), ("token", None, True), ("password", None, True),
        ("secretAccessKey", None, True), ("client_secret", None, True), ("key", "storage_options", True),
        ("account_key", "storage_options", True), ("connection_string", "storage_options", True),
        ("key", None, False), ("num_special_tokens", None, False), ("use_cls_token", None, False),
        ("eos_token", None, False), ("keep_meta", None, False), ("global_tokens", None, False), ("secrets_file", None, False),
        ("primary_key", None, False), ("tokenizer", None, False), ("", None, False),
    ],
)  # fmt: skip
def test_names_of_secrets(key, inside, secret):
    assert secret_name(key, inside) is secret


def test_paths_are_those_of_their_file(read, tmp_path):
    path = read("data: ../data/*.jsonl").value.data
    assert path == str(tmp_path.parent / "data" / "*.jsonl")
    assert (path.written, path.tail) == ("../data/*.jsonl", "*.jsonl")
    assert read("data: s3://bucket/a/**/x-*.parquet").value.data.tail == "**/x-*.parquet"
    assert read("data: /abs/folder/").value.data.tail == "folder"
    assert read("title: x", "data=here.json").value.data == str(tmp_path / "here.json")
    copied = pickle.loads(pickle.dumps(path))
    assert (copied, copied.written) == (path, path.written)


def test_a_digest_knows_no_folders(read, tmp_path):
    loaded = read("data: /somewhere/data/*.jsonl")
    assert loaded.digest == read("data: /elsewhere/*.jsonl").digest
    assert loaded.digest != read("data: /somewhere/data/*.json").digest
    assert read("optimizer: {steps: 5}").digest == read("optimizer: {steps: 5.0, lr: 1e-1}").digest


# ---- schema ----------------------------------------------------------------------------------------------------


def test_the_schema_is_draft_7_and_agrees_with_the_reader(read):
    schema = json_schema(Everything)
    text = json.dumps(schema)
    assert "$defs" not in text
    assert '"title"' in text  # the field of that name stays, made-up titles do not
    assert '"Optimizer"}' not in text
    jsonschema.Draft7Validator.check_schema(schema)
    check = jsonschema.Draft7Validator(schema)
    good = {"extends": ["a.yaml"], "mix": {"a": "70%"}, "mixture": {"materialized": {"tokens": "20B"}}, "except": ["a"]}
    assert list(check.iter_errors(good)) == []
    for bad in ({"titel": "a"}, {"mix": {"a": 2}}, {"mixture": "x"}, {"mixture": {"materialized": {"tokens": "4MB"}}}):
        assert list(check.iter_errors(bad))
    lr = schema["definitions"]["Optimizer"]["properties"]["lr"]
    assert lr["description"] == "Peak learning rate."


# ---- whatever a file holds ---------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ["title", "optimizer", "steps", "mix", "sizes", "token", "storage_options", "extends", ":", ": ", "- ", "\n", "\n  ", "{",
     "}", "[", "]", ", ", "&a ", "*a", "<<: ", "!!int ", "'", '"', "|\n", "# ", "3e-4", "70%", "no", "~", "中文", "\t", "\r\n",
     "? ", "--- ", "\u2028", "\ufeff", "%", "@", "\\", "c.yaml", "\x00", "😀"]
)  # fmt: skip


def outcome(path, overrides=()) -> str:
    """The value, or the problems, as text."""
    try:
        return repr(load(path, Everything, overrides).value)
    except SpecError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.lists(PIECES, max_size=6).map("".join))
def test_any_text_is_a_value_or_problems(tmp_path_factory, text, override):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    for overrides in ((), (override,)):
        assert outcome(path, overrides)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_problems(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    assert outcome(path)
