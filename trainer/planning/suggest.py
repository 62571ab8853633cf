"""What published scaling rules would choose: learning rate, step and loss of a run of this size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.planned import Note
from trainer.planning.draft import Draft
from trainer.planning.figures import billions
from trainer.planning.rules import ladder_batch, ladder_rate
from trainer.planning.solver import Values
from trainer.shape import ModelShape


@dataclass(frozen=True)
class Size:
    """What the rules look at: parameters, those outside of embeddings, tokens, and FLOP of a token but the head's."""

    parameters: float
    inner: float
    tokens: float
    flops: float


@dataclass(frozen=True)
class Suggestion:
    """A named rule: learning rate and tokens of a step as functions of the size."""

    name: str
    rate: Callable[[Size], float]
    step: Callable[[Size], float]
    formula: str
    source: str


SUGGESTIONS = (
    Suggestion(
        "ladder", lambda size: ladder_rate(size.parameters), lambda size: ladder_batch(size.parameters),
        "by parameters N: 0.0047 (N / 108M)^(-1/3), 160 x 2,048 (N / 108M)^(2/3)",
        "Bhagia et al. 2024, after Porian et al. 2024",
    ),
    Suggestion(
        "compute", lambda size: 0.3118 * (size.flops * size.tokens) ** -0.1250,
        lambda size: 0.2920 * (size.flops * size.tokens) ** 0.3271,
        "by compute C: 0.3118 C^-0.125, 0.292 C^0.3271", "DeepSeek LLM, Bi et al. 2024, section 3.1",
    ),
    Suggestion(
        "step-law", lambda size: 1.79 * size.inner**-0.713 * size.tokens**0.307,
        lambda size: 0.58 * size.tokens**0.571,
        "by parameters N and tokens D: 1.79 N^-0.713 D^0.307, 0.58 D^0.571", "Li et al. 2025, Step Law",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LossLaw:
    """loss = floor + a / parameters^alpha + b / tokens^beta, in nats a token (Hoffmann et al. 2022, eq. 10)."""

    floor: float
    a: float
    alpha: float
    b: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss of a model of this size after so many tokens."""
        return self.floor + self.a * parameters**-self.alpha + self.b * tokens**-self.beta

    def gain(self, tokens: float) -> float:
        """By how much the loss falls for one more token: beta b / tokens^(beta + 1)."""
        return self.beta * self.b * tokens ** (-self.beta - 1)


#: The fit of Hoffmann et al. 2022 as Besiroglu et al. 2024 (table 1) did it again.
CHINCHILLA_LAW = LossLaw(1.8172, 482.01, 0.3478, 2085.43, 0.3658)


def size_of(values: Values) -> Size | None:
    """The size of the run; None while it is unknown."""
    shape: ModelShape | None = values.shape
    tokens, flops = values.get("data.total_tokens"), values.get("model.flops_per_token")
    if shape is None or tokens is None or flops is None:
        return None
    tables = (1 if shape.tie_embeddings else 2) * shape.vocab_size * shape.width
    head = 6 * shape.vocab_size * shape.width
    return Size(shape.parameters, max(1, shape.parameters - tables), tokens, max(1.0, flops - head))


def note_suggestions(draft: Draft, values: Values) -> None:
    """What each rule says, beside what the plan does, and the loss to expect."""
    size = size_of(values)
    if size is None:
        return
    for rule in SUGGESTIONS:
        rate, step = rule.rate(size), rule.step(size)
        text = f"peak_lr {rate:.2g}, step {billions(step)} tokens"
        draft.notes.append(Note(f"suggest.{rule.name}", text, "derived", f"{rule.formula}  [{rule.source}]", rate, "suggest"))
    loss = CHINCHILLA_LAW.loss(size.parameters, size.tokens)
    why = (
        "1.8172 + 482.01 / N^0.3478 + 2085.43 / D^0.3658  [Besiroglu et al. 2024]; of their text and tokenizer, so for "
        "comparing plans; --fit-runs fits your own"
    )
    draft.notes.append(Note("suggest.loss", f"{loss:.3f}", "derived", why, loss, "suggest"))
