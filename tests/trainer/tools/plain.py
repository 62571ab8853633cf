"""A second reading of an exported folder: config.json and safetensors as a Llama in float64 numpy, by the book.

It shares no code with `trainer.model`, so equal logits say that the folder describes the model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.torch import load_file


def logits(folder: Path, ids: list[int]) -> np.ndarray:
    """(T, vocab) of one document, float64."""
    config = json.loads((folder / "config.json").read_bytes())
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    w = {key: value.double().numpy() for name in names for key, value in load_file(folder / name).items()}
    heads, kv, wide = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    t = len(ids)
    eps = config["rms_norm_eps"]
    angles = np.arange(t)[:, None] / config["rope_theta"] ** (np.arange(0, wide, 2) / wide)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def turn(x):
        a, b = x[..., : wide // 2], x[..., wide // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = ((h @ w[f"{p}self_attn.{n}_proj.weight"].T).reshape(t, -1, wide) for n in "qkv")
        if config["model_type"] == "qwen3":
            q, k = norm(q, w[p + "self_attn.q_norm.weight"]), norm(k, w[p + "self_attn.k_norm.weight"])
        q, k = turn(q), turn(k)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(wide)
        scores = np.where(np.tril(np.ones((t, t), bool)), scores, -np.inf)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", chances, v).reshape(t, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T
