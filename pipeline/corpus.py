"""What corpus.yaml may say: its model, the relations between its parts, its JSON Schema.

`load_corpus` gives a `Corpus` or raises SpecError with everything that is wrong. Types and unknown keys are found by
pydantic; relations (a mix that names a source that is not there) are checked on the tree itself, so they are found even
where a type is wrong elsewhere. What the design has and nobody has built yet is refused at its line, never ignored.

Stages are pydantic models of their own modules, which import pyarrow and numba: they are imported only inside of
functions, when a file that names them is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema
from pydantic_core import PydanticCustomError

from pipeline.relations import relation_problems
from pipeline.trained import trainer_problems
from stages.contract.config import (
    Count,
    FilePath,
    Model,
    Share,
    Size,
    StorageOptions,
    draft7,
    json_schema,
    load_tree,
    validate,
)  # fmt: skip
from stages.contract.names import canonical_json, digest
from stages.contract.problem import Problem, SpecError, Where, in_order
from stages.contract.tree import Items, Path, Table, Text, leaves, path_text, place
from stages.contract.weights import Phase, Weight
from stages.contract.wrong import name_repairs
from stages.tokenizer.patterns import PatternName

if TYPE_CHECKING:
    from stages.readers.record import ReadSettings

#: What is done when a file has no `stages`: nothing that needs a judgement about content, and what everybody wants.
DEFAULT_STAGES = ("normalize", "exact-dedup", "minhash-dedup", "pii")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | os.PathLike) else value


def _address(value: str) -> str:
    if value in {"local", "cluster"} or re.fullmatch(r"\[?[\w.:-]+\]?:[0-9]{1,5}", value) or value.startswith("ray://"):
        return value  # ray:// gets a problem of its own, with what to do instead
    raise PydanticCustomError("expected", "`local`, `cluster` or host:port")


_ONE = {"type": "string", "minLength": 1}
Paths = Annotated[
    tuple[FilePath, ...],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_ONE, {"type": "array", "minItems": 1, "items": _ONE}]}),
]


class Source(Model):
    """A set of files whose records become documents."""

    path: Annotated[
        Paths, Field(description="A glob, a folder, a file, or an fsspec address (s3://...); or a list of them.")
    ]
    format: Annotated[
        Literal["jsonl", "json", "parquet", "arrow", "text", "lines", "tree", "warc", "wet", "html"] | None,
        Field(description="How the files are read. Left out: by the name of each file."),
    ] = None
    text: Annotated[
        str | None,
        Field(description='The field with the text, or a template such as "{title}\\n\\n{body}". Default: text.'),
    ] = None
    messages: Annotated[
        Literal["chatml", "llama3", "plain"] | None,
        Field(description="The records are chats: write their messages in this form."),
    ] = None
    id: Annotated[
        str, Field(description="The field with your own id. It is carried along and never the identity.")
    ] = "id"
    keep_meta: Annotated[tuple[str, ...], Field(description="Fields that are carried along as metadata.")] = ()
    license: Annotated[str | None, Field(description="Written into the manifest.")] = None
    priority: Annotated[
        int, Field(description="Which source keeps a document that two hold: the higher priority.", ge=-1000, le=1000)
    ] = 0
    encoding: Annotated[
        Literal["utf-8", "auto"],
        Field(description="Of format: text. auto: what is not UTF-8 is told by statistics (web extra)."),
    ] = "utf-8"
    on_damaged: Annotated[
        Literal["skip", "stop", "keep-good-part"],
        Field(description="What to do with a file that breaks off: leave it out, stop, or keep what could be read."),
    ] = "skip"
    max_document: Annotated[
        Size, Field(description="A text of more bytes is rejected and counted.", gt=0)
    ] = 64 * 2**20
    storage_options: Annotated[
        StorageOptions, Field(description="For the file system (fsspec): endpoint, keys ... Secrets are shown nowhere.")
    ] = StorageOptions()

    def settings(self, name: str) -> ReadSettings:
        """How a reader makes documents of this source, whose name is given."""
        from stages.readers.record import ReadSettings
        from stages.storage.access import Access

        same = ("format", "text", "messages", "id", "keep_meta", "encoding", "on_damaged", "max_document")
        access = Access.to(self.path, self.storage_options)
        return ReadSettings(source=name, access=access, **{field: getattr(self, field) for field in same})


class Buckets(Model):
    """A source written as tiers of a column, so that phases can weight them."""

    by: Annotated[str, Field(description="The column, such as quality.edu.")]
    quantiles: Annotated[tuple[Share, ...] | None, Field(description="Cuts as shares of the source.")] = None
    edges: Annotated[tuple[float, ...] | None, Field(description="Cuts as values of the column.")] = None


class Tokenizer(Model):
    """The tokenizer: trained on the kept documents, or one that is there already."""

    path: Annotated[FilePath | None, Field(description="A tokenizer.json to use; then nothing is trained.")] = None
    vocab_size: Annotated[
        Count, Field(description="Size of the vocabulary, special tokens included. Up to 65,536 takes 2 bytes a token.",
                     ge=257, le=2**31 - 1)
    ] = 32_768  # fmt: skip
    train_on: Annotated[Size, Field(description="How much text to train on.", gt=0)] = 2**30
    train_mix: Annotated[
        dict[str, Weight] | None, Field(description="Shares of the sources in that text. Left out: `mix`, or by bytes.")
    ] = None
    pattern: Annotated[
        PatternName | None,
        Field(description="How text is cut before merges. Left out: llama3, which is that of gpt4."),
    ] = None
    digits: Annotated[
        int | None, Field(description="Most digits in one token; left out: as the pattern has it.", ge=1, le=3)
    ] = None
    split_han: Annotated[bool, Field(description="Whether Han characters never share a token with others.")] = False
    special_tokens: Annotated[
        tuple[str, ...] | None,
        Field(description="Tokens that text never becomes; the first ends documents. Left out: <|endoftext|>.", min_length=1),
    ] = None
    eos: Annotated[
        str | None, Field(description="The token that ends documents, where `path` has it under an unusual name.")
    ] = None


class Holdout(Model):
    """Documents of each source that are never trained on."""

    share: Annotated[Share, Field(description="Share of the documents of each source; 0 holds nothing out.")] = 0.005
    max_documents: Annotated[Count, Field(description="At most so many documents of each source.")] = 5_000


class Packing(Model):
    """Rows of a fixed length, made at build."""

    lengths: Annotated[tuple[Count, ...], Field(description="Sequence lengths to pack rows for.")] = ()


class MaterializedSize(Model):
    """How long the mixed shards are, and how often a source may be read for them."""

    tokens: Annotated[Count, Field(description="Tokens of the mixed shards.", gt=0)]
    repeat_limit: Annotated[
        float | None, Field(description="How often any source may be read at most.", gt=0)
    ] = None
    repeat_limits: Annotated[
        dict[str, float], Field(description="The same for single sources; wins over repeat_limit.")
    ] = {}


class Materialized(Model):
    """Mixed shards that any trainer reads front to back."""

    materialized: MaterializedSize


class Output(Model):
    """Where the corpus goes, and its form."""

    path: Annotated[FilePath, Field(description="The folder of the corpus.")]
    layout: Annotated[
        Literal["memmap", "arrow"], Field(description="memmap: raw tokens and an index. arrow: a record a document.")
    ] = "memmap"
    shard_tokens: Annotated[Count, Field(description="Tokens of one shard.", ge=1024)] = 128_000_000
    packing: Annotated[Packing, Field(description="Rows to make at build; more later by `pipeline pack`.")] = Packing()
    mixture: Annotated[
        Literal["by-source"] | Materialized,
        Field(description="by-source: shards per source, the trainer mixes. Or materialized: {tokens: 20B}."),
    ] = "by-source"


class Run(Model):
    """Where and how wide it runs. Nothing here can change a byte of the output."""

    address: Annotated[
        str,
        AfterValidator(_address),
        Field(description="local: embedded Ray. cluster: the one of RAY_ADDRESS. Or host:port."),
    ] = "local"
    workers: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)], Field(description="Tasks at a time; auto: one per CPU.")
    ] = "auto"


class Corpus(Model):
    """A corpus: sources, the stages they go through, tokenizer, mixture, output."""

    name: Annotated[str, Field(description="The name of the corpus, for the manifest and for you.", min_length=1)]
    seed: Annotated[int, Field(description="Decides every draw: sample, holdout, order.", ge=0, lt=2**63)] = 0
    sources: Annotated[
        dict[str, Source], Field(description="By name: letters, digits, `_` and `-`, no dot.", min_length=1)
    ]
    stages: Annotated[
        tuple[Any, ...],
        Field(description=f"What documents go through, from top to bottom. Left out: {', '.join(DEFAULT_STAGES)}."),
    ] = ()
    buckets: Annotated[dict[str, Buckets], Field(description="Sources to be written as quality tiers.")] = {}
    tokenizer: Annotated[
        Tokenizer, Field(description="Left out: byte-level BPE with 32,768 tokens, trained on the kept documents.")
    ] = Tokenizer()
    mix: Annotated[
        dict[str, Weight] | None,
        Field(description="Token weights of the sources, for the manifest. Left out: by their tokens."),
    ] = None
    phases: Annotated[tuple[Phase, ...], Field(description="Default curriculum, as in plan.yaml.")] = ()
    holdout: Annotated[Holdout, Field(description="What is kept back for evaluation.")] = Holdout()
    output: Output
    run: Run = Run()

    _tree: Table = PrivateAttr(default_factory=Table)
    _file: str = PrivateAttr(default="")
    _default_stages: bool = PrivateAttr(default=False)

    @property
    def file(self) -> str:
        """The path of the file as it was given."""
        return self._file

    @property
    def default_stages(self) -> bool:
        """Whether the file names no stages, so that the default ones run; `plan` says so."""
        return self._default_stages

    @property
    def tree(self) -> Table:
        """The file as it was read, with `extends` and `--set` in it and the place of every value."""
        return self._tree

    def where(self, path: Path, key: bool = False) -> Where | None:
        """The place of a value (or its key) in the file; of what is above it if it was not given."""
        return place(self._tree, path, key)

    @property
    def origins(self) -> dict[str, Where]:
        """The place of every value that was given, by its path as text (`sources.web.path`)."""
        return {path_text(path): at for path, _ in leaves(self._tree) if (at := place(self._tree, path))}

    def resolved(self) -> dict[str, Any]:
        """All settings as plain JSON values, defaults included, secrets as `***`, paths as written."""
        return self._dump(None)

    def config_digest(self) -> str:
        """SHA-256 of all that can change the output.

        `run`, `output.path` and `storage_options` are left out; of paths only the part behind the folder goes in.
        """
        settings = self._dump({"digest": True})
        del settings["run"], settings["output"]["path"]
        for source in settings["sources"].values():
            del source["storage_options"]
        return digest("corpus", canonical_json(settings))

    def _dump(self, context: dict[str, Any] | None) -> dict[str, Any]:
        settings = self.model_dump(mode="json", by_alias=True, context=context, exclude={"stages"})
        settings["stages"] = [
            {stage.name: stage.model_dump(mode="json", by_alias=True, context=context)} for stage in self.stages
        ]
        return settings


def load_corpus(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Corpus:
    """The corpus that a file describes. `overrides` are the texts behind `--set`.

    The paths in it are absolute, taken from the folder of the file they stand in. SpecError with all problems.
    """
    tree, problems = load_tree(path, overrides)
    given = Table({key: value for key, value in tree.items() if key != "stages"})
    given.where, given.keys_at = tree.where, tree.keys_at
    corpus, wrong = validate(given, Corpus)
    stages, stage_problems = _stages(tree)
    problems += [*wrong, *stage_problems, *relation_problems(tree)]
    if corpus is not None:
        problems += [*_template_problems(corpus, tree), *trainer_problems(corpus, tree)]
    if corpus is None or any(problem.severity == "error" for problem in problems):
        raise SpecError(*in_order(problems))
    loaded = corpus.model_copy(update={"stages": stages})
    loaded._tree, loaded._file = tree, os.fspath(path)
    loaded._default_stages = "stages" not in tree
    return loaded


def _template_problems(corpus: Corpus, tree: Table) -> list[Problem]:
    """Templates of texts that cannot be meant: a brace without its partner, a field without a name."""
    from stages.readers.template import text_fields

    problems = []
    for name, source in corpus.sources.items():
        try:
            text_fields(source.settings(name))
        except ValueError as error:
            problems.append(Problem("C005", f"sources.{name}.text: {error}", place(tree, ("sources", name, "text"))))
    return problems


def _stages(tree: Table) -> tuple[tuple[Any, ...], list[Problem]]:
    """The stages as instances of their classes, and what is wrong with them."""
    from stages.stage import stage_class

    if "stages" not in tree:
        return tuple(stage_class(name)() for name in DEFAULT_STAGES), []
    listed = tree["stages"]
    if not isinstance(listed, Items):
        message = "stages must be a list: `- normalize`, or `- language: {keep: [zh, en]}` with settings"
        repairs = ("write stages: [] for none, or remove the key for the default ones",) if listed is None else ()
        return (), [Problem("C004", message, place(tree, ("stages",)), repairs)]
    made: list[Any] = []
    problems: list[Problem] = []
    for index, item in enumerate(listed):
        stage, wrong = _one_stage(tree, index, item)
        made.append(stage)
        problems += wrong
    return tuple(made), [*problems, *_column_problems(tree, made)]


def _column_problems(tree: Table, stages: Sequence[Any]) -> list[Problem]:
    """Columns that settings of a stage name and no stage before it adds."""
    problems = []
    for index, stage in enumerate(stages):
        for column in stage.wants() if stage is not None else ():
            if any(column in other.adds() for other in stages[:index] if other is not None):
                continue
            later = next((other.name for other in stages[index:] if other is not None and column in other.adds()), None)
            message = f"{stage.name} needs the column `{column}`, which " + (
                f"{later} adds only later" if later else "no stage adds"
            )
            repairs = (f"put {later} before {stage.name}",) if later else ()
            problems.append(Problem("C015", message, place(tree, ("stages", index, stage.name)), repairs))
    return problems


def _one_stage(tree: Table, index: int, item: Any) -> tuple[Any, list[Problem]]:
    """One item of `stages`: a name, or a mapping of a name to its settings."""
    at: Path = ("stages", index)
    if isinstance(item, Text):
        name, settings, where = str(item), None, item.where
    elif isinstance(item, Table) and len(item) == 1:
        name, settings = next(iter(item.items()))
        where, at = item.keys_at[name], (*at, name)
    else:
        message = f"{path_text(at)} must be the name of a stage, or one name with its settings: `- pii: {{replace: tag}}`"
        repairs = ("indent the settings below the name of the stage",) if isinstance(item, Table) else ()
        return None, [Problem("C004", message, place(tree, at), repairs)]
    found, problem = _class_of(name, where)
    if problem is not None:
        return None, [problem]
    if settings is not None and not isinstance(settings, Table):
        message = f"{path_text(at)} must be a mapping of settings (`key: value`)"
        return None, [Problem("C004", message, place(tree, at))]
    stage, problems = validate(tree, found, at if isinstance(item, Table) else ("stages", index, name))
    if stage is not None:
        problems = [Problem("C015", f"{name}: {sentence}", where) for sentence in stage.problems()]
        stage = stage.simplest()
    return stage, problems


def _class_of(name: str, where: Where) -> tuple[Any, Problem | None]:
    """The class of a stage, or what is wrong with its name."""
    from stages.stage import PLANNED, REGISTRY, stage_class

    if name in PLANNED:
        return None, Problem("C009", f"the stage {name} is not built yet", where, ("remove it from stages",))
    try:
        return stage_class(name), None
    except KeyError:
        repairs = name_repairs(name, [*REGISTRY, *PLANNED], "stages")
        return None, Problem("C008", f"there is no stage called `{name}`", where, repairs)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return None, Problem("C008", f"the stage {name} cannot be loaded: {error}", where)


def corpus_schema() -> dict[str, Any]:
    """JSON Schema (draft 7) of corpus.yaml for editors, with the settings of every stage."""
    from stages.stage import PLANNED, REGISTRY, stage_class

    schema = json_schema(Corpus)
    definitions = schema.setdefault("definitions", {})
    named: dict[str, Any] = {}
    for name in REGISTRY:
        stage = stage_class(name)
        own = draft7(stage.model_json_schema(by_alias=True))
        definitions |= own.pop("definitions", {})
        summary = (stage.__doc__ or "").strip().split("\n\n")[0]
        named[name] = {"description": " ".join(summary.split()), "anyOf": [own, {"type": "null"}]}
    named |= {name: {"description": "Not built yet.", "not": {}} for name in PLANNED}
    bare = {"type": "string", "anyOf": [{"enum": list(REGISTRY)}, {"pattern": "^[\\w.]+:\\w+$"}]}
    single = {
        "type": "object",
        "properties": named,
        "patternProperties": {"^[\\w.]+:\\w+$": {"type": ["object", "null"]}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    described = schema["properties"]["stages"]["description"]
    schema["properties"]["stages"] = {
        "description": described, "type": "array", "items": {"anyOf": [bare, single]},
    }  # fmt: skip
    return schema
