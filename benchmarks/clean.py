"""The row-local stages one after the other, one core: normalize, language, rules (fineweb), pii.

    GRISTMILL_DATA=... python -m benchmarks.clean [--quick] [--json]

Beside the chain stands what datatrove needs for its part of it: the FineWeb filters and PIIFormatter, with a fast word
tokenizer injected, and as they come (spaCy words) on fewer texts. MB of text a second of CPU; a stage gets only what the
stages before it left. `normalize, odd` are the same texts with spaces at line ends and CRLF.
"""

from __future__ import annotations

import importlib.util
import itertools

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import measure
from benchmarks.labelled import batch_of
from benchmarks.rules import fast_words, filters, verdict
from benchmarks.texts import mixture
from stages.stage import RowStage, stage_class

CHAIN: tuple[tuple[str, dict], ...] = (
    ("normalize", {}),
    ("language", {}),
    ("rules", {"preset": "fineweb"}),
    ("pii", {}),
)


def main() -> None:
    """The chain, each stage, and datatrove's."""
    options = measure.parser(__doc__).parse_args()
    measure.one_core()
    report = measure.Report("clean", options)
    texts = mixture(4 if options.quick else 40).to_pylist()
    batches = _batches(texts)
    size = sum(batch.column("text").nbytes for batch in batches) / 1e6
    stages: list[RowStage] = [stage_class(name)(**given) for name, given in CHAIN]  # type: ignore[misc]
    spent = {stage.name: 0.0 for stage in stages}
    seen = {stage.name: 0.0 for stage in stages}
    for stage in stages:
        stage.apply(batches[0].slice(0, 5))
    for batch in batches:
        for stage in stages:
            seen[stage.name] += batch.column("text").nbytes / 1e6
            seconds, batch = measure.cpu_seconds(lambda stage=stage, batch=batch: stage.apply(batch), 2)  # type: ignore[misc]
            spent[stage.name] += seconds
            batch = batch.filter(pc.is_null(batch.column("drop")))
    ours = size / sum(spent.values())
    for name, language, part in (
        ("datatrove, fast words", fast_words(), 10),
        ("datatrove, spaCy", "eng", 100),
    ):
        if language == "eng" and importlib.util.find_spec("spacy") is None:
            print("spaCy is not installed: datatrove's default is not measured")
            continue
        report.rate("clean chain" if language != "eng" else "clean chain, spaCy", ours, "MB/s", _theirs(texts[::part], language), name)
    for name in spent:
        report.rate(f"clean {name}", seen[name] / spent[name], "MB/s")
    odd = _batches([text.replace("\n", " \r\n") for text in texts])
    normalize = stages[0]
    seconds, _ = measure.cpu_seconds(lambda: [normalize.apply(batch) for batch in odd], 2)
    report.rate("clean normalize, odd", sum(b.column("text").nbytes for b in odd) / 1e6 / seconds, "MB/s")
    report.close()


def _batches(texts: list[str]) -> list[pa.RecordBatch]:
    """Batches of about 8 MB."""
    cuts, size = [0], 0
    for number, text in enumerate(texts, 1):
        size += len(text.encode())
        if size >= 8e6 or number == len(texts):
            cuts.append(number)
            size = 0
    return [batch_of(texts[a:b]) for a, b in itertools.pairwise(cuts)]


def _theirs(texts: list[str], language: object) -> float:
    from datatrove.pipeline.formatters import PIIFormatter

    chain, formatter = filters(language), PIIFormatter()
    verdict(texts[0], chain)  # its caches

    def work() -> None:
        for text in texts:
            if verdict(text, chain) is None:
                formatter.format(text)

    return sum(len(text.encode()) for text in texts) / 1e6 / measure.cpu_seconds(work)[0]


if __name__ == "__main__":
    main()
