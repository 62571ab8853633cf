"""Each update against a few lines of float64, and the gate: a step that must not happen changes no bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz as zeropower

from stages.contract.problem import RunError
from tests.trainer.test_checkpoint import save
from tests.trainer.tiny import SHAPE, ids, model
from trainer import checkpoint
from trainer.loop import optim
from trainer.model.attention import Segments
from trainer.planning.plan import OptimizerPlan

PLAN = OptimizerPlan("AdamW", 0.9, 0.95, 1e-8, 0.1, 1.0)
TYPES = ("AdamW", "Lion", "Sophia", "Muon")
ONE = torch.tensor(1.0)


def with_gradients(net, seed: int = 0):
    tokens = ids(24, seed)
    net(tokens, torch.arange(24), Segments.of([0, 24], "cpu"), tokens.roll(-1)).mean().backward()


def values(net) -> dict[str, torch.Tensor]:
    return {name: p.detach().to_local().clone() for name, p in net.named_parameters()}


def gradients(net) -> dict[str, torch.Tensor]:
    return {name: p.grad.to_local().double().clone() for name, p in net.named_parameters()}


def three_steps(kind: str):
    """Parameters before and after three steps at rate 0.01, and the gradients of each."""
    net = model()
    updater = optim.Updater(net, replace(PLAN, type=kind))
    before, seen = values(net), []
    for step in range(3):
        with_gradients(net, step)
        if updater.sophia is not None and step == 0:
            updater.sophia.gate = ONE
            updater.sophia.observe(torch.tensor(24.0))
        seen.append(gradients(net))
        updater.step(0.01, torch.tensor(0.5), ONE)
        updater.zero()
    return before, values(net), [{name: g / 2 for name, g in one.items()} for one in seen]


def decay_of(value: torch.Tensor) -> float:
    return 0.1 if value.ndim >= 2 else 0.0


def check(kind: str, rule, atol: float = 1e-6) -> None:
    before, after, seen = three_steps(kind)
    for name, value in before.items():
        expected = rule(value.double(), [one[name] for one in seen], decay_of(value))
        assert torch.allclose(after[name].double(), expected, atol=atol), name
        assert not torch.equal(after[name], value)


def adamw(p, steps, decay):
    m = v = torch.zeros_like(p)
    for t, g in enumerate(steps, 1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        p = p - 0.01 * decay * p
        p = p - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
    return p


def test_adamw():
    check("AdamW", adamw, atol=2e-5)


def test_lion():
    def rule(p, steps, decay):
        m = torch.zeros_like(p)
        for g in steps:
            p = p - 0.01 * (torch.sign(0.9 * m + 0.1 * g) + decay * p)
            m = 0.95 * m + 0.05 * g
        return p

    check("Lion", rule)


def test_sophia():
    def rule(p, steps, decay):
        m = torch.zeros_like(p)
        h = 0.05 * 24 * (2 * steps[0]) ** 2  # what was observed were the gradients before their scale of 0.5
        for g in steps:
            m = 0.9 * m + 0.1 * g
            p = p - 0.01 * ((m / (0.05 * h).clamp_min(1e-8)).clamp(-1, 1) + decay * p)
        return p

    check("Sophia", rule, atol=1e-5)


def test_muon_moves_matrices_of_layers_as_torch_does_and_the_rest_as_adamw(monkeypatch):
    def theirs(matrix):  # in bfloat16
        return zeropower(matrix, optim.NEWTON_SCHULZ, optim.NEWTON_SCHULZ_STEPS, 1e-7)

    make = torch.Generator().manual_seed(0)
    some = torch.randn(16, 24, generator=make)
    assert float((optim.orthogonal(some) - theirs(some)).norm() / theirs(some).norm()) < 0.05
    monkeypatch.setattr(optim, "orthogonal", theirs)
    before, after, seen = three_steps("Muon")
    for name, value in before.items():
        if ".layers." not in name or value.ndim < 2:
            expected = adamw(value.double(), [one[name] for one in seen], decay_of(value))
            assert torch.allclose(after[name].double(), expected, atol=2e-5), name
            continue
        twin = torch.nn.Parameter(value.clone())
        peer = torch.optim.Muon([twin], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        for one in seen:
            twin.grad = one[name].float()
            peer.step()
        # In bfloat16 the order of a sum can be seen, and which it is depends on the machine.
        assert float((after[name] - twin.detach()).norm() / (twin.detach() - value).norm()) < 0.03, name


def test_orthogonal_makes_singular_values_near_one():
    make = torch.Generator().manual_seed(0)
    for shape in ((8, 32), (32, 8), (16, 16)):
        found = torch.linalg.svdvals(optim.orthogonal(torch.randn(shape, generator=make)))
        assert float(found.min()) > 0.4
        assert float(found.max()) < 1.3
    assert torch.equal(optim.orthogonal(torch.zeros(4, 4)), torch.zeros(4, 4))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 1.0])
def test_a_shut_gate_keeps_every_bit(kind, fault):
    net = model()
    updater = optim.Updater(net, replace(PLAN, type=kind))
    with_gradients(net)
    updater.step(0.01, ONE, ONE)
    updater.zero()
    before = values(net), {name: t.detach().clone() for name, t in updater.state_tensors().items()}
    with_gradients(net, 1)
    for p in net.parameters():
        p.grad.to_local().mul_(fault)
    updater.step(0.01, ONE, torch.tensor(0.0))
    assert all(torch.equal(before[0][name], value) for name, value in values(net).items())
    assert all(torch.equal(before[1][name], t) for name, t in updater.state_tensors().items())
    with_gradients(net, 1)
    updater.step(0.01, ONE, ONE)  # and opens again
    assert not all(torch.equal(before[0][name], value) for name, value in values(net).items())


def test_a_curvature_that_is_not_finite_is_not_taken():
    net = model()
    updater = optim.Updater(net, replace(PLAN, type="Sophia"))
    with_gradients(net)
    updater.sophia.gate = ONE
    updater.sophia.observe(torch.tensor(24.0))
    before = {name: t.detach().clone() for name, t in updater.state_tensors().items()}
    for p in net.parameters():
        p.grad.to_local().fill_(float("nan"))
    updater.sophia.gate = updater.norm().isfinite().float()
    updater.sophia.observe(torch.tensor(24.0))
    assert all(torch.equal(before[name], t) for name, t in updater.state_tensors().items())


def test_state_has_the_same_names_before_and_after_the_first_step():
    fields = {"AdamW": 3, "Lion": 1, "Sophia": 2}
    for kind in TYPES:
        net = model()
        updater = optim.Updater(net, replace(PLAN, type=kind))
        early = {name: t.shape for name, t in updater.state_tensors().items()}
        with_gradients(net)
        updater.step(0.01, ONE, ONE)
        assert early == {name: t.shape for name, t in updater.state_tensors().items()}
        parameters = len(list(net.parameters()))
        assert len(early) == fields.get(kind, 0) * parameters or kind == "Muon"


def test_norms_and_vectors_do_not_decay():
    net = model()
    for kind in TYPES:
        for part in optim.Updater(net, replace(PLAN, type=kind)).parts:
            for group in part.param_groups:
                assert {group["weight_decay"]} == {decay_of(p) for p in group["params"]}


def test_clipping_uses_the_global_norm():
    net = model()
    with_gradients(net)
    squares = sum(float((g**2).sum()) for g in gradients(net).values())
    assert float(optim.gradient_norm(net)) == pytest.approx(squares**0.5, rel=1e-6)


def test_a_missing_library_is_named_with_a_way_out(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchao.optim", None)
    with pytest.raises(RunError, match=r"AdamW8bit needs torchao[\s\S]*pip install torchao"):
        optim.Updater(model(), replace(PLAN, type="AdamW8bit"))


def test_the_state_in_eight_bits_is_saved_and_comes_back_bit_for_bit(tmp_path):
    pytest.importorskip("torchao")
    shape = replace(SHAPE, width=64, ffn=128)
    nets = [model(shape), model(shape)]
    updaters = [optim.Updater(net, replace(PLAN, type="AdamW8bit")) for net in nets]
    early = {name: (t.shape, t.dtype) for name, t in updaters[0].state_tensors().items()}
    with_gradients(nets[0])
    updaters[0].step(0.01, ONE, ONE)
    tensors = [{"model": dict(n.named_parameters()), "optimizer": u.state_tensors()} for n, u in zip(nets, updaters, strict=True)]
    assert early == {name: (t.shape, t.dtype) for name, t in tensors[0]["optimizer"].items()}
    assert any(name.endswith("exp_avg_codes") and t.dtype == torch.uint8 for name, t in tensors[0]["optimizer"].items())
    path = save(tmp_path, 1, tensors[0])
    checkpoint.load(checkpoint.read(path), tensors[1])
    nets[0].zero_grad()
    for net, updater in zip(nets, updaters, strict=True):
        with_gradients(net, 1)
        updater.step(0.01, ONE, ONE)
    assert all(torch.equal(values(nets[0])[name], value) for name, value in values(nets[1]).items())
