"""AdamW, its parameter groups, the global gradient norm and the update that is skipped when a number is not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.plan import OptimizerPlan


def build(model: nn.Module, plan: OptimizerPlan) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019). Matrices decay; norms and other vectors do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(plan.beta1, plan.beta2), eps=plan.eps, fused=True)


def gradient_norm(model: nn.Module) -> float:
    """The 2-norm over all gradients of all ranks: the same bits on every rank."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return float(norm)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, norm: float, clip: float) -> None:
    """Clip to the norm `clip` (0 = never), then one step at rate `lr`. Gradients must be finite."""
    if clip and norm > clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, torch.tensor(norm))
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state by name, `<parameter>.<field>`; made (zero) where no step has been taken yet."""
    found: dict[str, Tensor] = {}
    owned = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        assert parameter in owned, f"{name} is gathered, not the optimizer's shard"
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        found.update({f"{name}.{field}": tensor for field, tensor in state.items()})
    return found


def finite(*values: float) -> bool:
    """Whether all are finite."""
    return all(math.isfinite(value) for value in values)
