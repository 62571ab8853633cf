"""Documentation is tested: commands and options exist, keys and codes are described, configs load, pages agree."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from benchmarks.table import table
from pipeline.corpus import corpus_schema, load_corpus
from stages.contract.problem import CODES

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
#: A page and its translation.
PAIRS = [("README.md", "README.zh-CN.md"), ("docs/quickstart.md", "docs/quickstart.zh-CN.md")]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"<!-- figures: ([\w-]+) begin -->\n(.*?)<!-- figures: \1 end -->", re.DOTALL)

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(text) if found == language]


def shell_lines(text: str) -> list[str]:
    """The commands of all shell blocks, without comments, one part of a chain at a time."""
    lines = [line for body in blocks(text, "bash") for line in body.replace("\\\n", " ").splitlines()]
    return [
        shlex.join(shlex.split(line, comments=True)) for line in lines if shlex.split(line, comments=True)
    ]


def named_commands(text: str) -> list[list[str]]:
    """Every `pipeline X …` and `trainer X …` of a page, in shell blocks and inline, as words."""
    inline = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    words = [shlex.split(line) for line in shell_lines(text)] + [
        shlex.split(code) for code in inline if "'" not in code
    ]
    return [
        w
        for w in words
        if len(w) > 1 and w[0] in ("pipeline", "trainer") and re.fullmatch(r"[a-z][a-z-]*", w[1])
    ]


def group(tool: str) -> click.Group:
    """The click group of `pipeline` or `trainer`."""
    module = importlib.import_module(f"{tool}.cli")
    return next(value for value in vars(module).values() if isinstance(value, click.Group))


def command(tool: str, name: str) -> click.Command | None:
    found = group(tool)
    return found.get_command(click.Context(found), name)


# --- commands -----------------------------------------------------------------------------------------------


@by_name
def test_every_command_and_option_named_exists(page: Path) -> None:
    for words in named_commands(read(page)):
        found = command(words[0], words[1])
        assert found is not None, f"{page.name} names `{shlex.join(words)}`, but there is no such command"
        options = {
            option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in words[2:]:
            option = word.split("=")[0]
            assert not option.startswith("-") or option in options | {"--help"}, (
                f"{page.name}: {shlex.join(words)}"
            )


@by_name
def test_every_make_target_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    text = read(page)
    named = [shlex.split(line)[1] for line in shell_lines(text) if line.startswith("make ")]
    named += re.findall(r"`make ([a-z-]+)`", text)
    assert set(named) <= targets


@pytest.mark.parametrize("tool", ["pipeline", "trainer"])
def test_every_command_is_described(tool: str) -> None:
    named = {(words[0], words[1]) for page in PAGES for words in named_commands(read(page))}
    shown = [
        name
        for name in group(tool).list_commands(click.Context(group(tool)))
        if not command(tool, name).hidden
    ]
    assert [name for name in shown if (tool, name) not in named] == []


def test_the_two_commands_come_first() -> None:
    for name in PAIRS[0]:
        assert shell_lines(blocks_first(read(name))) == ["make demo", "make test"]


def blocks_first(text: str) -> str:
    return f"```bash\n{blocks(text, 'bash')[0]}```\n"


# --- translations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_a_translation_has_the_same_commands_and_figures(pair: tuple[str, str]) -> None:
    english, chinese = map(read, pair)
    assert shell_lines(english) == shell_lines(chinese)
    assert [name for name, _ in FIGURE.findall(english)] == [name for name, _ in FIGURE.findall(chinese)]
    assert [bare(body) for body in blocks(english, "yaml")] == [
        bare(body) for body in blocks(chinese, "yaml")
    ]
    assert english.count("\n## ") == chinese.count("\n## ")


def bare(body: str) -> list[str]:
    """A YAML block without its comments (none of ours has `#` in a value)."""
    return [line.split("#")[0].rstrip() for line in body.splitlines()]


@by_name
def test_every_figure_is_filled_and_closed(page: Path) -> None:
    text = read(page)
    found = FIGURE.findall(text)
    assert len(found) == text.count("<!-- figures: ") / 2
    assert [name for name, body in found if not body.strip()] == []


@pytest.mark.parametrize("name", PAIRS[0])
def test_the_speeds_are_those_of_the_kept_results(name: str) -> None:
    (shown,) = (body for kind, body in FIGURE.findall(read(ROOT / name)) if kind == "speed")
    assert shown == table(name), "python -m benchmarks.table writes them anew"


# --- links --------------------------------------------------------------------------------------------------


@by_name
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", read(page))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in {
                slug(title) for title in re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), re.M)
            }


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# --- configs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_loads(path: Path) -> None:
    corpus = load_corpus(path)
    assert corpus.name == path.stem


def test_there_are_shipped_configs() -> None:
    assert len(CONFIGS) >= 2


@by_name
def test_every_whole_config_in_a_page_loads(page: Path, tmp_path: Path) -> None:
    for body in blocks(read(page), "yaml"):
        if re.search(r"^name:", body, re.MULTILINE):
            (tmp_path / "corpus.yaml").write_text(body, encoding="utf-8")
            load_corpus(tmp_path / "corpus.yaml")


# --- reference pages ----------------------------------------------------------------------------------------


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no heading {title!r}"
    return found[2]


def described(text: str) -> set[str]:
    """The keys in the first column of the tables."""
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("Top level", None), ("sources", "Source"), ("tokenizer", "Tokenizer"), ("mix and phases", "Phase"),
        ("holdout", "Holdout"), ("output", "Output"), ("run", "Run"),
    ],
)  # fmt: skip
def test_every_key_of_corpus_yaml_is_described(title: str, model: str | None) -> None:
    schema = corpus_schema()
    properties = (schema if model is None else schema["definitions"][model])["properties"]
    assert described(section(read("docs/corpus-yaml.md"), title)) == set(properties)


def test_every_stage_and_its_settings_are_described() -> None:
    from stages.stage import REGISTRY, Stage, stage_class

    text = section(read("docs/corpus-yaml.md"), "stages")
    common = {field.alias or name for name, field in Stage.model_fields.items()}
    assert common <= described(text.split("### ")[0])
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == list(REGISTRY)
    for name in REGISTRY:
        own = {field.alias or key for key, field in stage_class(name).model_fields.items()} - common
        part = text.split(f"### {name}\n")[1].split("### ")[0]
        assert described(part) == own, name


def test_every_error_code_is_described_as_the_code_says() -> None:
    rows = re.findall(r"^\| ([A-Z]\d{3}) \| ([^|]+) \|", read("docs/errors.md"), re.MULTILINE)
    assert dict(rows) == CODES


def test_every_field_of_the_manifest_is_described() -> None:
    from stages.contract.manifest import Manifest, SourceEntry

    rows = described(read("docs/manifest.md"))
    assert set(Manifest.model_fields) | set(SourceEntry.model_fields) <= rows
