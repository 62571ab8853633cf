"""`trainer import`: a Llama- or Qwen3-style model folder of Hugging Face as a checkpoint to go on from.

What comes out is a folder with a checkpoint of step 0 that holds weights alone, and a plan.yaml with the shape of the
model and `checkpoint.weights_only`. Weights become float32, a file at a time. A model that this trainer would
compute differently (biases, other activations, scaled rotary positions, sliding windows) is refused, with all that is
in the way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stages.contract.files import sha256_file, write_atomic
from stages.contract.problem import Problem, RunError, SpecError
from trainer import checkpoint
from trainer.checkpoint.records import Complete, History, Identity, State
from trainer.model import Llama
from trainer.shape import ModelShape, padded_vocabulary

if TYPE_CHECKING:
    from trainer.command import Output

#: Kinds of model whose formulas are those of `trainer.model`; True: with normed query and key heads.
KINDS = {"llama": False, "mistral": False, "qwen3": True}

TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Source:
    """A model folder: its shape, and in which file each tensor is. `rows` of the tables as they are there."""

    folder: Path
    shape: ModelShape
    files: Mapping[str, Path]
    rows: int


def read_source(folder: Path) -> Source:
    """What is in the folder, checked tensor by tensor against the shape that its config states.

    SpecError with everything that this trainer cannot take over.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise SpecError(Problem("D005", f"{folder} has no config.json", repairs=("give a folder that transformers could load",)))
    config = _json(path)
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    faults = [f"`{key}` is missing, or no number" for key in needed if config.get("model_type") in KINDS and not isinstance(config.get(key), int)]
    faults = faults or list(_faults(config))
    if faults:
        raise SpecError(*(Problem("C009", f"{path}: {fault}") for fault in faults))
    shape = _shape(config)
    files = _files(folder)
    wanted = _wanted(shape)
    if shape.tie_embeddings and "lm_head.weight" in files:
        files = {name: file for name, file in files.items() if name != "lm_head.weight"}
    files = {name: file for name, file in files.items() if not name.endswith("rotary_emb.inv_freq")}
    problems = [f"a tensor that this model does not have: {name}" for name in sorted(files.keys() - wanted.keys())]
    problems += [f"{name} is in no file" for name in sorted(wanted.keys() - files.keys())]
    for name in sorted(files.keys() & wanted.keys()):
        with _opened(files[name]) as file:
            found = file.get_slice(name).get_shape()
        if list(found) != wanted[name]:
            problems.append(f"{name} is {list(found)}, config.json says {wanted[name]}")
    if problems:
        raise SpecError(*(Problem("C009", f"{folder}: {one}") for one in problems[:20]))
    return Source(folder, shape, files, shape.vocab_size)


def _json(path: Path) -> dict[str, Any]:
    """SpecError for a file that holds no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SpecError(Problem("D004", f"{path} cannot be read: {error}")) from error
    if not isinstance(found, dict):
        raise SpecError(Problem("D004", f"{path} holds no JSON object"))
    return found


def _faults(config: Mapping[str, Any]) -> Iterator[str]:
    """What of a config this trainer would compute in another way."""
    kind = config.get("model_type")
    if kind not in KINDS:
        yield f"model_type is {kind}; {', '.join(KINDS)} can be taken over"
        return
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            yield f"{key} is true; there are no biases here"
    if config.get("hidden_act", "silu") != "silu":
        yield f"hidden_act is {config['hidden_act']}, not silu"
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        yield f"rotary positions are scaled ({rope.get('rope_type', rope.get('type'))}); here they are not"
    if config.get("sliding_window") and config.get("use_sliding_window", kind == "mistral"):
        yield f"attention has a window of {config['sliding_window']:,} tokens; here it sees the whole document"
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("head_dim", width // heads) * heads != width:
        yield f"{heads} heads of {config['head_dim']} are {heads * config['head_dim']:,} wide; here they are as wide as the model, {width:,}"


def _shape(config: Mapping[str, Any]) -> ModelShape:
    theta = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10_000.0))
    heads = config["num_attention_heads"]
    return ModelShape(
        vocab_size=config["vocab_size"], width=config["hidden_size"], layers=config["num_hidden_layers"], heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads, ffn=config["intermediate_size"],
        seq_len=config.get("max_position_embeddings", 2048), tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_theta=float(theta), norm_eps=float(config.get("rms_norm_eps", 1e-6)), qk_norm=KINDS[config["model_type"]],
    )  # fmt: skip


def _wanted(shape: ModelShape) -> dict[str, list[int]]:
    with torch.device("meta"):
        model = Llama(shape)
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def _files(folder: Path) -> dict[str, Path]:
    """Name of each tensor -> file. Plain file names only: no index leads outside of the folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted({str(name) for name in _json(index).get("weight_map", {}).values()})
    else:
        names = ["model.safetensors"]
    found: dict[str, Path] = {}
    for name in names:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            hint = ("only safetensors are read; a pickle (.bin, .pth) can hold programs", "transformers writes them with save_pretrained")
            raise SpecError(Problem("D005", f"{folder} has no {name!r}", repairs=hint))
        with _opened(path) as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise RunError(Problem("D004", f"{path} cannot be read: {error}")) from error


def rows_wanted(folder: Path, rows: int) -> tuple[int, str]:
    """`(rows, why)` of the tables in the trainer: what a corpus with the tokenizer of this folder asks for."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return padded_vocabulary(rows), "no tokenizer.json there, so as many as before"
    spec = _json(path)
    vocab = spec.get("model", {}).get("vocab", {})
    ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
    ids += [added["id"] for added in spec.get("added_tokens", ())]
    largest = max(ids, default=rows - 1)
    return padded_vocabulary(largest + 1), f"its tokenizer has {largest + 1:,} ids"


def bring(source: Source, out: Path) -> dict[str, Any]:
    """Write the checkpoint and the plan below `out`: what was done. SpecError when `out` holds something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(Problem("C020", f"{out} is there already, and not empty", repairs=("give another folder with --out",)))
    rows, why = rows_wanted(source.folder, source.rows)
    shape = ModelShape(**(asdict(source.shape) | {"vocab_size": rows}))
    folder = out / checkpoint.folder_name(0)
    unfinished = out / "unfinished"
    unfinished.mkdir(parents=True)
    files, tensors = _write(source, unfinished, rows)
    model = asdict(shape)
    del model["seq_len"]
    record = Complete(
        format=2, state=State(), plan="", world=1, made_with={"imported": "Hugging Face folder"},
        identity=Identity(manifests=[], chain=[], model=model, packing="none", optimizer="none"),
        history=History(asked=[], followed=[], skip=[], data_step=0, schedule={}),
        files=files, tensors=tensors,
    )  # fmt: skip
    write_atomic(unfinished / checkpoint.COMPLETE, record.model_dump_json(indent=1).encode() + b"\n")
    unfinished.rename(folder)
    if (source.folder / "tokenizer.json").is_file():
        shutil.copyfile(source.folder / "tokenizer.json", out / "tokenizer.json")
    write_atomic(out / "plan.yaml", _plan_yaml(shape).encode())
    changed = "" if rows == source.rows else f"{source.rows:,} rows of the vocabulary became {rows:,}: {why}"
    return {"checkpoint": str(folder), "plan": str(out / "plan.yaml"), "parameters": shape.parameters, "model": model, "changed": changed}


def _write(source: Source, folder: Path, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One file for each one of the source, in float32: `(files, tensors)` of the record."""
    files, tensors = {}, {}
    paths = sorted(set(source.files.values()))
    for number, path in enumerate(paths):
        name = f"model-{number:05d}-of-{len(paths):05d}.safetensors"
        content = {}
        with _opened(path) as file:
            for key in sorted(one for one, at in source.files.items() if at == path):
                tensor = file.get_tensor(key).float()
                if not bool(tensor.isfinite().all()):
                    raise RunError(Problem("D004", f"{path}: {key} holds NaN or infinity"))
                content[key] = _resized(tensor, rows) if key in TABLES else tensor
        save_file(content, folder / name, metadata={"format": "pt"})
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
        for key, tensor in content.items():
            size = list(tensor.shape)
            piece = {"file": name, "start": [0] * len(size), "size": size}
            tensors[f"model/{key}"] = {"dtype": "float32", "shape": size, "pieces": [piece]}
    return files, tensors


def _resized(table_VD: Tensor, rows: int) -> Tensor:
    """Rows beyond the tokenizer's cut off, or new ones added: each the mean of those there, so that none stands out."""
    if rows <= len(table_VD):
        return table_VD[:rows].contiguous()
    return torch.cat([table_VD, table_VD.mean(0, keepdim=True).expand(rows - len(table_VD), -1)])


def _plan_yaml(shape: ModelShape) -> str:
    keys = ("width", "layers", "heads", "kv_heads", "ffn", "tie_embeddings", "rope_theta", "norm_eps", "qk_norm")
    lines = ["# Written by `trainer import`: the model, and the weights to begin with. The rest is free.", "model:"]
    for key in keys:
        value = getattr(shape, key)
        lines.append(f"  {key}: {str(value).lower() if isinstance(value, bool) else f'{value:.12g}'}")
    lines += [f"  # seq_len: {shape.seq_len}   the longest that the model was made for", "checkpoint:"]
    return "\n".join([*lines, f"  weights_only: {checkpoint.folder_name(0)}"]) + "\n"


def command(output: Output, source: Path, out: Path) -> int:
    """`trainer import`: the exit code."""
    done = bring(read_source(source), out)
    if output.as_json:
        output.emit("result", {"exit": 0} | done)
    else:
        click.echo(f"{done['checkpoint']}: {done['parameters']:,} parameters; the plan to go on with is {done['plan']}")
        if done["changed"]:
            click.echo(f"  {done['changed']}")
    output.next(["trainer", "plan", done["plan"], "--manifest", "CORPUS"])
    return 0
