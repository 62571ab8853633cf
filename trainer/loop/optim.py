"""The update: parameter groups, the global gradient norm, and steps that may turn out to be none.

Every optimizer here can be told on the device, without the host knowing, that a step must not happen: `keep` is 1 for
a step as usual and 0 for one that leaves parameters and state as they are, bit for bit, whatever the gradients hold.

AdamW    torch's fused kernel (Loshchilov and Hutter 2019), also for what Muon leaves
Lion     sign of an interpolated momentum (Chen et al. 2023, algorithm 2)
Sophia   momentum over a clipped estimate of the curvature, Gauss-Newton-Bartlett (Liu et al. 2023, algorithm 3)
Muon     orthogonalised momentum of the matrices in layers (Jordan et al. 2024), scaled to the size of an AdamW step
         by 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, eq. 4), so that AdamW's rates and decay carry over
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from stages.contract.problem import Problem, RunError
from trainer.loop.parallel import local_box, repeats
from trainer.planned import OptimizerPlan

if TYPE_CHECKING:
    from trainer.model import Llama

#: Coefficients and number of the Newton-Schulz steps that orthogonalise (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Gated(torch.optim.Optimizer):
    """An optimizer of our own: `gate` is `keep` of the next step, float32 on the device, 0 or 1."""

    FIELDS: tuple[str, ...] = ("exp_avg",)
    gate: Tensor

    def __init__(self, groups: Iterable[dict[str, Any]], **defaults: float) -> None:
        super().__init__(groups, {"lr": 0.0} | defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Update every group from the gradients, or do nothing where the gate is shut."""
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            if not held:
                continue
            for parameter in held:
                self.fill(parameter)
            # With the gate shut a gradient may be anything; as zero it drops out of every sum below.
            gradients = [torch.where(self.gate.bool(), _local(p.grad), 0.0) for p in held]
            self.update(group, held, gradients)

    def fill(self, parameter: Tensor) -> None:
        """Zeros for a parameter that has no state yet."""
        state = self.state[parameter]
        for name in self.FIELDS:
            if name not in state:
                state[name] = torch.zeros_like(parameter)

    def update(self, group: dict[str, Any], held: Sequence[nn.Parameter], gradients: list[Tensor]) -> None:
        """One step of these parameters; `gradients` are this rank's parts and may be overwritten."""
        raise NotImplementedError

    def _decay(self, group: dict[str, Any], parameters: list[Tensor]) -> Tensor:
        """Weight decay of these parts; the rate, 0 behind a shut gate."""
        rate = group["lr"] * self.gate
        torch._foreach_mul_(parameters, 1.0 - rate * group["weight_decay"])
        return rate

    def _blend(self, averages: list[Tensor], values: list[Tensor], weight: float) -> None:
        """averages += weight (values - averages), behind the gate."""
        share = weight * self.gate
        torch._foreach_mul_(averages, 1.0 - share)
        torch._foreach_add_(averages, torch._foreach_mul(values, share))

    def _parts(self, held: Sequence[nn.Parameter], name: str) -> list[Tensor]:
        return [_local(self.state[p][name]) for p in held]


class Lion(Gated):
    """u = sign(b1 m + (1 - b1) g);  p -= lr (u + decay p);  m = b2 m + (1 - b2) g."""

    def update(self, group: dict[str, Any], held: Sequence[nn.Parameter], gradients: list[Tensor]) -> None:
        """As in the docstring of the class."""
        parameters, averages = [_local(p) for p in held], self._parts(held, "exp_avg")
        rate = self._decay(group, parameters)
        direction = torch._foreach_mul(averages, group["beta1"])
        torch._foreach_add_(direction, gradients, alpha=1.0 - group["beta1"])
        torch._foreach_sign_(direction)
        torch._foreach_mul_(direction, rate)
        torch._foreach_sub_(parameters, direction)
        self._blend(averages, gradients, 1.0 - group["beta2"])


class Sophia(Gated):
    """m = b1 m + (1 - b1) g;  p -= lr (clip(m / max(gamma h, eps), 1) + decay p); `observe` feeds h."""

    FIELDS = ("exp_avg", "hessian")

    def update(self, group: dict[str, Any], held: Sequence[nn.Parameter], gradients: list[Tensor]) -> None:
        """As in the docstring of the class."""
        parameters, averages = [_local(p) for p in held], self._parts(held, "exp_avg")
        rate = self._decay(group, parameters)
        self._blend(averages, gradients, 1.0 - group["beta1"])
        scale = torch._foreach_mul(self._parts(held, "hessian"), group["gamma"])
        torch._foreach_clamp_min_(scale, group["eps"])
        move = torch._foreach_div(averages, scale)
        torch._foreach_clamp_min_(move, -1.0)
        torch._foreach_clamp_max_(move, 1.0)
        torch._foreach_mul_(move, rate)
        torch._foreach_sub_(parameters, move)

    @torch.no_grad()
    def observe(self, tokens: Tensor) -> None:
        """h = b2 h + (1 - b2) tokens g^2, where `.grad` holds the mean gradient of labels that the model drew.

        A gradient that is not finite on some rank must have shut the gate before.
        """
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            for parameter in held:
                self.fill(parameter)
            squares = [torch.where(self.gate.bool(), _local(p.grad), 0.0).square_() for p in held]
            torch._foreach_mul_(squares, tokens.float())
            self._blend(self._parts(held, "hessian"), squares, 1.0 - group["beta2"])


class Muon(Gated):
    """m = mu m + (1 - mu) g;  u = orthogonal(mu m + (1 - mu) g);  p -= lr (0.2 sqrt(max(n, m)) u + decay p)."""

    FIELDS = ("momentum",)

    def update(self, group: dict[str, Any], held: Sequence[nn.Parameter], gradients: list[Tensor]) -> None:
        """As in the docstring of the class. Every rank orthogonalises the whole matrix and keeps its part."""
        parameters, averages = [_local(p) for p in held], self._parts(held, "momentum")
        rate = self._decay(group, parameters)
        self._blend(averages, gradients, 1.0 - group["momentum"])
        torch._foreach_mul_(gradients, 1.0 - group["momentum"])
        torch._foreach_add_(gradients, averages, alpha=group["momentum"])
        for parameter, local, gradient in zip(held, parameters, gradients, strict=True):
            whole = gradient
            if isinstance(parameter, DTensor):
                mesh, places, shape = parameter.device_mesh, parameter.placements, parameter.shape
                like = DTensor.from_local(gradient, mesh, places, shape=shape, stride=parameter.stride())
                whole = like.full_tensor()
            _, start = local_box(parameter.detach())
            box = tuple(slice(a, a + n) for a, n in zip(start, local.shape, strict=True))
            scale = 0.2 * max(parameter.shape) ** 0.5
            local.sub_(orthogonal(whole)[box].to(local.dtype) * (rate * scale))


def orthogonal(matrix: Tensor) -> Tensor:
    """Near U V^T of the singular value decomposition U S V^T, by Newton-Schulz (Jordan et al. 2024).

    bfloat16 on a GPU, float32 on a CPU, where half precision has no fast kernels. Zero stays zero.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Updater:
    """All optimizers of a model behind one `step`."""

    def __init__(self, model: Llama, plan: OptimizerPlan) -> None:
        """RunError when `plan.type` needs a package that is not there."""
        self.plan = plan
        self.model = model
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parts: list[torch.optim.Optimizer] = []
        if plan.type == "Muon":
            matrices = [p for name, p in named.items() if p.ndim == 2 and ".layers." in name]
            group = {"params": matrices, "weight_decay": plan.weight_decay, "momentum": plan.momentum}
            self.parts.append(Muon([group]))
            taken = {id(p) for p in matrices}
            named = {name: p for name, p in named.items() if id(p) not in taken}
        # Matrices decay; norms and other vectors do not.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": plan.weight_decay},
            {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.parts.append(self._rest(groups))

    def _rest(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        plan = self.plan
        if plan.type == "Lion":
            return Lion(groups, beta1=plan.beta1, beta2=plan.beta2)
        if plan.type == "Sophia":
            return Sophia(groups, beta1=plan.beta1, beta2=plan.beta2, gamma=plan.gamma, eps=plan.eps)
        options: dict[str, Any] = {"lr": 0.0, "betas": (plan.beta1, plan.beta2), "eps": plan.eps}
        if plan.type == "AdamW8bit":
            return _eight_bit(groups, options)
        return torch.optim.AdamW(groups, fused=True, **options)

    @property
    def sophia(self) -> Sophia | None:
        """The part that wants to see the curvature, if there is one."""
        return next((part for part in self.parts if isinstance(part, Sophia)), None)

    def norm(self) -> Tensor:
        """The 2-norm over all gradients of all ranks: float64 on the device, the same bits on every rank."""
        return gradient_norm(self.model)

    @torch.no_grad()
    def step(self, lr: float, scale: Tensor, keep: Tensor) -> None:
        """Multiply the gradients by `scale`, then one step at rate `lr` if `keep` is 1 and none if it is 0.

        scale, keep  float32 on the device
        """
        gradients = [_local(p.grad) for p in self.model.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, scale)
        for part in self.parts:
            for group in part.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr
            if isinstance(part, Gated):
                part.gate = keep
                part.step()
            elif isinstance(part, torch.optim.AdamW):
                # How torch's own gradient scaler tells a fused kernel, on the device, that it must do nothing.
                part.found_inf = 1.0 - keep  # type: ignore[attr-defined]
                part.step()
            elif bool(keep):
                part.step()

    def zero(self) -> None:
        """Let go of the gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Optimizer state by name, `<parameter>.<field>`; made (zero) where no step has been taken yet."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for parameter in (p for group in part.param_groups for p in group["params"]):
                assert parameter in names, "a parameter of the optimizer is not the model's: it is gathered"
                _fill(part, parameter)
                for field, tensor in part.state[parameter].items():
                    plain = _plain(tensor)
                    found.update({f"{names[parameter]}.{field}{end}": one for end, one in plain.items()})
        return dict(sorted(found.items()))

    def forget(self) -> None:
        """State as before the first step."""
        for part in self.parts:
            part.state.clear()


def gradient_norm(model: Llama) -> Tensor:
    """The 2-norm over all gradients of all ranks, float64 on the device: every number counts once, whoever holds copies."""
    held = [p.grad for p in model.parameters() if p.grad is not None and p is not model.lent]
    own = [_local(gradient) for gradient in held if not repeats(gradient)]
    # A stage may hold nothing but copies: its sum is zero.
    norms = torch._foreach_norm(own) if own else [torch.zeros((), device=_local(held[0]).device)]
    square = torch.stack(norms).double().square().sum()
    dist.all_reduce(square)
    return square.sqrt()


def _fill(part: torch.optim.Optimizer, parameter: Tensor) -> None:
    """State of a parameter that has none yet."""
    state = part.state[parameter]
    if isinstance(part, Gated):
        part.fill(parameter)
    elif not state and not isinstance(part, torch.optim.AdamW):
        state["step"] = torch.tensor(0.0)  # as torchao begins it
        state["exp_avg"] = part._new_buffer(parameter, True)  # type: ignore[attr-defined]
        state["exp_avg_sq"] = part._new_buffer(parameter, False)  # type: ignore[attr-defined]
    elif not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)


def _plain(tensor: Tensor) -> dict[str, Tensor]:
    """The tensors that a checkpoint holds of one: itself, or the codes and scales of one in 8 bits, which share its
    memory. RunError where these would not cut into the same pieces on other ranks."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if not hasattr(local, "codes"):
        return {"": tensor}
    parts = {f"_{name}": getattr(local, name).view(-1) for name in ("codes", "scale")}
    if not isinstance(tensor, DTensor):
        return parts
    pieces = math.prod(tensor.device_mesh.size(i) for i, p in enumerate(tensor.placements) if isinstance(p, Shard))
    if tensor.shape[0] % pieces:
        message = f"AdamW8bit cannot be saved: {tensor.shape[0]:,} rows of a matrix cannot be cut into {pieces} equal parts"
        raise RunError(Problem("T002", message, repairs=("choose a number of ranks that divides the model's widths",)))
    mesh, places = tensor.device_mesh, tensor.placements
    return {
        end: DTensor.from_local(one, mesh, places, shape=torch.Size([len(one) * pieces]), stride=(1,))
        for end, one in parts.items()
    }


def _eight_bit(groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise RunError(
            Problem("R007", "optimizer.type AdamW8bit needs torchao, which is not installed",
                    repairs=("pip install torchao", "write optimizer.type: AdamW"))
        ) from error  # fmt: skip
    return AdamW8bit(groups, **options)


def _local(tensor: Tensor) -> Tensor:
    return local_box(tensor.detach())[0]
