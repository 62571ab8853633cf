from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.trainer.tiny import SHAPE, ids, model
from trainer.loop import optim
from trainer.model import rotary, rotate
from trainer.model.attention import Segments
from trainer.model.loss import IGNORE, drawn_labels, token_losses
from trainer.planning.plan import OptimizerPlan


def logits(net, tokens_T, starts):
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(starts)])
    with torch.no_grad():
        return net(tokens_T, positions, Segments.of(starts, "cpu"))


def test_parameter_names_are_those_of_hugging_face():
    names = dict(model().named_parameters())
    assert names["model.embed_tokens.weight"].shape == (64, 32)
    assert names["model.layers.1.self_attn.k_proj.weight"].shape == (16, 32)
    assert names["model.layers.0.mlp.down_proj.weight"].shape == (32, 64)
    assert {"model.norm.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"} <= names.keys()
    assert sum(p.numel() for p in names.values()) == SHAPE.parameters


def test_a_tied_head_is_one_parameter_and_trains_from_both_sides():
    shape = replace(SHAPE, tie_embeddings=True)
    net = model(shape)
    names = dict(net.named_parameters())
    assert "lm_head.weight" not in names
    assert sum(p.numel() for p in names.values()) == shape.parameters
    tokens = ids(16)
    before = net(tokens, torch.arange(16), Segments.of([0, 16], "cpu"), tokens.roll(-1)).sum()
    before.backward()
    optim.Updater(net, PLAN).step(1e-2, torch.tensor(1.0), torch.tensor(1.0))
    after = net(tokens, torch.arange(16), Segments.of([0, 16], "cpu"), tokens.roll(-1)).sum()
    assert after < before
    assert net.lm_head.weight is net.model.embed_tokens.weight


PLAN = OptimizerPlan("AdamW", 0.9, 0.95, 1e-8, 0.1, 1.0)


def test_changing_document_1_leaves_the_logits_of_document_2_bit_equal():
    net, tokens = model(), ids(40)
    other = tokens.clone()
    other[:17] = ids(17, seed=9)
    a, b = (logits(net, t, [0, 17, 40]) for t in (tokens, other))
    assert torch.equal(a[17:], b[17:])
    assert not torch.equal(a[:17], b[:17])


def test_the_future_never_shows():
    net, tokens = model(), ids(20)
    other = tokens.clone()
    other[12:] = ids(8, seed=9)
    a, b = (logits(net, t, [0, 20]) for t in (tokens, other))
    assert torch.equal(a[:12], b[:12])


def test_one_row_for_all_documents_equals_one_call_each():
    net, tokens = model(), ids(40)
    together = logits(net, tokens, [0, 17, 40])
    apart = torch.cat([logits(net, tokens[:17], [0, 17]), logits(net, tokens[17:], [0, 23])])
    assert torch.allclose(together, apart, atol=1e-5)


def test_first_weights_depend_on_seed_and_name_alone():
    a, b, c = (dict(model(seed=s).named_parameters()) for s in (1, 1, 2))
    key = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(a[key].to_local(), b[key].to_local())
    assert not torch.equal(a[key].to_local(), c[key].to_local())
    assert not torch.equal(a[key].to_local(), a["model.layers.0.mlp.up_proj.weight"].to_local())
    assert float(a["model.embed_tokens.weight"].detach().to_local().std()) == pytest.approx(0.02, rel=0.1)
    assert torch.equal(a["model.norm.weight"].to_local(), torch.ones(32))


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_changes_no_gradient(recompute):
    grads = []
    for mode in ("none", recompute):
        net, tokens = model(recompute=mode), ids(24)
        net(tokens, torch.arange(24), Segments.of([0, 24], "cpu"), tokens.roll(-1)).sum().backward()
        grads.append([p.grad.to_local() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_rotary_positions_are_relative():
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def score(i, j):
        turned = [rotate(x, rotary(torch.tensor([p]), 8, 10_000.0)) for x, p in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    assert score(3, 1) == pytest.approx(score(10, 8), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-4)


def test_chunked_loss_equals_the_plain_one(monkeypatch):
    make = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(16, 50, bias=False)
    labels = torch.randint(0, 50, (23,), generator=make)
    labels[4] = IGNORE
    hidden = torch.randn(23, 16, generator=make)
    results = []
    for elements in (1 << 25, 50 * 7):  # all at once; 7 rows a chunk, the last of 2
        monkeypatch.setattr("trainer.model.loss.CHUNK_ELEMENTS", elements)
        x = hidden.clone().requires_grad_()
        losses = token_losses(x, head, labels, 50)
        head.zero_grad()
        losses.sum().backward()
        results.append((losses.detach(), x.grad, head.weight.grad.clone()))
    (plain, chunked) = results
    assert plain[0][4] == 0
    assert torch.allclose(plain[0], chunked[0], atol=1e-6)
    assert torch.allclose(plain[1], chunked[1], atol=1e-6)
    assert torch.allclose(plain[2], chunked[2], atol=1e-5)
    expected = torch.nn.functional.cross_entropy(head(hidden), labels, ignore_index=IGNORE, reduction="none")
    assert torch.allclose(plain[0], expected.detach(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_the_gradient_of_the_loss_is_that_of_the_textbook(monkeypatch, dtype, z_loss):
    make = torch.Generator().manual_seed(1)
    logits = (9 * torch.randn(23, 50, generator=make)).to(dtype)
    labels = torch.randint(0, 50, (23,), generator=make)
    labels[[0, 9, 22]] = IGNORE
    weights = torch.rand(23, generator=make)
    monkeypatch.setattr("trainer.model.loss.BLOCK_ELEMENTS", (1, 50 * 4))  # blocks of 4 rows, the last of 3
    ours = logits.clone().requires_grad_()
    losses = token_losses(ours, lambda x: x * 1, labels, 50, z_loss)
    (losses * weights).sum().backward()
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, labels, ignore_index=IGNORE, reduction="none")
    penalty = z_loss * exact.logsumexp(-1).square() * (labels != IGNORE)
    ((expected + penalty) * weights).sum().backward()
    assert losses.dtype == torch.float32
    assert torch.allclose(losses.double(), expected, atol=1e-5)  # without the penalty
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(ours.grad.double(), exact.grad, rtol=tolerance, atol=1e-6)
    assert not ours.grad[[0, 9, 22]].any()


def test_logits_that_are_not_finite_make_a_loss_that_is_not():
    logits = torch.zeros(3, 8)
    logits[1, 5], logits[2, 5] = float("nan"), float("inf")
    losses = token_losses(logits, lambda x: x, torch.tensor([1, 1, 1]), 8)
    assert losses.isfinite().tolist() == [True, False, False]


def test_queries_and_keys_may_be_normed():
    shape = replace(SHAPE, qk_norm=True)
    net = model(shape)
    names = dict(net.named_parameters())
    assert names["model.layers.0.self_attn.q_norm.weight"].shape == (8,)
    assert sum(p.numel() for p in names.values()) == shape.parameters
    assert shape.matmul_parameters == SHAPE.matmul_parameters
    with torch.no_grad():  # the size of queries and keys no longer matters
        before = logits(net, ids(16), [0, 16])
        for projection in (net.model.layers[0].self_attn.q_proj, net.model.layers[0].self_attn.k_proj):
            projection.weight.mul_(50.0)
        assert torch.allclose(logits(net, ids(16), [0, 16]), before, atol=1e-3)
    assert not torch.equal(before, logits(model(), ids(16), [0, 16]))


def test_dropout_is_a_function_of_the_seed_and_off_in_evaluation():
    net = model(replace(SHAPE, dropout=0.5))
    seen = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        seen.append(logits(net, ids(16), [0, 16]))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    net.eval()
    assert torch.equal(logits(net, ids(16), [0, 16]), logits(model(), ids(16), [0, 16]))


def test_z_loss_moves_the_gradient_by_its_derivative_and_no_value():
    tokens, found = ids(24), {}
    for z in (0.0, 0.5):
        net = model(z_loss=z)
        losses = net(tokens, torch.arange(24), Segments.of([0, 24], "cpu"), tokens.roll(-1))
        losses.sum().backward()
        found[z] = losses.detach(), net.lm_head.weight.grad.to_local().clone()
    assert torch.equal(found[0.0][0], found[0.5][0])
    net = model()
    scores = net(tokens, torch.arange(24), Segments.of([0, 24], "cpu"))
    (0.5 * scores.logsumexp(-1).square()).sum().backward()
    expected = found[0.0][1] + net.lm_head.weight.grad.to_local()
    assert torch.allclose(found[0.5][1], expected, atol=1e-4)


def test_drawn_labels_follow_the_probabilities_of_the_model(monkeypatch):
    make = torch.Generator().manual_seed(0)
    table = torch.randn(1, 128, generator=make)
    table[0, 3] = table[0, 100] = 4.0
    hidden, labels = torch.ones(20_000, 1), torch.zeros(20_000, dtype=torch.int64)
    labels[7] = IGNORE
    chance = torch.rand(20_000, generator=make)
    drawn = drawn_labels(hidden, lambda x: x @ table, labels, chance, 128)
    assert drawn[7] == IGNORE
    real = drawn[drawn != IGNORE]
    shares = torch.bincount(real, minlength=128) / len(real)
    assert torch.allclose(shares, table[0].softmax(-1), atol=0.012)
    exact = torch.searchsorted(table[0].double().softmax(-1).cumsum(-1), chance.double(), right=True)
    assert float((drawn[8:] == exact[8:]).float().mean()) > 0.999
    monkeypatch.setattr("trainer.model.loss.CHUNK_ELEMENTS", 128 * 77)
    assert torch.equal(drawn, drawn_labels(hidden, lambda x: x @ table, labels, chance, 128))


@pytest.mark.long
def test_compiled_layers_compute_the_same_and_are_not_compiled_for_each_batch():
    torch._dynamo.reset()
    plain, compiled = model(), model()
    for layer in compiled.model.layers:
        layer.compile()
    torch._dynamo.utils.counters.clear()
    for seed, starts in enumerate(([0, 24], [0, 5, 24], [0, 3, 9, 24], [0, 1, 2, 3, 24], [0, 20, 24])):
        tokens, found = ids(24, seed), []
        positions = torch.cat([torch.arange(b - a) for a, b in pairwise(starts)])
        for net in (plain, compiled):
            net.zero_grad()
            losses = net(tokens, positions, Segments.of(starts, "cpu"), tokens.roll(-1))
            losses.sum().backward()
            found.append((losses.detach(), net.lm_head.weight.grad.to_local().clone()))
        assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
        assert torch.allclose(found[0][1], found[1][1], atol=1e-4)
        if seed == 1:
            before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
