"""What an exported model says about itself: provenance.json, and the model card made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.contract.manifest import Manifest
from stages.contract.problem import printable
from trainer.checkpoint import Checkpoint
from trainer.tools.runs import Run


def provenance(
    found: Checkpoint, run: Run | None, manifests: Sequence[Manifest], dtype: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """Where weights come from: model, training, data, digests. Nothing of the machine beside versions."""
    record = found.record
    planned = run.planned if run else {}
    name = str(planned.get("name") or (manifests[0].name if manifests else "model"))
    evals = [r for r in run.evals if r["step"] <= found.step] if run else []
    return {
        "format": 1,
        "name": name,
        "dtype": dtype,
        "step": found.step,
        "model": dict(record.identity.model) | {"parameters": _parameters(found)},
        "training": {
            "plan": record.plan,
            "tokens": _tokens(found),
            "steps_planned": planned.get("steps"),
            "seed": planned.get("seed"),
            "optimizer": record.identity.optimizer,
            "schedule": dict(record.history.schedule),
            "phases": [{"name": one.name, "steps": one.steps, "seq_len": one.seq_len, "mix": one.mix} for one in record.history.followed],
            "skipped_steps": record.state.skipped,
            "holdout": {k: evals[-1][k] for k in ("step", "loss", "losses", "bits_per_byte") if k in evals[-1]} if evals else None,
            "made_with": dict(record.made_with),
        },
        "data": [_corpus(manifest, planned) for manifest in manifests],
        "manifests": list(record.identity.manifests),
        "files": dict(files),
    }  # fmt: skip


def _parameters(found: Checkpoint) -> int:
    total = 0
    for key, whole in found.record.tensors.items():
        if key.startswith("model/"):
            count = 1
            for size in whole.shape:
                count *= size
            total += count
    return total


def _tokens(found: Checkpoint) -> int:
    """Positions trained on up to the step of a checkpoint."""
    left, tokens = found.record.history.data_step, 0
    for one in found.record.history.followed:
        steps = min(left, one.steps if one.used is None else one.used)
        tokens += steps * one.batch * one.seq_len
        left -= steps
    return tokens


def _corpus(manifest: Manifest, planned: Mapping[str, Any]) -> dict[str, Any]:
    use = {one["name"]: one for one in planned.get("sources", ())}
    sources = {}
    for name, entry in manifest.sources.items():
        sources[name] = {
            "license": entry.license, "documents": entry.documents, "tokens": entry.tokens, "text_bytes": entry.text_bytes,
            "digest": entry.digest, "epochs_planned": use[name]["epochs"] if name in use else None,
            "positions_planned": use[name]["read"] if name in use else None,
            "inputs": entry.inputs.model_dump() if entry.inputs else None,
            "dropped": {step.stage: sum(step.dropped.values()) for step in entry.funnel if step.dropped},
        }  # fmt: skip
    return {"name": manifest.name, "digest": manifest.digest, "tokenizer_sha256": manifest.tokenizer.sha256, "sources": sources}


def card(record: Mapping[str, Any]) -> str:
    """README.md of the exported folder."""
    model, training = record["model"], record["training"]
    licences = sorted({s["license"] for one in record["data"] for s in one["sources"].values() if s["license"]})
    lines = [
        "---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [gristmill, pretrained]", "---", "",
        f"# {_cell(record['name'])}", "",
        f"A language model of {model['parameters']:,} parameters after {record['step']:,} steps, {training['tokens']:,} token "
        "positions. Pretrained only: it continues text, and follows no instructions.", "",
        "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", "",
        'model, tokenizer = (auto.from_pretrained(".") for auto in (AutoModelForCausalLM, AutoTokenizer))', "```", "",
        "## Model", "", *_table(["", ""], [[k, _number(v)] for k, v in model.items()]), "",
        "## Training", "",
        *_table(["", ""], [
            ["optimizer", training["optimizer"]], ["peak learning rate", _number(training["schedule"].get("peak_lr"))],
            ["seed", _number(training["seed"])], ["steps", f"{record['step']:,} of {_number(training['steps_planned'])} planned"],
            ["steps skipped by the guard", _number(training["skipped_steps"])],
            ["holdout", _holdout(training["holdout"])], ["weights written as", record["dtype"]],
            ["made with", ", ".join(f"{k} {v}" for k, v in training["made_with"].items())], ["plan", training["plan"]],
        ]), "", "## Data", "",
    ]  # fmt: skip
    if not record["data"]:
        lines.append("The corpus was not at hand when this was written; it is known by the digests of its manifests:")
        lines += ["", *(f"- `{one}`" for one in record["manifests"])]
    for one in record["data"]:
        rows = [
            [name, s["license"] or "not stated", _number(s["documents"]), _number(s["tokens"]), _number(s["epochs_planned"]),
             ", ".join(f"{stage} {count:,}" for stage, count in s["dropped"].items()) or "-"]
            for name, s in one["sources"].items()
        ]  # fmt: skip
        lines += [f"Corpus `{_cell(one['name'])}`, manifest `{one['digest']}`", ""]
        lines += _table(["source", "licence", "documents", "tokens", "epochs planned", "documents dropped"], rows)
        lines.append("")
    lines.append(f"Licences of the sources: {', '.join(map(_cell, licences)) or 'not stated'}. The weights carry none by themselves.")
    return "\n".join(lines) + "\n"


def _holdout(held: Mapping[str, Any] | None) -> str:
    if held is None or held["loss"] is None:
        return "not measured"
    bits = held.get("bits_per_byte")
    return f"loss {held['loss']:.4f}{'' if bits is None else f', {bits:.4f} bits per byte'} at step {held['step']:,}"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: Any) -> str:
    """Text from data, harmless inside of Markdown."""
    safe = printable(str(text)).replace("&", "&amp;").replace("<", "&lt;")
    return safe.replace("|", "\\|").replace("`", "'").replace("[", "\\[")
