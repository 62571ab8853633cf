"""`pipeline init`: a corpus.yaml that runs, written from what lies on the disk.

Two origins. `this-python` is text that every machine has: the standard library and the installed packages of
the running Python, read where they lie. Any other is a folder, which `survey.py` looks at. Nothing is copied:
the config and its schema are all that is written.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.peek import Settings, yaml_text
from pipeline.commands.survey import InitSource, escape, look_at, source_name
from stages.contract.files import write_atomic
from stages.contract.problem import Problem, SpecError, printable
from stages.readers import list_files

THIS_PYTHON = "this-python"
CONFIG_NAME = "corpus.yaml"
SCHEMA_NAME = "corpus.schema.json"

#: Bytes of package code that `this-python` takes beside the standard library, so that a demo stays short.
PACKAGE_BYTES = 12_000_000


@dataclass(frozen=True)
class InitResult:
    """What was written, and what to tell the user: one sentence a note."""

    config_path: Path
    sources: list[InitSource]
    notes: list[str]


def initialize(folder: Path, origin: str, name: str | None = None) -> InitResult:
    """Writes `folder`/corpus.yaml and the schema beside it; the same disk gives the same bytes.

    origin  `this-python`, or a folder of raw text
    name    of the corpus; by default the name of the folder
    Raises SpecError if there is a corpus.yaml already, or nothing at the origin can be read.
    """
    target = folder / CONFIG_NAME
    if target.exists():
        way_out = (f"build it: pipeline build {target}", "move it away, or name another folder")
        raise SpecError(Problem("C020", f"{target} is there already and is not overwritten", repairs=way_out))
    demo = origin == THIS_PYTHON
    sources, notes = this_python() if demo else look_at(Path(origin), folder)
    corpus = name or source_name(folder.resolve().name, set())
    text = _config(corpus, sources, _demo_rest(sources) if demo else _rest(sources))
    write_atomic(folder / SCHEMA_NAME, _schema())
    write_atomic(target, text.encode())
    return InitResult(target, sources, [*(f"{source.name}: {_about(source)}" for source in sources), *notes])


def _schema() -> bytes:
    from pipeline.corpus import corpus_schema

    return (json.dumps(corpus_schema(), indent=1, ensure_ascii=False) + "\n").encode()


# --- text of the running Python -----------------------------------------------------------------------------

_CODE: Settings = (("priority", "2"),)
_TEXT: Settings = (("format", "text"),)


def this_python() -> tuple[list[InitSource], list[str]]:
    """Sources over the standard library and the installed packages, and notes; the same for the same Python.

    Near duplicates are wanted, and come by themselves: pip carries copies of other packages, licences repeat.
    """
    paths = sysconfig.get_paths()
    stdlib, site = (Path(paths[key]).resolve().as_posix() for key in ("stdlib", "purelib"))
    std, own = escape(stdlib), escape(site)
    wanted = [
        # Letter ranges leave out `test`, and `site-packages`, which may lie inside.
        ("stdlib", (f"{std}/*.py", f"{std}/[a-r]*/**/*.py", f"{std}/[u-z]*/**/*.py"), "the standard library", _CODE),
        ("packages", (f"{own}/{{{','.join(_choose_packages(site))}}}/**/*.py",),
         "code of installed packages; pip carries copies of some of the others", ()),
        ("descriptions", (f"{own}/*.dist-info/METADATA", f"{own}/*/**/*.{{md,rst}}"),
         "package descriptions, with real e-mail addresses", _TEXT),
        ("licences", (f"{own}/*.dist-info/**/{{LICEN,COPYING}}*",),
         "licence texts, many of them near duplicates", _TEXT),
        ("translations", (f"{own}/*/**/*.po",), "translated messages, in many languages", _TEXT),
    ]  # fmt: skip
    notes = [
        f"text of Python {sys.version.split()[0]}, read where it lies: {printable(stdlib)} and {printable(site)}"
    ]
    sources = []
    for name, patterns, comment, settings in wanted:
        found = {pattern: files for pattern in patterns if (files := _files(pattern))}
        if found:
            sizes = {path: size for files in found.values() for path, size in files.items()}
            prose = settings is _TEXT
            sources.append(
                InitSource(name, tuple(found), comment, len(sizes), sum(sizes.values()), settings, prose)
            )
        else:
            notes.append(f"no source `{name}`: this Python has none ({comment})")
    return sources, notes


def _choose_packages(site: str) -> list[str]:
    """Packages up to PACKAGE_BYTES of code: pip, those it carries copies of, then the others by name."""
    try:
        names = [
            e.name
            for e in os.scandir(site)
            if e.is_dir() and e.name.isidentifier() and e.name != "__pycache__"
        ]
        vendored = {Path(e.name).stem for e in os.scandir(f"{site}/pip/_vendor")} if "pip" in names else set()
    except OSError:
        return []
    chosen, room = [], PACKAGE_BYTES
    for name in sorted(names, key=lambda name: (name != "pip", name not in vendored, name)):
        size = sum(_files(f"{escape(site)}/{{{name}}}/**/*.py").values())
        if 0 < size <= room:
            chosen.append(name)
            room -= size
        if room < PACKAGE_BYTES // 20:
            break
    return chosen


def _files(pattern: str) -> dict[str, int]:
    """Path and bytes of each file that a source of this pattern would read."""
    return {file.path: file.size for file in list_files(pattern, "/", "text").files}


# --- the text of the config ---------------------------------------------------------------------------------

_HEAD = """\
# yaml-language-server: $schema={schema}
# Written by `pipeline init`. Everything may be changed; paths are relative to this file.
# 由 `pipeline init` 生成，可随意修改；相对路径以本文件所在目录为起点。
name: {name}
seed: 0

sources:  # what to read, and how  语料来源
{sources}
"""

_DEMO_REST = """\
stages:  # from top to bottom  自上而下依次执行
  - normalize  # line ends, control characters, Unicode form  规范化
{prose_stages}{code_stages}\
  - exact-dedup  # equal texts  完全重复
  - minhash-dedup: {{threshold: 0.8, max_loss: 95%}}  # near duplicates, each pair verified  近似重复，逐对核实
  - pii: {{kinds: [email, ip], replace: tag}}  # personal data  隐私信息

tokenizer:
  vocab_size: 8192
  train_on: 8MB  # of kept text  训练分词器所用文本

phases:  # the curriculum: shares of tokens of each source  训练阶段，按词元计的配比
  - {{name: foundation, share: 80%, mix: {{{mix}}}}}
  - {{name: refine, share: 20%, mix: {{{refined}}}}}

holdout: {{share: 2%}}  # set aside after deduplication, never trained on  去重后留出，不参与训练

output:
  path: out
"""

_REST = """\
stages:  # from top to bottom  自上而下依次执行
{extract}\
  - normalize  # line ends, control characters, Unicode form  规范化
  # - language: {{keep: [zh, en]}}  # keep these languages only  只保留这些语言
{rules}\
  - exact-dedup  # equal texts  完全重复
  - minhash-dedup: {{threshold: 0.8}}  # near duplicates, each pair verified  近似重复，逐对核实
  - pii: {{kinds: [email, phone, ip], replace: tag}}  # personal data  隐私信息

tokenizer:
  vocab_size: {vocab}

{mix}

holdout: {{share: 0.5%}}  # set aside after deduplication, never trained on  去重后留出，不参与训练

output:
  path: out
"""

#: Parts of the mixture of the demo; those of sources that are not there are left out.
_DEMO_WEIGHTS = {"stdlib": 46, "packages": 38, "descriptions": 10, "licences": 4, "translations": 2}
_DEMO_REFINED = {"stdlib": 56, "packages": 18, "descriptions": 20, "licences": 4, "translations": 2}


def _config(name: str, sources: Sequence[InitSource], rest: str) -> str:
    blocks = "\n".join(map(_source_text, sources))
    return _HEAD.format(schema=SCHEMA_NAME, name=yaml_text(name), sources=blocks) + rest


def _source_text(source: InitSource) -> str:
    lines = [f"  {yaml_text(source.name)}:  # {_about(source)}"]
    if len(source.patterns) == 1:
        lines.append(f"    path: {yaml_text(source.patterns[0])}")
    else:
        lines += ["    path:", *(f"      - {yaml_text(pattern)}" for pattern in source.patterns)]
    lines += [f"    {key}: {value}" for key, value in source.settings]
    return "".join(f"{line}\n" for line in lines)


def _about(source: InitSource) -> str:
    """What lies there and how that was found, in one line."""
    return f"{source.files:,} file{'s' * (source.files != 1)}, {_size(source.bytes)}; {source.comment}"


def _demo_rest(sources: Sequence[InitSource]) -> str:
    names = [source.name for source in sources]
    code = [source.name for source in sources if not source.prose]
    prose = "descriptions" in names
    return _DEMO_REST.format(
        prose_stages="  - language: {only: [descriptions], keep: [en, zh]}  # 语言识别\n"
        "  - rules: {only: [descriptions], preset: gopher}  # quality  质量规则\n" if prose else "",
        code_stages=f"  - rules: {{only: [{', '.join(code)}], preset: code}}\n" if code else "",
        mix=_weights({name: part for name, part in _DEMO_WEIGHTS.items() if name in names}),
        refined=_weights({name: part for name, part in _DEMO_REFINED.items() if name in names}),
    )  # fmt: skip


def _rest(sources: Sequence[InitSource]) -> str:
    code = ", ".join(yaml_text(source.name) for source in sources if not source.prose)
    prose = ", ".join(yaml_text(source.name) for source in sources if source.prose)
    rules = (
        [f"  # - rules: {{only: [{prose}], preset: fineweb}}  # quality of web pages  网页质量规则"]
        if prose
        else []
    )
    rules += [f"  - rules: {{only: [{code}], preset: code}}"] if code else []
    total = sum(source.bytes for source in sources)
    weights = _weights({source.name: source.bytes for source in sources})
    return _REST.format(
        extract=_extract(sources),
        rules="".join(f"{line}\n" for line in rules),
        vocab=8192 if total < 100_000_000 else 32768 if total < 20_000_000_000 else 65536,
        mix=f"# mix: {{{weights}}}  # shares of tokens; left out, by size  按词元计的配比，不写则按大小",
    )


def _extract(sources: Sequence[InitSource]) -> str:
    """The stage that takes the text out of pages, if there are any; switched off where its library is missing."""
    pages = ", ".join(yaml_text(source.name) for source in sources if source.pages)
    if not pages:
        return ""
    only = "" if all(source.pages for source in sources) else f": {{only: [{pages}]}}"
    if importlib.util.find_spec("resiliparse") is None:
        return f"  # - extract{only}  # needs: pip install 'gristmill[web]'  网页正文提取\n"
    return f"  - extract{only}  # main text of web pages  网页正文提取\n"


def _weights(parts: dict[str, int]) -> str:
    """`a: 60%, b: 40%`: whole percents that add up to 100; the largest part takes up the rounding."""
    whole = sum(parts.values()) or 1
    percents = {name: max(1, part * 100 // whole) for name, part in parts.items()}
    largest = max(percents, key=lambda name: percents[name])
    percents[largest] += 100 - sum(percents.values())
    return ", ".join(f"{yaml_text(name)}: {percent}%" for name, percent in percents.items())


def _size(size: int) -> str:
    """Bytes for people: `13.4 MB`."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
