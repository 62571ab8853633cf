"""The messages of `trainer plan`, as golden files: what is wrong, where, and what would make it right."""

from __future__ import annotations

import pytest

from stages.contract.problem import render
from trainer.config import read_plan
from trainer.planning.draft import Machine
from trainer.planning.explain import explain
from trainer.planning.plan import study

PLANS = {
    "devices": "hardware: {gpus: 6}\nbatch: {data_parallel: 4}\nparallel: {tensor_parallel: 2}\n",
    "no-whole-number": "hardware:\n  gpus: 6\nparallel:\n  tensor_parallel: 4\n",
    "ratio": "model: {params: 1B}\ndata: {total_tokens: 10B, tokens_per_parameter: 20}\n",
    "run": "model: {params: 124M, seq_len: 1024}\ndata: {total_tokens: 10B}\nbatch: {global_tokens: 1_048_576}\n"
    "lr_schedule: {total_steps: 5000}\n",
    "three-at-once": "model: {params: 7B, seq_len: 4096}\ndata: {total_tokens: 140B}\n"
    "batch: {global_tokens: 4M, micro_batch_size: 4, grad_accum_steps: 61, data_parallel: 8}\n"
    "lr_schedule: {total_steps: 50_000, warmup_steps: 60_000}\nhardware: {gpus: 16, gpu_memory: 80GiB}\n",
    "warmup": "lr_schedule: {warmup_steps: 2000, warmup_share: 1%, total_steps: 10_000}\n",
    "short-warmup": "lr_schedule: {warmup_steps: 10, total_steps: 50_000}\nbatch: {global_tokens: 1M}\n",
    "speed": "model: {params: 7B}\nhardware: {gpus: 8, gpu: H100, tokens_per_second: 200_000}\n",
    "slow": "model: {params: 7B}\nhardware: {gpus: 8, gpu: H100, tokens_per_second: 15_000}\nstop: {max_time: 30d}\n",
    "memory": "model: {params: 7B, seq_len: 4096}\nbatch: {micro_batch_size: 4}\nhardware: {gpus: 8, gpu: A100 40GB}\n",
    "shape": "model: {params: 1M, vocab_size: 100_000}\n",
    "long-phase": "model: {params: 7B, seq_len: 2}\ndata: {total_tokens: 140B}\n",
    "heads": "model: {params: 124M}\nparallel: {tensor_parallel: 8}\n",
    "stages": "model: {width: 256, layers: 4}\nparallel: {pipeline_parallel: 8}\n",
    "passes": "model: {params: 124M, seq_len: 1024}\nbatch: {global_tokens: 65_536, micro_batch_size: 16}\n"
    "parallel: {pipeline_parallel: 4}\nhardware: {gpus: 8}\n",
    "uneven-tokens": "model: {params: 1B, seq_len: 1023}\nparallel: {tensor_parallel: 4}\nhardware: {gpus: 8}\n",
    "eight-bit": "optimizer: {type: AdamW8bit}\nparallel: {tensor_parallel: 2}\nhardware: {gpus: 8}\nmodel: {params: 1B}\n",
    "groups": "batch: {data_parallel: 8}\nparallel: {shard: hybrid, replicas: 3}\n",
    "unknown-gpu": "hardware: {gpu: Frobnicator 9000, gpus: 8}\n",
    "saves": "model: {params: 7B}\nbatch: {global_tokens: 64k}\ncheckpoint: {save_every_steps: 10}\nhardware: {gpus: 64, gpu: H100}\n",
    "replicas": "parallel: {shard: full, replicas: 2}\n",
}


def solved(folder, text: str):
    path = folder / "plan.yaml"
    path.write_text(text)
    return study(read_plan(path), [], Machine("cuda"))


@pytest.mark.parametrize("name", PLANS)
def test_the_message_is_as_it_was_read(name, tmp_path, golden):
    found = solved(tmp_path, PLANS[name])
    assert found.problems
    text = "\n\n".join(render(problem) for problem in found.problems)
    golden(f"plan/{name}.txt", text.replace(f"{tmp_path}/", "") + "\n")


def test_a_story_is_as_it_was_read(tmp_path, golden):
    found = solved(tmp_path, "model: {params: 7B, seq_len: 4096}\ndata: {total_tokens: 140B}\nhardware: {gpus: 8, gpu: H100}\n")
    names = ("batch.global_tokens", "hardware.tokens_per_second", "run.wall_time", "memory.total", "lr_schedule.peak_lr")
    text = "\n\n".join(explain(found, name) for name in names)
    golden("plan/explain.txt", text.replace(f"{tmp_path}/", "") + "\n")


def test_an_override_is_blamed_on_the_command_line():
    found = study(read_plan(None, ["hardware.gpus=6", "batch.data_parallel=4"]), [], Machine("cuda"))
    (problem,) = found.problems
    assert problem.where is not None
    assert problem.where.file == "--set"
    assert any("at --set hardware.gpus=6" in repair for repair in problem.repairs)
