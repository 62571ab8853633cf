"""An exported folder is the model: for a second implementation, for transformers, and when it comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.contract.manifest import load_manifest
from stages.contract.problem import RunError, SpecError
from tests.trainer.tiny import alone, corpus, fit, ids, model, overrides, planned
from tests.trainer.tools.plain import logits as plain_logits
from trainer import checkpoint
from trainer.checkpoint.attach import with_weights
from trainer.checkpoint.runfolder import describe_run
from trainer.model.attention import Segments
from trainer.tools import export as exporting
from trainer.tools.bring import bring, read_source
from trainer.tools.export import Corpus, export, picked

KINDS = {
    "plain": (),
    "tied": ("model.tie_embeddings=true",),
    "qk-norm": ("model.qk_norm=true", "model.rope_theta=500000", "model.norm_eps=1e-6"),
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", params=KINDS)
def trained(request, manifest, tmp_path_factory) -> tuple[Path, tuple[str, ...]]:
    out = tmp_path_factory.mktemp("run")
    sets = overrides(4, "checkpoint.save_every_steps=2", "monitoring.eval_every_steps=2", *KINDS[request.param])
    with fit(manifest, out, *sets) as run:
        run.run()
        describe_run(out, run.plan, alone(), 0, [manifest.parent])
    return out, sets


def own_logits(manifest: Path, sets: tuple[str, ...], out: Path, tokens: torch.Tensor) -> torch.Tensor:
    found, _ = picked(out, None, False)
    one = with_weights(planned(manifest, *sets)[0], found, alone())
    with torch.no_grad():
        return one(tokens, torch.arange(len(tokens)), Segments.of([0, len(tokens)], "cpu"))


def exported(trained, manifest, folder: Path, dtype: str = "fp32") -> dict:
    found, run = picked(trained[0], None, False)
    return export(found, run, Corpus([load_manifest(manifest)], manifest.parent), folder, dtype)


def test_a_second_implementation_sees_the_same_logits(trained, manifest, tmp_path):
    exported(trained, manifest, tmp_path / "m")
    tokens = ids(20)
    mine = own_logits(manifest, trained[1], trained[0], tokens).double().numpy()
    assert np.abs(plain_logits(tmp_path / "m", tokens.tolist()) - mine).max() < 1e-5


def test_transformers_sees_the_same_logits(trained, manifest, tmp_path):
    transformers = pytest.importorskip("transformers")
    exported(trained, manifest, tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    tokens = ids(20)
    with torch.no_grad():
        theirs = model(tokens[None]).logits[0]
    assert (theirs - own_logits(manifest, trained[1], trained[0], tokens)).abs().max() < 1e-5


def test_export_import_is_the_same_loss_and_trains_on(trained, manifest, tmp_path):
    exported(trained, manifest, tmp_path / "m")
    done = bring(read_source(tmp_path / "m"), tmp_path / "in")
    tokens = ids(20)
    before = own_logits(manifest, trained[1], trained[0], tokens)
    sets = (*trained[1], f"checkpoint.weights_only={done['checkpoint']}")
    with fit(manifest, tmp_path / "on", *sets) as run:
        with torch.no_grad():
            after = run.model(tokens, torch.arange(20), Segments.of([0, 20], "cpu"))
        assert torch.equal(before, after)
        run.run()
        assert run.state.step == 4


def test_the_plan_that_import_writes_has_the_shape_of_the_model(trained, manifest, tmp_path):
    from stages.contract.manifest import load_manifest
    from trainer.config import read_plan
    from trainer.planning.plan import Machine, resolve

    exported(trained, manifest, tmp_path / "m")
    bring(read_source(tmp_path / "m"), tmp_path / "in")
    loaded = read_plan(tmp_path / "in" / "plan.yaml", ("batch.global_tokens=256", "model.seq_len=32", "data.total_tokens=1024"))
    plan = resolve(loaded, [load_manifest(manifest)], Machine())
    assert plan.model == planned(manifest, *trained[1])[0].model
    assert plan.checkpoint.weights_only == str(tmp_path / "in" / "step-00000000")


def test_the_card_names_sources_licences_and_losses(trained, manifest, tmp_path):
    record = exported(trained, manifest, tmp_path / "m", "bf16")
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| 书 | not stated |" in card
    assert "not measured" not in card
    assert record["data"][0]["sources"]["web"]["tokens"] > 0
    assert record["training"]["tokens"] == 4 * 256
    assert json.loads((tmp_path / "m" / "provenance.json").read_bytes())["files"].keys() == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    assert {t.dtype for t in load_file(tmp_path / "m" / "model.safetensors").values()} == {torch.bfloat16}


def test_large_models_are_several_files_with_an_index(trained, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "FILE_BYTES", 20_000)
    exported(trained, manifest, tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors.index.json").is_file()
    tokens = ids(8)
    mine = own_logits(manifest, trained[1], trained[0], tokens).double().numpy()
    assert np.abs(plain_logits(tmp_path / "m", tokens.tolist()) - mine).max() < 1e-5
    assert bring(read_source(tmp_path / "m"), tmp_path / "in")["parameters"] > 0


def test_nothing_is_overwritten(trained, manifest, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").touch()
    with pytest.raises(SpecError, match="not empty"):
        exported(trained, manifest, tmp_path / "m")


def test_a_number_that_the_format_cannot_hold_leaves_nothing_behind(trained, manifest, tmp_path, monkeypatch):
    real = exporting.parameters
    monkeypatch.setattr(exporting, "parameters", lambda found: ((name, tensor * 1e6) for name, tensor in real(found)))
    with pytest.raises(RunError, match=r"which float16 cannot hold[\s\S]*bf16"):
        exported(trained, manifest, tmp_path / "n", "fp16")
    assert not list(tmp_path.iterdir())


def changed(folder: Path, **values) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "gemma"}, "model_type is gemma"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rotary positions are scaled"),
        ({"head_dim": 128}, "4 heads of 128 are 512 wide"),
        ({"intermediate_size": 65}, "config.json says"),
    ],
)  # fmt: skip
def test_a_model_that_would_be_computed_differently_is_refused(trained, manifest, tmp_path, values, said):
    exported(trained, manifest, tmp_path / "m")
    changed(tmp_path / "m", **values)
    with pytest.raises(SpecError, match=said):
        read_source(tmp_path / "m")


def test_biases_that_only_the_tensors_tell_of_are_refused(trained, manifest, tmp_path):
    exported(trained, manifest, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    save_file(load_file(path) | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}, path)
    with pytest.raises(SpecError, match=r"does not have: model\.layers\.0\.self_attn\.q_proj\.bias"):
        read_source(tmp_path / "m")


def test_bf16_shards_and_spare_rows_of_the_vocabulary_are_taken_over(trained, manifest, tmp_path):
    exported(trained, manifest, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    tensors = {k: v.bfloat16() for k, v in load_file(path).items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = torch.cat([tensors[name], torch.full((32, 32), 9.0, dtype=torch.bfloat16)])
    save_file(tensors, path)
    changed(tmp_path / "m", vocab_size=96)
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {str(i): i for i in range(60)}}}))
    done = bring(read_source(tmp_path / "m"), tmp_path / "in")
    assert done["changed"] == "96 rows of the vocabulary became 64: its tokenizer has 60 ids"
    sets = (*trained[1], f"checkpoint.weights_only={done['checkpoint']}")
    with fit(manifest, tmp_path / "on", *sets) as run:
        assert run.model.model.embed_tokens.weight.shape == (64, 32)
        assert float(run.model.model.embed_tokens.weight.full_tensor().detach().abs().max()) < 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type":', "cannot be read"),
        ("[]", "no JSON object"),
        ('{"model_type": "llama"}', "`hidden_size` is missing"),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_source(tmp_path)


def test_an_index_does_not_lead_outside(trained, manifest, tmp_path):
    exported(trained, manifest, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../secret.safetensors"}}')
    with pytest.raises(SpecError, match="only safetensors are read"):
        read_source(tmp_path / "m")


def test_the_commands(trained, manifest, tmp_path):
    from click.testing import CliRunner

    from trainer.cli import cli

    done = CliRunner().invoke(cli, ["export", str(trained[0]), str(tmp_path / "m")])
    assert done.exit_code == 0, done.output
    assert "parameters of step 4 as fp32, tokenizer, card with 2 sources" in done.output
    assert f"next: trainer import {tmp_path / 'm'}" in done.output
    done = CliRunner().invoke(cli, ["import", str(tmp_path / "m"), "--out", str(tmp_path / "in"), "--json"])
    assert done.exit_code == 0, done.output
    assert '"exit": 0' in done.output
    done = CliRunner().invoke(cli, ["import", str(tmp_path), "--out", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert "no config.json" in done.output


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_model_that_transformers_wrote_comes_in_with_equal_logits(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "head_dim": 8, "tie_word_embeddings": kind == "Qwen3", "max_position_embeddings": 32,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "m", max_shard_size="10KB")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert (tmp_path / "m" / "model.safetensors.index.json").is_file()
    source = read_source(tmp_path / "m")
    done = bring(source, tmp_path / "in")
    found = checkpoint.read(Path(done["checkpoint"]))
    mine = model(source.shape)
    checkpoint.load(found, {"model": dict(mine.named_parameters())})
    tokens = ids(20)
    with torch.no_grad():
        ours = mine(tokens, torch.arange(20), Segments.of([0, 20], "cpu"))
        assert (ours - theirs(tokens[None]).logits[0]).abs().max() < 1e-5
