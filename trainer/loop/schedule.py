"""The learning rate: a pure function of planned tokens consumed. There is no scheduler and no scheduler state.

`tokens` is what has been consumed when the step ends, so the first step already learns and the last one runs at
the floor. Because the argument is tokens and not steps, a change of batch size or sequence length between phases
does not bend the curve, and a resumed run needs nothing but its step number.
"""

from __future__ import annotations

import math

from trainer.planned import Plan, SchedulePlan


def rate(schedule: SchedulePlan, tokens: int) -> float:
    """The rate after `tokens` planned positions, before a phase's own factor.

    Linear warmup from 0 to `peak_lr`, then by `decay`:
    constant      peak
    linear        peak to min, straight over decay_tokens
    cosine        min + (peak - min) * (1 + cos(pi * x)) / 2 (Loshchilov and Hutter 2017, eq. 5)
    inverse-sqrt  peak * sqrt(warmup / tokens), not under min (Vaswani et al. 2017, section 5.3)
    wsd           peak, then straight to min over the last decay_tokens (Hu et al. 2024, section 4.2)
    """
    peak, floor = schedule.peak_lr, schedule.min_lr
    if tokens < schedule.warmup_tokens:
        return peak * tokens / schedule.warmup_tokens
    if schedule.decay == "constant":
        return peak
    if schedule.decay == "inverse-sqrt":
        return max(floor, peak * math.sqrt(max(schedule.warmup_tokens, 1) / max(tokens, 1)))
    begin = schedule.warmup_tokens
    if schedule.decay == "wsd":
        begin = schedule.total_tokens - schedule.decay_tokens
    done = min(1.0, max(0.0, (tokens - begin) / max(schedule.decay_tokens, 1)))
    if schedule.decay == "cosine":
        return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2
    return peak + (floor - peak) * done


def rate_at(plan: Plan, step: int) -> float:
    """The rate that step `step` (0-based) of the plan updates with."""
    phase = plan.phase_at(step)
    return rate(plan.schedule, plan.tokens_at(step + 1)) * phase.lr_factor
