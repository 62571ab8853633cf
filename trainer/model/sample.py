"""Text from a trained model: what it would write behind a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from stages.contract.problem import Problem, RunError, SpecError
from trainer.loop.parallel import after_look, seed_of
from trainer.model import Llama
from trainer.model.attention import Segments


class Codec:
    """The tokenizer of a corpus: text to ids and back. RunError when `tokenizers` is not installed."""

    def __init__(self, tokenizer_json: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            hint = ("pip install tokenizers",)
            raise RunError(Problem("R007", "reading a prompt needs tokenizers", repairs=hint)) from error
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._tokenizer.encode_special_tokens = True  # a control token that stands in a prompt is text

    def ids(self, text: str) -> list[int]:
        """SpecError for a text without a single token: a model that never saw the start of nothing cannot go on."""
        found = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not found:
            raise SpecError(Problem("C005", "the prompt is empty", repairs=("give it a few words",)))
        return found

    def text(self, ids: list[int]) -> str:
        """Special tokens left out; bytes that are no UTF-8 come back as U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


@torch.no_grad()
def continued(
    model: Llama, ids: list[int], most: int, temperature: float, seed: int, eos: int, vocab: int, device: torch.device
) -> Iterator[int]:
    """At most `most` ids behind these, until the end of a document; temperature 0 takes the likeliest each time.

    Each id is drawn from all that stand before it, at most as many as the model saw in a row: nothing is cached.
    """
    context = list(ids)
    for number in range(most):
        seen = context[-model.shape.seq_len :]
        tokens = torch.tensor(seen, device=device)
        places = torch.arange(len(seen), device=device)
        scores = model(tokens, places, Segments.of([0, len(seen)], device))[-1, :vocab].double().cpu()
        after_look(model)
        chosen = _drawn(scores, temperature, seed_of("sample", seed, number))
        if chosen == eos:
            return
        context.append(chosen)
        yield chosen


def _drawn(scores: Tensor, temperature: float, seed: int) -> int:
    if not temperature:
        return int(scores.argmax())
    chances = (scores / temperature).softmax(-1)
    return int(torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(seed)))
