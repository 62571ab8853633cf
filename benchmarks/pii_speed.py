"""Personal details against datatrove's PIIFormatter, one core, same texts: its two kinds, and all of ours.

    GRISTMILL_DATA=... python -m benchmarks.pii_speed [--quick] [--json]

MB of text a second of CPU.
"""

from __future__ import annotations

from benchmarks import measure
from benchmarks.labelled import batch_of
from benchmarks.texts import mixture
from stages.pii import Pii


def main() -> None:
    """Two kinds, all kinds, and each kind alone."""
    options = measure.parser(__doc__).parse_args()
    measure.one_core()
    from datatrove.pipeline.formatters import PIIFormatter
    from loguru import logger

    logger.disable("datatrove")
    report = measure.Report("pii_speed", options)
    texts = mixture(4 if options.quick else 40).to_pylist()
    batch = batch_of(texts)
    size = batch.column("text").nbytes / 1e6
    formatter = PIIFormatter()
    seconds, _ = measure.cpu_seconds(lambda: [formatter.format(text) for text in texts])
    theirs = size / seconds
    Pii().apply(batch.slice(0, 10))
    for name, stage in (("e-mail and ip", Pii(kinds=("email", "ip"))), ("all kinds", Pii())):
        seconds, _ = measure.cpu_seconds(lambda stage=stage: stage.apply(batch), 2)  # type: ignore[misc]
        report.rate(f"pii {name}", size / seconds, "MB/s", theirs, "datatrove PIIFormatter")
    for kind in Pii().kinds:
        seconds, _ = measure.cpu_seconds(lambda kind=kind: Pii(kinds=(kind,)).apply(batch), 2)  # type: ignore[misc]
        report.rate(f"pii {kind}", size / seconds, "MB/s")
    report.close()


if __name__ == "__main__":
    main()
