"""`trainer export`: a checkpoint as a folder that transformers loads.

    DIR/config.json  generation_config.json  model*.safetensors  tokenizer.json  tokenizer_config.json
        README.md        model card: shape, training, where the data come from
        provenance.json  the same for programs, with digests of plan, manifests, sources and weights

Parameter names are those of Hugging Face already, and a model is a Llama, with normed heads a Qwen3: what is
written is the checkpoint's numbers and a description of their shape. A tensor at a time is in memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from safetensors.torch import save_file
from torch import Tensor

from stages.contract.files import fsync_folder, sha256_file, write_atomic
from stages.contract.manifest import Manifest, load_manifest
from stages.contract.problem import Problem, RunError, SpecError
from trainer import checkpoint
from trainer.checkpoint import Checkpoint
from trainer.tools.card import card, provenance
from trainer.tools.runs import Run, corpora, open_run

if TYPE_CHECKING:
    from trainer.command import Output

#: Largest file of weights, bytes; a tensor is never cut.
FILE_BYTES = 4 << 30

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Corpus:
    """What an export takes from a corpus: its manifests, and the folder of the first one, with the tokenizer."""

    manifests: Sequence[Manifest]
    folder: Path


def picked(path: Path, step: int | None, best: bool) -> tuple[Checkpoint, Run | None]:
    """`(checkpoint, its run)` of a run folder or of a checkpoint's own folder; the run is None where it is not around it.

    SpecError or RunError when there is none, or it is damaged.
    """
    if not (path / checkpoint.COMPLETE).is_file():
        from trainer.checkpoint.attach import chosen

        run = open_run(path)
        return chosen(path, step, best), run
    found = checkpoint.read(path)
    if not isinstance(found, Checkpoint):
        raise RunError(Problem("T001", f"{path} cannot be used: {found}"))
    around = path.resolve().parents[1]
    return found, open_run(around) if (around / "plan.json").is_file() else None


def config_of(found: Checkpoint, dtype: str, eos: int | None) -> dict[str, Any]:
    """config.json. Rotary base and its scaling are said in the old and the new form of transformers."""
    shape = found.record.identity.model
    longest = max((one.seq_len for one in found.record.history.followed), default=2048)
    normed = bool(shape["qk_norm"])
    return {
        "architectures": ["Qwen3ForCausalLM" if normed else "LlamaForCausalLM"],
        "model_type": "qwen3" if normed else "llama",
        "hidden_size": shape["width"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": int(shape["width"]) // int(shape["heads"]),
        "intermediate_size": shape["ffn"],
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": longest,
        "rms_norm_eps": shape["norm_eps"],
        "rope_theta": shape["rope_theta"],
        "rope_parameters": {"rope_type": "default", "rope_theta": shape["rope_theta"]},
        "tie_word_embeddings": shape["tie_embeddings"],
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": None,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype],
    } | ({} if normed else {"mlp_bias": False})


def export(found: Checkpoint, run: Run | None, corpus: Corpus | None, folder: Path, dtype: str = "fp32") -> dict[str, Any]:
    """Write the folder, whole or not at all; what provenance.json says comes back.

    SpecError when the folder holds something already; RunError when a number does not fit into `dtype`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(Problem("C020", f"{folder} is there already, and not empty", repairs=("give another folder",)))
    unfinished = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        eos = corpus.manifests[0].tokenizer.eos_id if corpus else None
        _write_json(unfinished / "config.json", config_of(found, dtype, eos))
        _write_json(unfinished / "generation_config.json", {"eos_token_id": eos, "do_sample": True})
        _write_weights(unfinished, found, DTYPES[dtype])
        if corpus is not None:
            _write_tokenizer(unfinished, corpus, config_of(found, dtype, eos)["max_position_embeddings"])
        files = {path.name: sha256_file(path) for path in sorted(unfinished.iterdir())}
        record = provenance(found, run, corpus.manifests if corpus else (), dtype, files)
        _write_json(unfinished / "provenance.json", record)
        write_atomic(unfinished / "README.md", card(record).encode())
        fsync_folder(unfinished)
        if folder.exists():
            folder.rmdir()
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return record


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(tree, indent=2, ensure_ascii=False).encode() + b"\n")


def parameters(found: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of a checkpoint, whole, by the name that it has in a model; one at a time is in memory."""
    for key, whole in found.record.tensors.items():
        group, _, name = key.partition("/")
        if group == "model":
            tensor = torch.empty(whole.shape, dtype=getattr(torch, whole.dtype))
            checkpoint.load(found, {"model": {name: tensor}})
            yield name, tensor


def _write_weights(folder: Path, found: Checkpoint, dtype: torch.dtype) -> None:
    """model.safetensors, or several files with an index."""
    sizes = {
        key.removeprefix("model/"): dtype.itemsize * _count(whole.shape)
        for key, whole in found.record.tensors.items()
        if key.startswith("model/")
    }
    place, used, number = {}, 0, 0
    for name, size in sizes.items():
        number += used > 0 and used + size > FILE_BYTES
        used = size if used + size > FILE_BYTES else used + size
        place[name] = number
    many = number + 1
    names = ["model.safetensors"] if many == 1 else [f"model-{i + 1:05d}-of-{many:05d}.safetensors" for i in range(many)]
    content: dict[str, Tensor] = {}
    at = 0
    for name, tensor in parameters(found):
        if place[name] != at:
            save_file(content, folder / names[at], metadata={"format": "pt"})
            content, at = {}, place[name]
        content[name] = _cast(name, tensor, dtype)
    save_file(content, folder / names[at], metadata={"format": "pt"})
    if many > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": {name: names[i] for name, i in place.items()}}
        _write_json(folder / "model.safetensors.index.json", index)


def _count(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    made = tensor.to(dtype)
    if not bool(made.isfinite().all()):
        message = f"{name} holds {float(tensor.abs().max()):.3g}, which {str(dtype).removeprefix('torch.')} cannot hold"
        raise RunError(Problem("T001", message, repairs=("write it with --dtype bf16 or --dtype fp32",)))
    return made


def _write_tokenizer(folder: Path, corpus: Corpus, longest: int) -> None:
    """tokenizer.json as the corpus has it, and what transformers wants to know beside it."""
    entry = corpus.manifests[0].tokenizer
    path = corpus.folder / entry.path
    content = path.read_bytes()
    spec = json.loads(content)
    (folder / "tokenizer.json").write_bytes(content)
    names = {number: token for token, number in spec.get("model", {}).get("vocab", {}).items()}
    names |= {added["id"]: added["content"] for added in spec.get("added_tokens", ())}
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names.get(entry.eos_id),
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    })  # fmt: skip


def command(
    output: Output, source: Path, folder: Path, manifests: Sequence[Path], step: int | None, best: bool, dtype: str
) -> int:
    """`trainer export`: the exit code."""
    found, run = picked(source, step, best)
    corpus = None
    if manifests or run is not None:
        try:
            read, folders = corpora(run, manifests) if run is not None else _given(found, manifests)
            corpus = Corpus(read, folders[0])
        except SpecError as error:
            if manifests:
                raise
            output.say(f"written without tokenizer and sources: {error.problems[0].message}; give --manifest")
    record = export(found, run, corpus, folder, dtype)
    if output.as_json:
        output.emit("result", {"exit": 0, "folder": str(folder)} | record)
    else:
        sources = sum(len(one["sources"]) for one in record["data"])
        click.echo(
            f"{folder}: {record['model']['parameters']:,} parameters of step {found.step:,} as {dtype}, "
            f"{'tokenizer, ' if corpus else ''}card with {sources} sources"
        )
    output.next(["trainer", "import", str(folder)])
    return 0


def _given(found: Checkpoint, paths: Sequence[Path]) -> tuple[list[Manifest], list[Path]]:
    """The manifests of a checkpoint that stands alone. SpecError when they are not those that it was trained on."""
    manifests = [load_manifest(path) for path in paths]
    digests, wanted = [one.digest for one in manifests], found.record.identity.manifests
    if wanted and digests != wanted:
        message = f"the checkpoint was trained on manifests {', '.join(one[:12] for one in wanted)}, not on these"
        raise SpecError(Problem("P004", message))
    return manifests, [path if path.is_dir() else path.parent for path in paths]
