"""Small corpora and builds for tests of the pipeline."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from pipeline.corpus import load_corpus
from pipeline.engine.executor import Executor, Inline
from pipeline.engine.plan import make_plan
from pipeline.engine.run import Build
from pipeline.engine.state import BuildResult
from pipeline.engine.store import Store
from pipeline.events import Event, Events

WORDS = ["river", "lamp", "stone", "garden", "engine", "pocket", "winter", "ladder", "marble", "violin", "copper", "orchard", "baker", "sailor", "kettle", "timber"]
HAN = "机器学习模型训练数据清洗语言文本山水风云天地人和春夏秋冬东西南北"


def document(seed: int, words: int = 80) -> str:
    """Deterministic prose, a third of it Chinese."""
    chance = random.Random(seed)
    if seed % 3 == 2:
        return "".join(chance.choices(HAN, k=words)) + "。"
    return " ".join(chance.choices(WORDS, k=words)).capitalize() + "."


def write_jsonl(path: Path, texts: Sequence[str], **fields: object) -> None:
    """One record per text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (json.dumps({"id": f"{path.stem}-{i}", "text": text, **fields}, ensure_ascii=False) for i, text in enumerate(texts))
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")


def make_inputs(folder: Path, files: int = 6, documents: int = 30) -> None:
    """Two sources with an overlap: `web` repeats some documents of `books`, exactly and nearly."""
    for number in range(files):
        texts = [document(1000 * (number + 1) + i) for i in range(documents)]
        texts[3] = document(1)  # an exact copy across files
        texts[5] = document(7) + " One more sentence."
        write_jsonl(folder / "web" / f"{number:02d}.jsonl", texts)
    write_jsonl(folder / "books" / "all.jsonl", [document(i) for i in range(20)] + [""])


CONFIG = """\
name: test
seed: 7
sources:
  web: {path: %(inputs)s/web/*.jsonl}
  books: {path: %(inputs)s/books/*.jsonl, priority: 1}
stages:
%(stages)s
tokenizer: {vocab_size: 400}
holdout: {share: 2%%}
output: {path: %(out)s, shard_tokens: 4096}
"""
STAGES = "  - normalize\n  - exact-dedup\n  - minhash-dedup\n  - pii\n"


def write_config(folder: Path, inputs: Path, stages: str = STAGES, out: str = "out") -> Path:
    """A corpus.yaml in `folder` over `inputs`."""
    path = folder / "corpus.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG % {"inputs": inputs, "stages": stages, "out": out}, encoding="utf-8")
    return path


def run_build(
    config: Path,
    overrides: Sequence[str] = (),
    executor: Executor | None = None,
    until: str | None = None,
    heard: list[Event] | None = None,
) -> BuildResult:
    """Builds in this process; without an executor, inline."""
    plan = make_plan(load_corpus(config, overrides))
    plan.out.mkdir(parents=True, exist_ok=True)
    executor = executor or Inline()
    with Store(plan.out) as store:
        try:
            return Build(plan, store, executor, Events(None, (heard.append,) if heard is not None else ())).run(until)
        finally:
            executor.close()


def snapshot(out: Path) -> dict[str, str]:
    """Digest of every file that a user gets, by path; what may differ between runs is left out."""
    files = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not name.startswith("work/") and name not in ("run.json", "events.jsonl"):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def ran(result: BuildResult) -> dict[str, int]:
    """Sets of tasks that really ran, by name."""
    return {name: n for name, n in result.state.ran.items() if n}
