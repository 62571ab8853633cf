"""Language identification against labels: by kind and length of text, by language, by identifier, with the speed.

    python -m benchmarks.language --data DIR [--json] [--quick] [--model lid.176.ftz]

DIR holds JSON Lines with `text` and `lang`. A language that the identifier does not know is left out, and counted as
coverage. `200+` are texts of 200 characters and more.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks import measure
from benchmarks.labelled import batch_of, rows
from stages.language import Language
from stages.language.codes import short_code

_LONG = 200


def labelled(folder: Path) -> list[tuple[str, str, str]]:
    """`(kind, short code, text)`; rows without a known language are left out, mixed texts too."""
    found = []
    for name, row in rows(folder, "language"):
        if isinstance(row.get("text"), str) and isinstance(row.get("lang"), str):
            try:
                code = short_code(row["lang"])
            except ValueError:
                code = row["lang"]
            kind = str(row.get("kind") or name.split(".")[0])
            found.append((kind, code, row["text"]))
    return found


def score(report: measure.Report, name: str, stage: Language, cases: list[tuple[str, str, str]]) -> None:
    """Accuracy by kind, by length and by language, share of the labels that are known, and speed."""
    known = stage._identifier().labels
    usual = [case for case in cases if case[1] in known]
    batch = batch_of([text for _, _, text in usual])
    seconds, after = measure.cpu_seconds(lambda: stage.apply(batch))
    right = defaultdict(list)
    for (kind, code, text), got in zip(usual, after.column("lang").to_pylist(), strict=True):
        groups = [kind, "all", f"{kind} 200+" if len(text) >= _LONG else f"{kind} short"]
        groups += ["200+", f"200+ {code}"] if len(text) >= _LONG else ["short", f"short {code}"]
        for group in groups:
            right[group].append(got == code)
    for group, hits in sorted(right.items()):
        report.accuracy(f"{name} {group}", "accuracy", sum(hits) / len(hits), len(hits))
    report.accuracy(f"{name} labels known", "coverage", len(usual) / max(len(cases), 1), len(cases))
    report.rate(f"{name} speed", batch.column("text").nbytes / 1e6 / seconds, "MB/s")


def main() -> None:
    """The built-in identifier, and a model if one is given."""
    parser = measure.labelled_parser(__doc__, "folder of labelled texts")
    parser.add_argument("--model", help="a fastText model to compare with")
    options = parser.parse_args()
    measure.one_core()
    cases = labelled(options.data)[:: 10 if options.quick else 1]
    report = measure.Report("language", options)
    score(report, "language", Language(), cases)
    if options.model:
        score(report, "language fasttext", Language(model=options.model), cases)
    report.close()


if __name__ == "__main__":
    main()
