"""Training speed: the same model, batch and precision here and elsewhere; how much of it is not matrix products.

    python -m benchmarks.train [--quick] [--json] [--gpu] [--install FOLDER] [--peers FOLDER]

A Llama-shaped model, rows of one document each, AdamW, gradients clipped at norm 1, fp32, one core. Each has a process of
its own; their steps are taken in turn, so that what else runs on the machine disturbs all alike. The rate is that of the
median step by CPU time, system time included.

    ours      the whole step of `trainer fit`: reading, digests, loss by source, guard, update
    nanogpt   plain torch as in nanoGPT's training loop: one forward pass, full logits, cross_entropy (our own lines)
    hf        LlamaForCausalLM of transformers in the usual loop
    litgpt    its GPT in the usual loop

--gpu trains 124 M and 1 B parameters in bf16 on the GPUs of this machine and prints tokens/s and MFU; goals on one
H100 or H200 are 50 % and 55 %. Peers that are not installed are left out, with a word on stderr; --install puts them,
without their dependencies, into a folder that --peers names.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Child, Report, one_core, parser

PEERS = ("transformers", "huggingface-hub", "litgpt", "lightning-utilities")

#: vocabulary, width, layers, heads, key heads, feed-forward, tokens of a row, rows of a step
SHAPE = {"vocab": 8192, "width": 256, "layers": 6, "heads": 4, "kv_heads": 4, "ffn": 704, "length": 256, "rows": 8}

#: Runs on a GPU: parameters, rows of 2,048 in a pass, passes of a step, the goal.
GPU_RUNS = (("124M", 32, 1, 0.50), ("1B", 8, 4, 0.55))


def corpus(folder: Path, vocab: int, documents: int, length: int) -> Path:
    """The manifest of a corpus of random documents that each fill a row to its last token."""
    import numpy as np

    from tests.trainer.corpora import make_corpus

    rng = np.random.default_rng(0)
    return make_corpus(folder, {"web": rng.integers(1, vocab, (documents, length - 1)).tolist()}, vocab=vocab)


def reading(manifest: Path, sets: list[str], kind: Any = "cpu") -> tuple[Any, Any]:
    """`(plan, loader)` of these settings."""
    from stages.contract.manifest import load_manifest
    from trainer.config import read_plan
    from trainer.loader import Loader
    from trainer.planning.plan import Machine, resolve

    manifests = [load_manifest(manifest)]
    plan = resolve(read_plan(None, sets), manifests, Machine(kind))
    return plan, Loader([manifest.parent], plan, manifests)


def ours(manifest: Path, sets: list[str], kind: Any = "cpu") -> tuple[Callable[[], None], Any]:
    """`(one step, the run)` of `trainer fit` in this process, in a folder of its own."""
    from trainer.launch import Stop
    from trainer.loop import parallel
    from trainer.loop.fit import Fit, Pending

    plan, loader = reading(manifest, sets, kind)
    world = parallel.join(kind, threads=1 if kind == "cpu" else None)
    run = Fit(plan, loader, Path(tempfile.mkdtemp()), world, Stop(), quiet=True)
    run.resume()

    def step() -> None:
        began = time.perf_counter()
        batch = run._next()
        measured = run.train_step(batch, run.now)
        run.now += 1
        run.pending.append(Pending(measured, batch, time.perf_counter() - began, 0.0))
        run.settle()

    return step, run


def settings(steps: int) -> list[str]:
    """The plan of so many steps of the model that all train, as `--set` takes it."""
    s = SHAPE
    step = s["rows"] * s["length"]
    return [
        *(f"model.{name}={s[name]}" for name in ("width", "layers", "heads", "kv_heads", "ffn")),
        f"model.seq_len={s['length']}", "model.tie_embeddings=true", f"batch.global_tokens={step}",
        f"batch.micro_batch_size={s['rows']}", f"data.total_tokens={step * steps}", "lr_schedule.peak_lr=1e-4",
    ]  # fmt: skip


def batches_of(manifest: Path, steps: int) -> list[Any]:
    """The first batches of the run as `(ids, labels)`, int64 (rows, length): what peers are given."""
    import torch

    _, loader = reading(manifest, settings(steps))
    micros = [loader.batch(i, micro=SHAPE["rows"]).micros[0] for i in range(4)]
    return [tuple(torch.as_tensor(one[name]) for name in ("input_ids", "labels")) for one in micros]


def nanogpt(batches: list[Any]) -> Callable[[], None]:
    """One step of plain eager code: the same layers, (B, T, C) tensors, all logits at once."""
    import torch
    from torch import nn
    from torch.nn import functional

    s = SHAPE
    head = s["width"] // s["heads"]

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(s["width"]))

        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = s["width"]
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = nn.Linear(width, s["ffn"], bias=False), nn.Linear(width, s["ffn"], bias=False)
            self.down = nn.Linear(s["ffn"], width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            rows, length, width = x.shape
            q, k, v = (
                one.view(rows, length, s["heads"], head).transpose(1, 2)
                for one in self.qkv(self.norm_1(x)).split(width, 2)
            )

            def turn(y: Any) -> Any:
                a, b = y.chunk(2, -1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

            y = functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
            z = self.norm_2(x)
            return x + self.down(functional.silu(self.gate(z)) * self.up(z))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(s["vocab"], s["width"])
            self.layers = nn.ModuleList(Layer() for _ in range(s["layers"]))
            self.norm = Norm()
            self.head = nn.Linear(s["width"], s["vocab"], bias=False)
            self.head.weight = self.embed.weight
            angles = torch.arange(s["length"])[:, None] / 10_000 ** (torch.arange(0, head, 2) / head)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, ids: Any, labels: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, s["vocab"]), labels.view(-1), ignore_index=-100)

    model = Model()
    return _loop(model, lambda ids, labels: model(ids, labels), batches)


def hugging_face(batches: list[Any]) -> Callable[[], None]:
    """One step with LlamaForCausalLM, which shifts labels itself."""
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    s = SHAPE
    config = LlamaConfig(
        vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["ffn"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], max_position_embeddings=s["length"],
        tie_word_embeddings=True, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return _loop(model, lambda ids, _: model(input_ids=ids, labels=ids).loss, batches)


def litgpt(batches: list[Any]) -> Callable[[], None]:
    """One step with litgpt's GPT."""
    from torch.nn import functional

    package = types.ModuleType("litgpt")  # its own __init__ imports all of Lightning
    package.__path__ = [str(Path(p) / "litgpt") for p in sys.path if (Path(p) / "litgpt").is_dir()]
    convert = types.ModuleType("litgpt.scripts.convert_hf_checkpoint")
    convert.qkv_reassemble = None  # type: ignore[attr-defined]  # only for checkpoints of others
    sys.modules |= {"litgpt": package, "litgpt.scripts.convert_hf_checkpoint": convert}
    from litgpt.config import Config
    from litgpt.model import GPT

    s = SHAPE
    model = GPT(Config(
        name="peer", block_size=s["length"], vocab_size=s["vocab"], padded_vocab_size=s["vocab"], n_layer=s["layers"],
        n_head=s["heads"], n_query_groups=s["kv_heads"], n_embd=s["width"], rotary_percentage=1.0, bias=False,
        parallel_residual=False, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=s["ffn"],
    ))  # fmt: skip
    model.lm_head.weight = model.transformer.wte.weight

    def loss(ids: Any, labels: Any) -> Any:
        logits = model(ids)
        return functional.cross_entropy(logits.view(-1, s["vocab"]), labels.view(-1), ignore_index=-100)

    return _loop(model, loss, batches)


def _loop(model: Any, loss: Callable[[Any, Any], Any], batches: list[Any]) -> Callable[[], None]:
    """The usual step: forward, backward, clip, AdamW, read the loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    count = [0]

    def step() -> None:
        ids, labels = batches[count[0] % len(batches)]
        count[0] += 1
        value = loss(ids, labels)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(value.detach())

    return step


CONTENDERS: dict[str, Callable[[list[Any]], Callable[[], None]]] = {
    "nanogpt": nanogpt, "hf": hugging_face, "litgpt": litgpt,
}  # fmt: skip


def child(name: str, manifest: Path, steps: int) -> None:
    """A contender in this process: a step for each line that comes in, its CPU seconds as a line out. Ours ends with the
    share of its time that is no matrix product."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from trainer.loop.window import shares

    torch.set_num_threads(1)
    step = ours(manifest, settings(steps))[0] if name == "ours" else CONTENDERS[name](batches_of(manifest, steps))
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        step()
        print(time.process_time() - began, flush=True)
    if name == "ours":
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(3):
                step()
        found = shares(seen.key_averages(), on_device=False)
        print(1 - found["matrix products"] / sum(found.values()), flush=True)


def compare(report: Report, options: argparse.Namespace) -> None:
    """Tokens per CPU second of each, and where our time goes."""
    rounds = 6 if options.quick else 25
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        manifest = corpus(Path(folder), SHAPE["vocab"], SHAPE["rows"] * (rounds + 12), SHAPE["length"])
        running: dict[str, Child] = {}
        for name in ("ours", *CONTENDERS):
            where = ["--manifest", str(manifest), "--steps", str(rounds + 12), *(["--peers", str(options.peers)] if options.peers else [])]
            running[name] = Child("-m", "benchmarks.train", "--child", name, *where)
        for name, one in list(running.items()):
            try:
                one.line()
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                del running[name]
        for i in range(rounds + 2):
            for name, one in running.items():
                one.go()
                spent = float(one.line())
                if i >= 2:
                    seconds.setdefault(name, []).append(spent)
        rest = running.pop("ours").last()
        for one in running.values():
            one.last()
    rate = {name: SHAPE["rows"] * SHAPE["length"] / statistics.median(some) for name, some in seconds.items()}
    best = max((name for name in rate if name != "ours"), key=lambda name: rate[name])
    for name, value in rate.items():
        if name != "ours":
            report.rate("train.step" if name == best else f"train.step.{name}", rate["ours"], "tokens/s", value, name)
    report.accuracy("train.step.no.matrix.product", "share", float(rest), rounds)


def on_gpu(report: Report, options: argparse.Namespace) -> None:
    """Tokens/s and MFU of two sizes on the GPUs of this machine."""
    import torch

    from trainer.loop.flops import definition, peak_of, token_flops

    if not torch.cuda.is_available():
        sys.exit("--gpu needs a GPU that torch can use")
    peak = peak_of(torch.cuda.get_device_name())
    for size, micro, passes, goal in GPU_RUNS[: 1 if options.quick else None]:
        length, steps = 2048, 40
        with tempfile.TemporaryDirectory() as folder:
            manifest = corpus(Path(folder), 50_304, 2 * micro * passes, length)
            sets = [
                f"model.params={size}", f"model.seq_len={length}", f"batch.micro_batch_size={micro}",
                f"batch.global_tokens={micro * passes * length}", f"data.total_tokens={micro * passes * length * steps}",
                "lr_schedule.peak_lr=3e-4", "deterministic=false", "monitoring.log_every_steps=10",
                "parallel.activation_checkpointing=" + ("none" if size == "124M" else "selective"),
            ]  # fmt: skip
            step, run = ours(manifest, sets, "cuda")
            for _ in range(10):  # compiles
                step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(20):
                step()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - began) / 20
            rate = micro * passes * length / seconds
            report.rate(f"{size} on {torch.cuda.get_device_name()}", rate, "tokens/s")
            if peak is not None:
                print(definition(run.plan.model, 1, peak), file=sys.stderr)
                mfu = rate * token_flops(run.plan.model, length) / peak
                report.accuracy(f"{size}: MFU, goal {goal:.0%}", "share", mfu, 20)
            report.accuracy(f"{size}: memory", "GiB", torch.cuda.max_memory_allocated() / 2**30, 20)
            run.close()
            from trainer.loop import parallel

            parallel.leave()
            del step, run
            torch.cuda.empty_cache()


def main() -> None:
    """Run it."""
    arguments = parser(__doc__)
    arguments.add_argument("--gpu", action="store_true", help="the sizes for GPUs instead")
    arguments.add_argument("--install", type=Path, help="install the peers into this folder and end")
    arguments.add_argument("--peers", type=Path, help="the folder that --install filled")
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    arguments.add_argument("--manifest", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.install:
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(options.install), *PEERS]
        sys.exit(subprocess.run(pip, check=False).returncode)
    if options.peers:
        sys.path.append(str(options.peers))
    if not options.gpu:
        one_core()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.child:
        child(options.child, options.manifest, options.steps)
        return
    report = Report("train-gpu" if options.gpu else "train", options)
    (on_gpu if options.gpu else compare)(report, options)
    report.close()


if __name__ == "__main__":
    main()
