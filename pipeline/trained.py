"""The tokenizer that a corpus has trained: the section `tokenizer` as the stage that does it, and what it has against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stages.contract.problem import Problem
from stages.contract.tree import Table, place

if TYPE_CHECKING:
    from pipeline.corpus import Corpus

#: Keys of the section, the likeliest to be wrong first.
_KEYS = ("vocab_size", "special_tokens", "split_han", "digits", "pattern", "train_mix")


def trainer(corpus: Corpus) -> Any:
    """The training stage (`TrainTokenizer`). pydantic's ValidationError if the settings cannot work together."""
    from stages.tokenizer.bpe import TrainTokenizer

    wanted = corpus.tokenizer
    given = {name: getattr(wanted, name) for name in ("pattern", "special_tokens") if getattr(wanted, name) is not None}
    return TrainTokenizer(
        vocab_size=wanted.vocab_size,
        train_on=wanted.train_on,
        train_mix=_by_source(corpus, wanted.train_mix or corpus.mix),
        digits=wanted.digits,
        split_han=wanted.split_han,
        seed=corpus.seed,
        **given,
    )


def trainer_problems(corpus: Corpus, tree: Table) -> list[Problem]:
    """What the training stage says of its settings, at the line of the key that it names."""
    if corpus.tokenizer.path is not None:
        return []
    try:
        trainer(corpus)
    except ValidationError as error:
        section = tree.get("tokenizer")
        found = []
        for wrong in error.errors():
            sentence = wrong["msg"].removeprefix("Value error, ")
            words = sentence.replace("_", " ")
            present = [key for key in _KEYS if isinstance(section, Table) and key in section]
            named = [key for key in present if key.replace("_", " ").removesuffix("s") in words]
            found.append(Problem("C005", f"tokenizer: {sentence}", place(tree, ("tokenizer", *named[:1]))))
        return found
    return []


def _by_source(corpus: Corpus, mix: dict[str, float] | None) -> dict[str, float] | None:
    """A mix with the weights of buckets added to their source: documents are in no bucket yet."""
    if mix is None:
        return None
    found: dict[str, float] = {}
    for name, weight in mix.items():
        source = name if name in corpus.sources else name.rpartition(".")[0]
        found[source] = found.get(source, 0.0) + weight
    return found
