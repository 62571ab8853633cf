"""`pipeline why`: the life of one document; and the clusters of similar ones. Reads a finished corpus, takes no lock."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commands.look import dropped_batches
from pipeline.engine.sealed import arrow_batches
from stages.contract.manifest import Manifest, ShardEntry, load_manifest
from stages.contract.problem import Problem, SpecError, printable
from stages.contract.shard import read_index, read_tokens

MATCHES = 5  # documents that are told about when several begin alike
MEMBERS = 3  # of a cluster, or of those dropped for a document
SHOWN = 300  # characters of a text
DIFF_TOKENS = 4000  # of each text; the rest is not compared
CONTEXT = 6  # tokens around a change
#: A character of scripts without spaces, or what stands between spaces, with the white space behind it.
_TOKEN = re.compile(r"[\u0e00-\u0eff\u2e80-\u9fff\uf900-\ufaff]\s*|[^\s\u0e00-\u0eff\u2e80-\u9fff\uf900-\ufaff]+\s*|\s+")


class Corpus:
    """What a finished corpus knows of its documents."""

    def __init__(self, path: Path) -> None:
        self.manifest: Manifest = load_manifest(path)
        self.folder = path if path.is_dir() else path.parent
        self._encoder: Any = None

    def dropped(self) -> Iterator[pa.RecordBatch]:
        """The tables of dropped documents, batch by batch."""
        for source in self.manifest.sources:
            yield from dropped_batches(self.folder, source)

    def shards(self) -> Iterator[tuple[str, ShardEntry]]:
        """`(kind, shard)` of all, held-out ones too."""
        for source in self.manifest.sources.values():
            yield from (("shards", shard) for shard in source.shards)
            yield from (("holdout", shard) for shard in source.holdout)

    def text(self, shard: ShardEntry, place: int) -> str:
        """The text of a kept document, decoded from its tokens."""
        from stages.tokenizer.encode import Encoder

        if "tok" not in shard.files:
            return ""
        self._encoder = self._encoder or Encoder.load(
            self.folder / self.manifest.tokenizer.path, self.manifest.tokenizer.eos_id
        )
        lengths = read_index(shard.path(self.folder, "idx"), shard.tokens)["length"]
        start = int(lengths[:place].sum(dtype=np.int64))
        dtype = np.dtype("<u2" if self.manifest.dtype == "uint16" else "<u4")
        return self._encoder.decode(read_tokens(shard.path(self.folder, "tok"), dtype, start, int(lengths[place]))[:-1])

    def find(self, query: str) -> list[dict[str, Any]]:
        """Documents with this id or user's id; if there are none, those whose text begins like that. Lives as dicts."""
        wanted = bytes.fromhex(query) if re.fullmatch(r"[0-9a-fA-F]{32}", query) else None
        found = self._by_column("id", pa.scalar(wanted, pa.binary(16))) if wanted is not None else []
        found = found or self._by_column("user_id", pa.scalar(query, pa.string()))
        return found or self._by_text(query)

    def _by_column(self, name: str, value: pa.Scalar) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for batch in self.dropped():
            for row in batch.filter(pc.equal(batch.column(name), value)).to_pylist():
                found.append({**row, "fate": "dropped"})
        for kind, shard in self.shards():
            first = 0
            for batch in arrow_batches(shard.path(self.folder, "docs")):
                hits = np.flatnonzero(pc.fill_null(pc.equal(batch.column(name), value), False).to_numpy(zero_copy_only=False))
                for hit in hits.tolist():
                    found.append(self._kept(kind, shard, first + hit, batch.slice(hit, 1).to_pylist()[0]))
                first += batch.num_rows
        return found[:MATCHES]

    def _kept(self, kind: str, shard: ShardEntry, place: int, row: dict[str, Any]) -> dict[str, Any]:
        fate = "kept" if kind == "shards" else "held out"
        return {**row, "fate": fate, "shard": shard.name, "place": place, "text": self.text(shard, place)}

    def _by_text(self, beginning: str) -> list[dict[str, Any]]:
        flat = " ".join(beginning.split())
        found: list[dict[str, Any]] = []
        for batch in self.dropped():
            for number, text in enumerate(batch.column("text").to_pylist()):
                if text is not None and _flat(text, len(flat)).startswith(flat):
                    found.append({**batch.slice(number, 1).to_pylist()[0], "fate": "dropped"})
        for kind, shard in self.shards():
            rows = pa.Table.from_batches(list(arrow_batches(shard.path(self.folder, "docs"))))
            for place in range(rows.num_rows):
                if len(found) >= MATCHES:
                    return found
                if _flat(self.text(shard, place), len(flat)).startswith(flat):
                    found.append(self._kept(kind, shard, place, rows.slice(place, 1).to_pylist()[0]))
        return found[:MATCHES]


def why(path: Path, query: str) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: what became of a document, and of the one that was kept instead. SpecError if there is none."""
    corpus = Corpus(path)
    found = corpus.find(query)
    if not found:
        repairs = ["give the id (32 hex digits), your own id, or the beginning of the text"]
        if corpus.manifest.rejects.total:
            repairs.append(f"{corpus.manifest.rejects.total:,} records were rejected: see {corpus.folder / 'rejects.jsonl'}")
        text = f"no document of {corpus.folder} is or begins like {query[:80]!r}"
        raise SpecError(Problem("D005", text, repairs=tuple(repairs)))
    lives = [_life(corpus, document) for document in found]
    return "\n\n".join(map(_life_text, lives)), {"documents": [_plain(life) for life in lives]}


def _life(corpus: Corpus, document: dict[str, Any]) -> dict[str, Any]:
    """The document with its `survivor_document` (when it has one), `diff`, and what was `dropped_for_it`."""
    life = dict(document)
    survivor = document.get("survivor")
    if survivor is not None:
        instead = corpus._by_column("id", pa.scalar(survivor, pa.binary(16)))
        if instead:
            life["survivor_document"] = instead[0]
            if document["text"] is not None and instead[0]["text"]:
                life["diff"] = word_diff(instead[0]["text"], document["text"])
    if document["fate"] != "dropped":
        chosen = [batch.filter(pc.equal(batch.column("survivor"), pa.scalar(document["id"], pa.binary(16)))) for batch in corpus.dropped()]
        life["dropped_for_it"] = sum(batch.num_rows for batch in chosen)
        life["examples"] = [row for batch in chosen for row in batch.to_pylist()][:MEMBERS]
    return life


def _life_text(life: dict[str, Any]) -> str:
    lines = [_name(life), _fate(life)]
    instead = life.get("survivor_document")
    if life.get("survivor") is not None:
        lines.append(f"  kept instead: {life['survivor'].hex()}, similarity {life['similarity']:.3f}")
        if instead is None:
            lines.append("  (that one is not in this corpus: it is of an earlier one)")
        else:
            lines += ["    " + _name(instead), "  " + _fate(instead)]
    shown = {k: v for k, v in life.items() if k not in _TOLD and v not in (None, 0, "")}
    if shown:
        lines.append("  " + "  ".join(f"{k}={v}" for k, v in shown.items()))
    if life.get("dropped_for_it"):
        lines.append(f"  {life['dropped_for_it']:,} documents were dropped for it, among them")
        lines += [f"    {_name(row)}, by {row['stage']}, similarity {row['similarity']:.3f}" for row in life["examples"]]
    if "diff" in life:
        lines.append("  the one kept, with [-what only it has-] and {+what only the dropped one has+}:")
        lines += ["    " + line for line in life["diff"].split("\n")]
    elif life["text"] is None:
        lines.append("  (its text was not kept: there are many of this reason)")
    else:
        lines.append("  " + _flat(life["text"], SHOWN))
    return "\n".join(printable(line) for line in lines)


#: Keys that have a place of their own in the text.
_TOLD = {
    "id", "source", "uri", "record", "user_id", "text", "meta", "fate", "stage", "reason", "value", "survivor", "similarity",
    "survivor_document", "diff", "dropped_for_it", "examples", "shard", "place", "length", "text_bytes",
}  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    own = f"   your id {row['user_id']}" if row.get("user_id") else ""
    return f"{row['source']}: {row['uri']}, record {row['record']}   id {row['id'].hex()}{own}"


def _fate(row: dict[str, Any]) -> str:
    if row["fate"] == "dropped":
        return f"  dropped by {row['stage']}: {row['reason']}" + (f" ({row['value']})" if row["value"] else "")
    return f"  {row['fate']}: {row['shard']}, document {row['place']:,}, {row['length']:,} tokens"


def _plain(value: Any) -> Any:
    """The value with ids in hex, for JSON."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.hex() if isinstance(value, bytes) else value


def _flat(text: str, characters: int) -> str:
    return " ".join(text[: 4 * characters + 100].split())[:characters]


def word_diff(kept: str, dropped: str) -> str:
    """The kept text with what differs: `[-only there-]`, `{+only in the dropped one+}`; long equal stretches become ` ... `."""
    left, right = _TOKEN.findall(kept)[:DIFF_TOKENS], _TOKEN.findall(dropped)[:DIFF_TOKENS]
    pieces = []
    changes = difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for number, (kind, a, b, c, d) in enumerate(changes):
        if kind == "equal":
            pieces.append(_shortened(left[a:b], first=number == 0, last=number == len(changes) - 1))
            continue
        pieces += [f"[-{''.join(left[a:b])}-]"] if a < b else []
        pieces += [f"{{+{''.join(right[c:d])}+}}"] if c < d else []
    return "".join(pieces) if any(kind != "equal" for kind, *_ in changes) else "(the same text)"


def _shortened(tokens: list[str], first: bool, last: bool) -> str:
    before, after = (0 if first else CONTEXT), (0 if last else CONTEXT)
    if len(tokens) <= before + after + 2:
        return "".join(tokens)
    return "".join([*tokens[:before], " ... ", *tokens[len(tokens) - after :]])


def clusters(path: Path, number: int) -> tuple[str, dict[str, Any]]:
    """`(text, data)`: the documents for which most others were dropped, with samples."""
    corpus = Corpus(path)
    sizes: Counter[tuple[str, bytes]] = Counter()
    for batch in corpus.dropped():
        known = batch.filter(pc.is_valid(batch.column("survivor"))).select(["stage", "survivor"])
        counted = pa.Table.from_batches([known]).group_by(["stage", "survivor"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            sizes[row["stage"], row["survivor"]] += row["count_all"]
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:number]
    members: dict[tuple[str, bytes], list[dict[str, Any]]] = {key: [] for key, _ in largest}
    for batch in corpus.dropped():
        chosen = batch.filter(pc.is_in(batch.column("survivor"), pa.array([key[1] for key in members], pa.binary(16))))
        for row in chosen.to_pylist():
            if len(members.get((row["stage"], row["survivor"]), [None] * MEMBERS)) < MEMBERS:
                members[row["stage"], row["survivor"]].append(row)
    data, lines = [], []
    for (stage, survivor), size in largest:
        kept = corpus._by_column("id", pa.scalar(survivor, pa.binary(16)))
        lines.append(f"{size + 1:,} documents became one, by {stage}; kept: {survivor.hex()}")
        if kept:
            lines += ["  " + _name(kept[0]), "  " + _flat(kept[0]["text"] or "", SHOWN)]
        for row in members[stage, survivor]:
            lines.append(f"    dropped, similarity {row['similarity']:.3f}: {_name(row)}")
            lines.append("      " + _flat(row["text"] or "(text not kept)", SHOWN))
        data.append({"stage": stage, "kept": survivor, "documents": size + 1, "examples": members[stage, survivor]})
    text = "\n".join(printable(line) for line in lines) or "no document was dropped for another one"
    return text, {"clusters": _plain(data)}
