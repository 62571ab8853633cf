"""`report.html`: counts per stage and source, and excerpts of what was kept and dropped. One file, no scripts.

Everything that comes from data is escaped by the template engine, and the page forbids scripts and requests of any
kind, so that a corpus cannot run anything in the browser of whoever looks at it. It holds no time and no host: the
same build gives the same page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.records import Excerpt
from pipeline.engine.writer import EXCERPTS
from pipeline.show import counted, size
from stages.contract.files import write_atomic
from stages.contract.manifest import Manifest

if TYPE_CHECKING:
    from pipeline.engine.run import Build
    from pipeline.engine.state import BuildState

REPORT = "report.html"


def write_report(build: Build, state: BuildState, manifest: Manifest) -> None:
    """Writes the page into the output folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = size
    environment.filters["number"] = lambda n: f"{n:,}"
    page = environment.get_template(REPORT).render(
        manifest=manifest,
        sources=[_source(build, state, manifest, name) for name in manifest.sources],
        rounds=[(b.use.label, counted(b.facts.counters), _warnings(b.facts.counters)) for b in state.boundaries],
    )
    write_atomic(build.store.out / REPORT, page.encode("utf-8", "replace"))


def _source(build: Build, state: BuildState, manifest: Manifest, name: str) -> dict[str, Any]:
    entry = manifest.sources[name]
    source = entry.bucket.of if entry.bucket is not None else name
    ledger = state.ledger(source)
    counts = build.accounts(state, source)
    most = max((c.documents_in for c in counts), default=0) or 1
    return {
        "name": name,
        "entry": entry,
        "weight": 100 * manifest.mixture.get(name, 0.0),
        "held": sum(shard.documents for shard in entry.holdout),
        "bytes_per_token": entry.text_bytes / entry.tokens if entry.tokens else 0.0,
        "steps": [(c, _reasons(c.dropped, c.rejected), 100 * c.documents_out / most) for c in counts],
        "kept": _five(ledger.kept),
        "removed": _five(ledger.removed),
    }


def _warnings(counters: dict[str, int]) -> list[str]:
    return [f"{name[5:]}: {n:,}" for name, n in sorted(counters.items()) if name.startswith("warn:")]


def _five(excerpts: list[Excerpt]) -> list[Excerpt]:
    return sorted(excerpts, key=lambda e: e.id)[:EXCERPTS]


def _reasons(dropped: dict[str, int], rejected: dict[str, int]) -> list[tuple[str, int]]:
    both = [*dropped.items(), *((f"rejected: {reason}", n) for reason, n in rejected.items())]
    return sorted(both, key=lambda pair: (-pair[1], pair[0]))
