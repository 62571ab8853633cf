"""What plan.yaml may say. Every key may be left out; `trainer.planning.plan` derives it and says how.

The description of a key is its help: editors show it (`trainer schema`), and docs/plan-yaml.md is made of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from stages.contract.config import (
    Count,
    FilePath,
    Loaded,
    Model,
    Share,
    Size,
    Span,
    json_schema,
    load,
    validate,
)
from stages.contract.mixture import OnExhaust, Phase, Weight
from stages.contract.override import apply_override
from stages.contract.problem import Problem, SpecError, in_order
from stages.contract.tree import Document, Table, compose

#: The file that values without a plan.yaml stand in.
NO_PLAN = "(no plan)"


OPTIMIZERS = ("AdamW", "AdamW8bit", "Lion", "Sophia", "Muon")
DECAYS = ("cosine", "linear", "constant", "inverse-sqrt", "wsd")


def _known(names: tuple[str, ...]) -> BeforeValidator:
    """Reads `adamw`, `adamw-8bit` or `inverse_sqrt` as the name that is meant; any other value stays as it is."""
    plain = {name.lower().replace("-", ""): name for name in names}

    def read(value: Any) -> Any:
        return plain.get(value.lower().replace("-", "").replace("_", ""), value) if isinstance(value, str) else value

    return BeforeValidator(read)


OptimizerName = Annotated[Literal["AdamW", "AdamW8bit", "Lion", "Sophia", "Muon"], _known(OPTIMIZERS)]
Decay = Annotated[Literal["cosine", "linear", "constant", "inverse-sqrt", "wsd"], _known(DECAYS)]
Shard = Literal["none", "optimizer", "gradients", "full", "hybrid"]
Recompute = Literal["none", "selective", "full"]
Compute = Literal["bf16", "fp16", "fp32"]


class ModelConfig(Model):
    """The model: its size alone, or its whole shape."""

    params: Annotated[Count | None, Field(description="Parameters; the shape follows.", gt=0)] = None
    seq_len: Annotated[Count | None, Field(description="Tokens in a sequence.", ge=2)] = None
    width: Annotated[Count | None, Field(description="Width of the residual stream.", gt=0)] = None
    layers: Annotated[Count | None, Field(description="Decoder layers.", gt=0)] = None
    heads: Annotated[Count | None, Field(description="Query heads.", gt=0)] = None
    kv_heads: Annotated[
        Count | None, Field(description="Key and value heads; they divide `heads`.", gt=0)
    ] = None
    ffn: Annotated[Count | None, Field(description="Inner width of the feed-forward layers.", gt=0)] = None
    vocab_size: Annotated[
        Count | None, Field(description="Entries of the vocabulary, where no manifest says it.", gt=0)
    ] = None
    tie_embeddings: Annotated[bool | None, Field(description="Use the embedding as the output layer.")] = None
    rope_theta: Annotated[float, Field(description="Base of the rotary positions.", gt=0)] = 10_000.0
    norm_eps: Annotated[float, Field(description="Epsilon of RMSNorm.", gt=0)] = 1e-5
    qk_norm: Annotated[bool, Field(description="RMSNorm of each query and key head.")] = False
    dropout: Annotated[float, Field(description="Dropped share of what each layer adds.", ge=0, lt=1)] = 0.0


class DataConfig(Model):
    """What is read, in which mixture, how often. Weights are shares of token positions."""

    total_tokens: Annotated[Count | None, Field(description="Token positions of the run.", gt=0)] = None
    tokens_per_parameter: Annotated[
        float | None, Field(description="Token positions for each parameter; 20 is compute-optimal.", gt=0)
    ] = None
    mix: Annotated[
        dict[str, Weight] | None, Field(description="Weight of each source, in token positions.")
    ] = None
    repeat_limit: Annotated[
        float | None, Field(description="How often any source may be read at most.", gt=0)
    ] = None
    repeat_limits: Annotated[
        dict[str, float], Field(description="The same for single sources; wins over repeat_limit.")
    ] = {}
    phases: Annotated[tuple[Phase, ...], Field(description="The curriculum, in order.")] = ()
    on_exhaust: Annotated[OnExhaust, Field(description="When a source reaches its limit.")] = "error"
    packing: Annotated[
        Literal["concat", "best-fit"] | None,
        Field(
            description="best-fit: the packed rows of the corpus, no document cut that fits. concat: windows of the "
            "stream of documents. Left out: best-fit where the corpus has rows of every length that is asked for."
        ),
    ] = None
    skip: Annotated[
        tuple[tuple[Count, Count], ...],
        Field(description="Steps of the data that are not trained on: [[1200, 1300]] passes over 1200 to 1299."),
    ] = ()
    tombstones: Annotated[
        FilePath | None,
        Field(description="A file of document ids (hex), one on a line: nothing is learned from these documents."),
    ] = None
    mask_documents: Annotated[bool, Field(description="No attention and no loss across documents.")] = True
    seed: Annotated[Count | None, Field(description="Seed of the data order; left out: `seed`.")] = None


class OptimizerConfig(Model):
    """The update. Rates, decay and clipping mean the same for all types."""

    type: Annotated[
        OptimizerName,
        Field(description="Muon updates the matrices of the layers, AdamW the rest; AdamW8bit needs torchao."),
    ] = "AdamW"
    beta1: Annotated[float, Field(description="Decay of the first moment.", ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(description="Decay of the second moment.", ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(description="Added to the root of the second moment.", gt=0)] = 1e-8
    weight_decay: Annotated[
        float, Field(description="Decoupled weight decay of matrices; norms have none.", ge=0)
    ] = 0.1
    grad_clip: Annotated[float, Field(description="Largest norm of the gradient.", gt=0)] = 1.0
    momentum: Annotated[float, Field(description="Muon: momentum of the matrices.", ge=0, lt=1)] = 0.95
    gamma: Annotated[float, Field(description="Sophia: scale of the curvature.", gt=0)] = 0.05
    curvature_every: Annotated[Count, Field(description="Sophia: steps between two looks at it.", gt=0)] = 10
    z_loss: Annotated[float, Field(description="Weight of log(sum(exp(logits)))^2 in the loss.", ge=0)] = 0.0


class ScheduleConfig(Model):
    """The learning rate, a function of the tokens planned so far; steps are converted."""

    peak_lr: Annotated[float | None, Field(description="Highest learning rate, at the end of the warm-up.", gt=0)] = (
        None
    )
    warmup_steps: Annotated[Count | None, Field(description="Steps of linear warm-up.")] = None
    warmup_share: Annotated[Share | None, Field(description="Warm-up as a share of the run.")] = None
    total_steps: Annotated[Count | None, Field(description="Steps of the run.", gt=0)] = None
    decay: Annotated[Decay, Field(description="How the rate falls after the warm-up.")] = "cosine"
    decay_share: Annotated[
        Share, Field(description="Share of the run that `wsd` decays over, at its end.")
    ] = 0.2
    min_lr_ratio: Annotated[Share, Field(description="Last learning rate as a share of the peak.")] = 0.1
    batch_rule: Annotated[
        Literal["none", "sqrt", "linear"],
        Field(description="How the rate follows a phase's own global_tokens, against batch.global_tokens."),
    ] = "none"


class BatchConfig(Model):
    """The size of a step. `global_tokens` is a target while another factor is free, else it is checked."""

    global_tokens: Annotated[Count | None, Field(description="Token positions of a step.", gt=0)] = None
    micro_batch_size: Annotated[
        Count | None, Field(description="Sequences in one forward pass of a device.", gt=0)
    ] = None
    grad_accum_steps: Annotated[
        Count | None, Field(description="Forward passes of a device in a step.", gt=0)
    ] = None
    data_parallel: Annotated[
        Count | None, Field(description="Devices (or groups of them) that each read their own sequences.", gt=0)
    ] = None


class ParallelConfig(Model):
    """How the model is spread over devices."""

    tensor_parallel: Annotated[
        Count, Field(description="Devices that share each layer; they divide heads, `ffn`, vocabulary and `seq_len`.", gt=0)
    ] = 1
    pipeline_parallel: Annotated[
        Count, Field(description="Stages that the layers are cut into; a step has as many passes at least.", gt=0)
    ] = 1
    shard: Annotated[
        Shard,
        Field(
            description="What each rank holds a part of. none: nothing. optimizer: weights and optimizer state, and it "
            "keeps whole gradients until the last pass of a step (ZeRO-1). gradients: those too (ZeRO-2). full: gathers "
            "a layer at a time (ZeRO-3, FSDP). hybrid: full, within a group of ranks."
        ),
    ] = "full"
    replicas: Annotated[
        Count | None, Field(description="Groups of `hybrid`; left out: one on each machine.", gt=0)
    ] = None
    compile: Annotated[bool | None, Field(description="torch.compile each layer; left out: on GPUs.")] = None
    activation_checkpointing: Annotated[
        Recompute,
        Field(
            description="What the forward pass keeps for the backward pass. none: all. selective: the results of "
            "matrix products. full: the input of each layer."
        ),
    ] = "none"


class PrecisionConfig(Model):
    """Number formats. Parameters, gradients and optimizer state are fp32 whatever computes."""

    compute: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"] | None,
        Field(description="Format of matrix products and activations. auto: fp32 on CPU, bf16 on GPU."),
    ] = None
    reduce: Annotated[Literal["fp32"], Field(description="Format in which gradients are summed.")] = "fp32"


class CheckpointConfig(Model):
    """When to save and what to keep."""

    save_every_steps: Annotated[Count | None, Field(description="Steps between two saves.", gt=0)] = None
    save_every: Annotated[Span | None, Field(description="Save after this much time, too.", gt=0)] = None
    keep_last: Annotated[Count, Field(description="Newest checkpoints that stay.", gt=0)] = 3
    keep_best: Annotated[bool, Field(description="Keep the one with the lowest holdout loss as well.")] = True
    keep_every_steps: Annotated[Count | None, Field(description="Never delete these.", gt=0)] = None
    async_save: Annotated[bool, Field(description="Copy to memory, write while training goes on.")] = False
    verify_resume: Annotated[
        bool, Field(description="At the first save of a start: load it, repeat a step, compare all bits.")
    ] = False
    weights_only: Annotated[
        FilePath | None, Field(description="Begin with the weights of this checkpoint, at step 0.")
    ] = None


class MonitoringConfig(Model):
    """What is written and watched during the run."""

    log_every_steps: Annotated[Count, Field(description="Steps between two lines of the log.", gt=0)] = 10
    eval_every_steps: Annotated[
        Count | None, Field(description="Holdout loss every so many steps.", gt=0)
    ] = None
    sinks: Annotated[
        tuple[Literal["jsonl", "tensorboard", "wandb"], ...], Field(description="Where numbers go; jsonl always does.")
    ] = ("jsonl",)
    on_nonfinite: Annotated[
        Literal["stop", "skip", "roll-back"],
        Field(
            description="When a loss or gradient is not finite: stop, skip the step, or skip, and after `skips` in a row "
            "go back to a sound checkpoint and pass over these data."
        ),
    ] = "roll-back"
    on_spike: Annotated[
        Literal["ignore", "warn", "skip", "roll-back"],
        Field(description="A loss or gradient norm far above those of the steps before."),
    ] = "warn"
    spike_z: Annotated[float, Field(description="How far, in robust deviations.", gt=0)] = 8.0
    spike_window: Annotated[Count, Field(description="Steps that are looked back on.", ge=16)] = 128
    skips: Annotated[Count, Field(description="Bad steps in a row that are skipped at most.", gt=0)] = 10
    rollbacks: Annotated[Count, Field(description="Times that a run goes back at most.")] = 3
    profile_steps: Annotated[
        tuple[Count, Count] | None, Field(description="Profile steps a to b - 1, given as [a, b].")
    ] = None


class StopConfig(Model):
    """When to end before the plan does."""

    max_time: Annotated[
        Span | None, Field(description="Save and end after this much time of one start; run again to go on.", gt=0)
    ] = None
    after_steps: Annotated[Count | None, Field(description="End early, with a checkpoint.", gt=0)] = None
    patience_evals: Annotated[
        Count | None, Field(description="End after so many evaluations without a better holdout loss.", gt=0)
    ] = None


class HardwareConfig(Model):
    """What the plan is for, where it is not this machine, and what it costs."""

    gpus: Annotated[Count | None, Field(description="Devices in all.", gt=0)] = None
    gpu: Annotated[
        str | None, Field(description="Model of the GPU, such as H100, H200, A100, L40S, RTX 4090.")
    ] = None
    gpu_memory: Annotated[Size | None, Field(description="Memory of one device.", gt=0)] = None
    memory_target: Annotated[Share, Field(description="Share of that memory that the plan may fill.", gt=0)] = 0.85
    peak_flops: Annotated[
        float | None, Field(description="Dense bf16 FLOP/s of one device; left out: by its model.", gt=0)
    ] = None
    mfu: Annotated[
        Share | None, Field(description="Share of that peak which the training reaches.", gt=0)
    ] = None
    tokens_per_second: Annotated[
        float | None, Field(description="Token positions a second of all devices, where it was measured.", gt=0)
    ] = None
    price_per_gpu_hour: Annotated[
        float | None, Field(description="Price of a device for an hour, in any currency.", ge=0)
    ] = None
    disk_bandwidth: Annotated[
        Size, Field(description="Bytes a second that a checkpoint is written with, over all devices.", gt=0)
    ] = 1_000_000_000
    mtbf: Annotated[
        Span, Field(description="Mean time between failures of one device.", gt=0)
    ] = 50_000 * 3600.0


class PlanConfig(Model):
    """The whole of plan.yaml."""

    name: Annotated[str | None, Field(description="Name of the run, and of its folder.")] = None
    seed: Annotated[Count, Field(description="Seed of initialisation, and of the data order.")] = 0
    deterministic: Annotated[bool, Field(description="The same bits for the same plan on the same machine.")] = True
    objective: Annotated[Literal["pretrain"], Field(description="Next-token prediction over all tokens.")] = "pretrain"
    model: Annotated[ModelConfig, Field(description="The model.")] = ModelConfig()
    data: Annotated[DataConfig, Field(description="What is read.")] = DataConfig()
    optimizer: Annotated[OptimizerConfig, Field(description="The update rule.")] = OptimizerConfig()
    lr_schedule: Annotated[ScheduleConfig, Field(description="The learning rate.")] = ScheduleConfig()
    batch: Annotated[BatchConfig, Field(description="The size of a step.")] = BatchConfig()
    parallel: Annotated[ParallelConfig, Field(description="How the model is spread.")] = ParallelConfig()
    precision: Annotated[PrecisionConfig, Field(description="Number formats.")] = PrecisionConfig()
    checkpoint: Annotated[CheckpointConfig, Field(description="When to save.")] = CheckpointConfig()
    monitoring: Annotated[MonitoringConfig, Field(description="What is watched.")] = MonitoringConfig()
    stop: Annotated[StopConfig, Field(description="When to end early.")] = StopConfig()
    hardware: Annotated[HardwareConfig, Field(description="What the plan is for.")] = HardwareConfig()


def plan_schema() -> dict[str, Any]:
    """JSON Schema, draft 7, of plan.yaml; every key has its help. Names may be spelled as people do (`adamw`)."""
    schema = json_schema(PlanConfig)
    kinds = schema["definitions"]
    kinds["OptimizerConfig"]["properties"]["type"]["enum"] += [name.lower() for name in OPTIMIZERS]
    kinds["ScheduleConfig"]["properties"]["decay"]["enum"].append("inverse_sqrt")
    return schema


def read_plan(path: Path | None, overrides: Sequence[str] = ()) -> Loaded[PlanConfig]:
    """plan.yaml with the `--set` overrides; without a path the overrides alone. SpecError with all problems."""
    if path is not None:
        return load(path, PlanConfig, overrides)
    problems: list[Problem] = []
    tree = compose(Document(NO_PLAN, os.getcwd(), "{}"), problems)
    assert isinstance(tree, Table)
    for override in overrides:
        apply_override(tree, override, problems)
    value, wrong = validate(tree, PlanConfig)
    if value is None or problems or wrong:
        raise SpecError(*in_order([*problems, *wrong]))
    return Loaded(value, tree, "")
