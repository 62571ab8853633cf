"""The tokenizer that a corpus has trained: the section `tokenizer` as the stage that does it, and what it has against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stages.contract.problem import Problem, SpecError
from stages.contract.tree import Table, place
from stages.tokenizer.patterns import named_pattern

if TYPE_CHECKING:
    from pipeline.corpus import Corpus

def trainer(corpus: Corpus) -> Any:
    """The training stage (`TrainTokenizer`). SpecError if the settings cannot work together."""
    from stages.tokenizer.bpe import TrainTokenizer

    wanted = corpus.tokenizer
    given = {name: getattr(wanted, name) for name in ("pattern", "special_tokens") if getattr(wanted, name) is not None}
    try:
        return TrainTokenizer(
            vocab_size=wanted.vocab_size,
            train_on=wanted.train_on,
            train_mix=_by_source(corpus, wanted.train_mix or corpus.mix),
            digits=wanted.digits,
            split_han=wanted.split_han,
            seed=corpus.seed,
            **given,
        )
    except ValidationError as error:
        sentences = [wrong["msg"].removeprefix("Value error, ") for wrong in error.errors()]
        at = corpus.where(("tokenizer",))
        raise SpecError(*(Problem("C005", f"tokenizer: {sentence}", at) for sentence in sentences)) from error


def trainer_problems(corpus: Corpus, tree: Table) -> list[Problem]:
    """What is wrong with the section as far as it is known without the stage, whose compiled code takes long to load."""
    wanted = corpus.tokenizer
    if wanted.path is not None:
        return []
    problems = []
    floor = 256 + len(wanted.special_tokens or ("the one by default",))
    if wanted.vocab_size < floor:
        message = (
            f"tokenizer.vocab_size is {wanted.vocab_size:,}, below the floor of {floor:,}: 256 bytes and the special tokens"
        )
        where = place(tree, ("tokenizer", "vocab_size"))
        problems.append(Problem("C005", message, where, (f"tokenizer.vocab_size: {floor}, or more",)))
    try:
        named_pattern(wanted.pattern or "llama3", wanted.digits, wanted.split_han)
    except ValueError as error:
        key = "split_han" if wanted.split_han else "digits"
        problems.append(Problem("C017", f"tokenizer: {error}", place(tree, ("tokenizer", key)), (f"remove {key}",)))
    return problems


def _by_source(corpus: Corpus, mix: dict[str, float] | None) -> dict[str, float] | None:
    """A mix with the weights of buckets added to their source: documents are in no bucket yet."""
    if mix is None:
        return None
    found: dict[str, float] = {}
    for name, weight in mix.items():
        source = name if name in corpus.sources else name.rpartition(".")[0]
        found[source] = found.get(source, 0.0) + weight
    return found
