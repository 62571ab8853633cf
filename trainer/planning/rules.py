"""How values are found that no equation decides: one table, read by the solver, `--explain` and the documentation.

A rule that is free is a suggestion: the value may as well be given. The others follow from what is no product, such as
the exact number of parameters of a shape.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trainer.config import Compute
from trainer.loop.flops import token_flops
from trainer.planning.devices import ASSUMED, CORE, find_gpu, usual_mfu
from trainer.planning.draft import ENDLESS, Draft
from trainer.planning.lengths import attended_of
from trainer.planning.memory import Setting, largest_rows, state_bytes
from trainer.planning.solver import Number, Rule, Values
from trainer.shape import Given, ModelShape, find_shape, smallest_sensible

#: What a plan without a size may ask of a CPU: ten minutes of two cores. The real number of cores is not looked at,
#: so that the same command gives the same plan on every machine.
CPU_BUDGET = 600 * 2 * CORE

#: Vocabulary where neither a manifest nor plan.yaml says one.
USUAL_VOCABULARY = 65_536

#: Tokens of one forward pass.
MICRO_TOKENS = {"cpu": 4096, "cuda": 16384}

#: Tokens for each parameter that spend compute best (Hoffmann et al. 2022).
CHINCHILLA = 20.0


def _draft(values: Values) -> Draft:
    draft: Draft = values.context
    return draft


def _seq_len(values: Values) -> tuple[Number, str]:
    draft = _draft(values)
    most = 256 if draft.on_cpu else 2048
    held = [n for name, n in draft.tokens.items() if draft.mix.get(name, 1) and n]
    room = max(16, min(held, default=16) // 8)
    return min(most, 1 << (room.bit_length() - 1)), ""


def _vocabulary(values: Values) -> tuple[Number, str]:
    draft = _draft(values)
    if draft.manifests:
        return draft.manifests[0].tokenizer.vocab_size, "the tokenizer of the corpus"
    return USUAL_VOCABULARY, "no manifest says one: assumed"


def _params(values: Values) -> tuple[Number, str] | None:
    """Parameters where plan.yaml has none: of the shape that it gives, else from the tokens there are."""
    draft = _draft(values)
    vocabulary = values.get("model.vocab_size")
    if vocabulary is None:
        return None
    target, why = smallest_sensible(int(vocabulary)), "128 wide and 4 layers deep, the least of which something can be expected"
    tokens = values.get("data.total_tokens") or sum(n for n in draft.tokens.values() if n < ENDLESS)
    wanted, reason = int(tokens // CHINCHILLA), "tokens / 20"
    if draft.on_cpu and math.sqrt(CPU_BUDGET / 6 / CHINCHILLA) < wanted:
        wanted = round(math.sqrt(CPU_BUDGET / 6 / CHINCHILLA))
        reason = "what two CPU cores train on 20 tokens each in ten minutes"
    if wanted > target:
        target, why = wanted, reason
    model = draft.config.model
    if model.width and model.layers:
        why = "width, layers and vocabulary"
    return _shape(draft, target, int(vocabulary), 2).parameters, why


def _shape(draft: Draft, target: int, vocabulary: int, seq_len: int) -> ModelShape:
    model = draft.config.model
    longest = max([seq_len, *(phase.seq_len for phase in draft.phases if phase.seq_len)])
    given = Given(
        model.params, model.width, model.layers, model.heads, model.kv_heads, model.ffn, model.tie_embeddings
    )
    shape = find_shape(given, target, vocabulary, longest, model.rope_theta, model.norm_eps)
    return replace(shape, qk_norm=model.qk_norm, dropout=model.dropout)


def _parameters(values: Values) -> Number | None:
    target, vocabulary, seq_len = (
        values.get(name) for name in ("model.params", "model.vocab_size", "model.seq_len")
    )
    if target is None or vocabulary is None or seq_len is None:
        return None
    values.shape = _shape(_draft(values), int(target), int(vocabulary), int(seq_len))
    return int(values.shape.parameters)


def _tokens_of_phases(values: Values) -> Number | None:
    phases = _draft(values).phases
    tokens = [phase.tokens for phase in phases if phase.tokens is not None]
    return sum(tokens) if phases and len(tokens) == len(phases) else None


def _total_tokens(values: Values) -> tuple[Number, str] | None:
    """Tokens of the run, from what the corpus holds and a CPU can do."""
    draft = _draft(values)
    parameters = values.get("model.parameters")
    if parameters is None:
        return None
    if not draft.manifests:
        return round(CHINCHILLA * parameters), "20 for each parameter, which spends compute best"
    held = sum(draft.tokens.values())
    readings = 4 if held < 20_000_000 else 1
    total, why = readings * held, "four readings of a corpus under 20M tokens" if readings > 1 else "one reading"
    fitting = int(CPU_BUDGET / 6 / parameters)
    if draft.on_cpu and fitting < total:
        return fitting, "what two CPU cores do in ten minutes"
    return total, why


def _global_tokens(values: Values) -> Number | None:
    parameters, seq_len = values.get("model.parameters"), values.get("model.seq_len")
    if parameters is None or seq_len is None:
        return None
    wanted = ladder_batch(parameters)
    wanted = min(wanted, (values.get("data.total_tokens") or wanted * 100) / 100)
    unit = int(seq_len)  # and of what is given of its factors, so that no pass is partly empty
    for name in ("batch.micro_batch_size", "batch.data_parallel", "batch.grad_accum_steps"):
        given = values.given.get(name)
        unit *= given if isinstance(given, int) else 1
    return max(unit, (1 << (max(1, int(wanted)).bit_length() - 1)) // unit * unit)


def _micro_batch(values: Values) -> Number | None:
    """Sequences in one forward pass: as many as the tokens hold, at most a device's share of a step."""
    draft = _draft(values)
    step, seq_len, replicas = (
        values.get(name) for name in ("batch.global_tokens", "model.seq_len", "batch.data_parallel")
    )
    if step is None or seq_len is None or replicas is None:
        return None
    lengths = [(phase.seq_len or seq_len, phase.global_tokens or step) for phase in draft.phases] or [(seq_len, step)]
    rows = max(max(1, round(tokens / length)) for length, tokens in lengths)
    longest = max(length for length, _ in lengths)
    stages = draft.config.parallel.pipeline_parallel
    share = max(1, -(-rows // int(replicas)) // stages)  # each stage needs a pass
    usual = max(1, min(share, int(MICRO_TOKENS[draft.machine.device] // longest)))
    memory = values.get("hardware.gpu_memory")
    if memory is None or values.shape is None or draft.on_cpu:
        return usual
    whole = setting_of(values, share, 1, int(longest))
    return min(usual, largest_rows(whole, draft.config.hardware.memory_target * memory) or 1)


def setting_of(values: Values, rows: int, passes: int, seq_len: int) -> Setting:
    """What decides the memory of a device, for passes of `rows` sequences."""
    draft = _draft(values)
    parallel, asked = draft.config.parallel, draft.config.precision.compute
    own: Compute = "fp32" if draft.on_cpu else "bf16"
    return Setting(
        shape=values.shape,
        rows=rows,
        seq_len=seq_len,
        passes=passes,
        devices=int(values.get("batch.data_parallel") or 1),
        shard=parallel.shard,
        replicas=parallel.replicas,
        tensor=int(values.get("parallel.tensor_parallel") or 1),
        pipeline=int(values.get("parallel.pipeline_parallel") or 1),
        recompute=parallel.activation_checkpointing,
        compute=own if asked is None or asked == "auto" else asked,
        optimizer=draft.config.optimizer.type,
        on_cpu=draft.on_cpu,
    )


def _gpus(values: Values) -> tuple[Number, str] | None:
    draft = _draft(values)
    if "batch.data_parallel" in values.given:
        return None
    return draft.machine.world, "the ranks of this machine" if draft.manifests else "one, as nothing says otherwise"


def _gpu(values: Values) -> tuple[Number, str]:
    draft = _draft(values)
    if draft.on_cpu:
        return "CPU", "this machine has no GPU, and plan.yaml names none"
    if draft.machine.gpu and not draft.given(("hardware", "gpus")):
        return draft.machine.gpu, "the GPU of this machine"
    return ASSUMED, "assumed: nothing names a GPU"


def _gpu_memory(values: Values) -> tuple[Number, str] | None:
    """Memory of the GPU, unless the GPU itself is assumed."""
    draft = _draft(values)
    if draft.machine.memory:
        return draft.machine.memory, "of this machine"
    gpu = find_gpu(values.text("hardware.gpu") or "")
    named = draft.given(("hardware", "gpu")) or draft.machine.gpu
    return (gpu.memory, f"what a {gpu.name} has") if gpu is not None and named else None


def _peak_flops(values: Values) -> tuple[Number, str] | None:
    draft, name = _draft(values), values.text("hardware.gpu")
    if name is None:
        return None
    if draft.on_cpu:
        cores = draft.machine.cpus / draft.machine.world
        return CORE * cores, f"{CORE / 1e9:g} GFLOP/s on each of {cores:g} cores"
    gpu = find_gpu(name)
    return (gpu.flops, f"data sheet of the {gpu.name}, dense bf16") if gpu is not None else None


def _mfu(values: Values) -> tuple[Number, str] | None:
    draft, parameters = _draft(values), values.get("model.parameters")
    if parameters is None or "hardware.peak_flops" not in values.known:
        return None
    if draft.on_cpu:
        return 1.0, "the rate of a core is what was measured"
    return usual_mfu(parameters), "a prior for this size, no measurement; give hardware.tokens_per_second once you have one"


def _attended(values: Values) -> tuple[Number, str] | None:
    seq_len = values.get("model.seq_len")
    return attended_of(_draft(values), int(seq_len)) if seq_len is not None else None


def _flops_per_token(values: Values) -> Number | None:
    attended = values.get("data.attended")
    if values.shape is None or attended is None:
        return None
    return token_flops(values.shape, attended)


def _peak_lr(values: Values) -> Number | None:
    parameters = values.get("model.parameters")
    return float(f"{ladder_rate(parameters):.2g}") if parameters is not None else None


def ladder_rate(parameters: float) -> float:
    """Peak learning rate by size (Bhagia et al. 2024, after Porian et al. 2024), at most 3e-3."""
    return min(3e-3, 0.0047 * (parameters / 108e6) ** (-1 / 3))


def ladder_batch(parameters: float) -> float:
    """Tokens of a step by size: 160 sequences of 2,048 at 108 M parameters (the same sources)."""
    return 2048 * 160 * (parameters / 108e6) ** (2 / 3)


def _bytes_per_parameter(values: Values) -> tuple[Number, str] | None:
    if values.shape is None:
        return None
    state = state_bytes(_draft(values).config.optimizer.type, values.shape)
    return 4 + state, f"fp32 weights 4, state of {_draft(values).config.optimizer.type} {state:.3g}"


def _kept(values: Values) -> tuple[Number, str]:
    config = _draft(values).config.checkpoint
    return config.keep_last + config.keep_best + 1, "keep_last, the best, and the one being written"


def _best_interval(values: Values) -> Number | None:
    """sqrt(2 x time of a save x mean time between failures of all devices) (Young 1974, eq. 1)."""
    save, gpus = values.get("checkpoint.save_time"), values.get("hardware.gpus")
    if save is None or gpus is None:
        return None
    return math.sqrt(2 * save * _draft(values).config.hardware.mtbf / gpus)


def _eval_every(values: Values) -> Number | None:
    draft, steps = _draft(values), values.get("lr_schedule.total_steps")
    held = not draft.manifests or any(entry.holdout for entry in draft.sources.values())
    return min(1000, max(1, int(steps) // 10)) if steps and held else None


#: Rules that decide tokens, steps and shape: what the data order depends on.
FIRST: tuple[Rule, ...] = (
    Rule("model.seq_len", "the largest power of two up to 256 (CPU) or 2,048 of which the smallest source holds eight", _seq_len),
    Rule("model.vocab_size", "the tokenizer of the corpus", _vocabulary),
    Rule("hardware.gpus", "the ranks of this machine", _gpus),
    Rule("data.total_tokens", "the tokens of the phases", _tokens_of_phases, free=False),
    Rule("model.params", "width, layers and vocabulary, else tokens / 20, on a CPU what it trains in ten minutes", _params,
         source="Hoffmann et al. 2022"),
    Rule("model.parameters", "the shape nearest to model.params (trainer/shape.py)", _parameters, free=False),
    Rule("data.total_tokens", "one reading of the corpus, four of a small one; on a CPU what it does in ten minutes", _total_tokens),
    Rule("batch.global_tokens", "160 x 2,048 x (parameters / 108M)^(2/3), at least 100 steps, a power of two", _global_tokens,
         source="Bhagia et al. 2024, after Porian et al. 2024"),
    Rule("hardware.gpu", "the GPU of this machine, else H100", _gpu),
    Rule("hardware.gpu_memory", "what that GPU has", _gpu_memory),
    Rule("batch.micro_batch_size", "4,096 tokens on CPU; on GPU 16,384, or what fits its memory; at most a device's "
         "share of a step, of which each pipeline stage needs a pass", _micro_batch),
)  # fmt: skip

#: Rules that need the steps of the run, or nothing needs but people.
SECOND: tuple[Rule, ...] = (
    Rule("lr_schedule.warmup_share", "1 % of the run", lambda _values: 0.01),
    Rule("lr_schedule.peak_lr", "0.0047 (parameters / 108M)^(-1/3), at most 3e-3", _peak_lr,
         source="Bhagia et al. 2024, after Porian et al. 2024"),
    Rule("data.attended", "sum of squared lengths of documents in their rows / sum of lengths", _attended, free=False),
    Rule("model.flops_per_token", "6 x parameters of matrix products + 12 x layers x width x attended", _flops_per_token,
         free=False, source="Chowdhery et al. 2022, appendix B"),
    Rule("hardware.peak_flops", "data sheet of the GPU, dense bf16; 25 GFLOP/s for a CPU core", _peak_flops),
    Rule("hardware.mfu", "30 % below 200 M parameters, 35 % below 1 B, then 40 %", _mfu,
         source="a prior; published runs lie between 0.3 and 0.55"),
    Rule("checkpoint.bytes_per_parameter", "fp32 weights and the state of the optimizer", _bytes_per_parameter, free=False),
    Rule("checkpoint.kept", "keep_last, the best, and the one being written", _kept, free=False),
    Rule("checkpoint.save_every_steps", "1,000, and at the end of the run", lambda _values: 1000),
    Rule("checkpoint.best_interval", "sqrt(2 x checkpoint.save_time x hardware.mtbf / hardware.gpus)", _best_interval,
         free=False, source="Young 1974, eq. 1; mtbf of a GPU from Llama Team 2024, section 3.3.4"),
    Rule("monitoring.eval_every_steps", "ten times in the run, at least every 1,000 steps", _eval_every),
)  # fmt: skip

RULES = (*FIRST, *SECOND)
