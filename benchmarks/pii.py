"""Personal details against labels: precision and recall by kind and by language, look-alikes left alone, values by validity.

    python -m benchmarks.pii --data DIR [--json] [--quick]

DIR holds JSON Lines with `text` and `spans` ({start, end, type}, code points), or single values with `type`, `value`
and `valid`. A found span is right if it overlaps a labelled one of its kind; types that no kind stands for do not count.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks import measure
from benchmarks.labelled import batch_of, rows
from stages.pii import Pii
from stages.pii.spans import KINDS, Kind, find_spans

#: What labelled sets call the kinds.
TYPES: dict[str, Kind] = {
    "EMAIL": "email", "EMAIL_ADDRESS": "email", "PHONE": "phone", "PHONE_NUMBER": "phone", "CREDIT_CARD": "bank-card",
    "CARD": "bank-card", "US_SSN": "id-card", "CN_ID": "id-card", "IBAN": "iban", "IBAN_CODE": "iban", "IPV4": "ip",
    "IPV6": "ip", "IP": "ip", "IP_ADDRESS": "ip", "PASSWORD": "secret", "HEX_SECRET": "secret", "PRIVATE_KEY": "secret",
    "AWS_KEY": "secret", "JWT": "secret", "OPENAI_KEY": "secret", "GOOGLE_KEY": "secret", "GITHUB_TOKEN": "secret",
    "SLACK_TOKEN": "secret",
}  # fmt: skip


class Counts:
    """Right, wrong and missed spans by group."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def add(self, row: dict[str, Any]) -> None:
        """Compares what is found in a row with its labels."""
        gold = [(s["start"], s["end"], TYPES[s["type"]]) for s in row["spans"] if s["type"] in TYPES]
        found = find_spans(row["text"])
        for span in found:
            hit = any(a < span.stop and span.start < b and kind == span.kind for a, b, kind in gold)
            for group in self._groups(span.kind, row):
                (self.right if hit else self.wrong)[group] += 1
        for a, b, kind in gold:
            if not any(a < s.stop and s.start < b and kind == s.kind for s in found):
                for group in self._groups(kind, row):
                    self.missed[group] += 1

    def _groups(self, kind: Kind, row: dict[str, Any]) -> list[str]:
        language = str(row.get("lang") or row.get("locale") or "unknown").replace("_", "-").split("-")[0]
        return [kind, f"{kind} {language}", "all"]

    def report(self, report: measure.Report) -> None:
        """Precision and recall of every group."""
        for group in sorted(self.right | self.wrong | self.missed):
            found, gold = self.right[group] + self.wrong[group], self.right[group] + self.missed[group]
            if found:
                report.accuracy(f"pii {group}", "precision", self.right[group] / found, found)
            if gold:
                report.accuracy(f"pii {group}", "recall", self.right[group] / gold, gold)


def main() -> None:
    """Spans, texts without any, and single values."""
    parser = measure.labelled_parser(__doc__, "folder of labelled texts")
    options = parser.parse_args()
    measure.one_core()
    report = measure.Report("pii", options)
    all_rows = [row for _, row in rows(options.data, "pii")][:: 10 if options.quick else 1]
    counts = Counts()
    spanned = [row for row in all_rows if isinstance(row.get("spans"), list)]
    for row in spanned:
        counts.add(row)
    counts.report(report)
    bare = [row["text"] for row in spanned if not row["spans"]]
    if bare:
        after = Pii().apply(batch_of(bare)).column("text").to_pylist()
        same = sum(a == b for a, b in zip(after, bare, strict=True))
        report.accuracy("pii texts without details", "unchanged", same / len(bare), len(bare))
    agree: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in all_rows:
        if (
            "valid" in row
            and (kind := TYPES.get(row.get("type", "")))
            and (value := row.get("value") or row.get("text"))
        ):
            group = f"{kind} {'valid' if row['valid'] else 'invalid'}"
            total[group] += 1
            agree[group] += any(
                s.kind == kind and s.stop - s.start == len(value) for s in find_spans(value)
            ) == bool(row["valid"])
    for group in sorted(total):
        report.accuracy(f"pii values {group}", "agreement", agree[group] / total[group], total[group])
    assert set(TYPES.values()) == set(KINDS)
    report.close()


if __name__ == "__main__":
    main()
