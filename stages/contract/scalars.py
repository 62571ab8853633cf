"""Values as people write them in a config file: `140B`, `70%`, `80GiB`, `30m`, a secret, a path.

Each is a type for a field of a pydantic model. It reads the text of the file or a number, and it knows its own
JSON Schema, so that editors check the same. A number is read exactly (as a decimal) before it becomes an int or
a float. An error is of the type `expected` (the message completes "it must be ...") or `bound` (a whole clause).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

_NUMBER = r"[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]{1,3})?"
_COUNT = re.compile(rf"({_NUMBER})\s*([kKMBT]?)")
_SIZE = re.compile(rf"({_NUMBER})\s*((?:[kKMGT]i?)?B|)")
_SPAN = re.compile(rf"({_NUMBER})\s*(ms|[smhd]|)")
_SHARE = re.compile(rf"({_NUMBER})\s*(%?)")

COUNT_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SIZE_UNITS = {
    "": 1, "B": 1,
    **{f"{letter}B": 1000**power for letter, power in (("k", 1), ("K", 1), ("M", 2), ("G", 3), ("T", 4))},
    **{f"{letter}iB": 1024**power for letter, power in (("k", 1), ("K", 1), ("M", 2), ("G", 3), ("T", 4))},
}  # fmt: skip
SPAN_UNITS = {"": Decimal(1), "ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
SPAN_UNITS["d"] = Decimal(86400)

#: 2**63 - 1: positions and sizes are held in signed 64-bit integers everywhere.
LARGEST = 2**63 - 1


def read_count(value: Any) -> int:
    """A whole number >= 0 from 2000, "1_000", "2e9", "4M", "140B"."""
    return _whole(value, _COUNT, COUNT_UNITS, "a whole number such as 2000, 4M or 140B")


def read_size(value: Any) -> int:
    """Bytes from a number, "64MB" (10**6) or "80GiB" (2**30)."""
    return _whole(value, _SIZE, SIZE_UNITS, "a size such as 64MB or 80GiB, or a number of bytes")


def read_share(value: Any) -> float:
    """A share from 0 to 1, from 0.7 or "70%"."""
    expected = "a share such as 70% or 0.7"
    amount = _amount(value, _SHARE, {"": Decimal(1), "%": Decimal("0.01")}, expected)
    if not 0 <= amount <= 1:
        raise PydanticCustomError("bound", "it must be between 0 and 1, or 0% and 100%")
    return float(amount)


def read_span(value: Any) -> float:
    """Seconds from a number, "250ms", "30m", "1h", "40d" or a chain such as "1h30m"."""
    expected = "a time such as 90s, 30m, 1h or 40d"
    if isinstance(value, str) and value.strip():
        total, rest = Decimal(0), value.strip()
        while rest:
            found = _SPAN.match(rest)
            if found is None or (not found[2] and found[0] != value.strip()):
                raise PydanticCustomError("expected", expected)  # type: ignore[arg-type]
            total += _amount(found[0], _SPAN, SPAN_UNITS, expected)
            rest = rest[found.end() :].lstrip()
        return float(total)
    return float(_amount(value, _SPAN, SPAN_UNITS, expected))


def _whole(value: Any, form: re.Pattern[str], units: Mapping[str, int], expected: str) -> int:
    amount = _amount(value, form, units, expected)
    if amount != amount.to_integral_value():
        raise PydanticCustomError("expected", expected)  # type: ignore[arg-type]
    if not 0 <= amount <= LARGEST:
        raise PydanticCustomError("bound", "it must be between 0 and 2^63 - 1")
    return int(amount)


def _amount(value: Any, form: re.Pattern[str], units: Mapping[str, int | Decimal], expected: str) -> Decimal:
    """The exact number that the value stands for; a pydantic error of the type `expected` if it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        amount = Decimal(repr(value))
        if amount.is_finite():
            return amount
    elif isinstance(value, str) and (found := form.fullmatch(value.strip())):
        return Decimal(found[1].replace("_", "")) * units[found[2]]
    raise PydanticCustomError("expected", expected)  # type: ignore[arg-type]


def _scalar_schema(number: str, pattern: str, description: str, **bounds: float) -> WithJsonSchema:
    forms = [{"type": number, **bounds}, {"type": "string", "pattern": f"^{pattern}$"}]
    return WithJsonSchema({"anyOf": forms, "description": description})


_TEXT = r"[0-9][0-9_]*(\.[0-9_]+)?([eE][+-]?[0-9]+)? ?"

Count = Annotated[
    int,
    BeforeValidator(read_count),
    _scalar_schema("integer", _TEXT + "[kKMBT]?", "A whole number; k, M, B and T are 10^3 ... 10^12.", minimum=0),
]
Share = Annotated[
    float,
    BeforeValidator(read_share),
    _scalar_schema("number", _TEXT + "%?", "A share: 70% or 0.7.", minimum=0, maximum=1),
]
Size = Annotated[
    int,
    BeforeValidator(read_size),
    _scalar_schema("integer", _TEXT + "([kKMGT]i?)?B", "Bytes; MB is 10^6, MiB is 2^20.", minimum=0),
]
Span = Annotated[
    float,
    BeforeValidator(read_span),
    _scalar_schema("number", "([0-9][0-9_.]* ?(ms|s|m|h|d) ?)+", "A time: 90s, 30m, 1h, 40d.", minimum=0),
]


class Secret:
    """A value that is shown nowhere: repr, str and JSON are `***`. `reveal` gives it to the code that needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = str(value)

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    @classmethod
    def _read(cls, value: Any) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("expected", "text")
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return _plain_schema(cls._read, lambda _value, _info: "***")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "description": "A secret; it is shown nowhere."}


class FilePath(str):
    """A path or address in a config file. As a string it is absolute: relative to the folder of the file it is in.

    `written` is what stands there; that is what JSON gets. In a digest (serialization context `digest`) only `tail`
    goes: the same config in another folder, or on another machine, is the same config.
    """

    written: str

    @property
    def tail(self) -> str:
        """The part from the first component with a wildcard on; without wildcards the last component."""
        parts = [part for part in self.written.split("/") if part]
        first = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts) - 1)
        return "/".join(parts[max(0, first) :])

    @classmethod
    def at(cls, written: str, folder: str | None) -> FilePath:
        """The path `written` in a file that lies in `folder`; without a folder it stays relative."""
        absolute = written
        if "://" not in written:
            absolute = os.path.expanduser(written)
            if folder is not None:
                absolute = os.path.normpath(os.path.join(folder, absolute))
        made = cls(absolute)
        made.written = written
        return made

    @classmethod
    def _read(cls, value: Any) -> FilePath:
        if isinstance(value, FilePath):
            return value
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value:
            raise PydanticCustomError("expected", "a path")
        if "\0" in value:
            raise PydanticCustomError("bound", "a path cannot hold a NUL character")
        return cls.at(str(value), getattr(value, "folder", None))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def write(value: FilePath, info: Any) -> str:
            return value.tail if info.context and info.context.get("digest") else value.written

        return _plain_schema(cls._read, write)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


def _plain_schema(read: Callable[[Any], Any], write: Callable[[Any, Any], Any]) -> core_schema.CoreSchema:
    """A field that `read` makes and `write` turns into JSON."""
    serializer = core_schema.plain_serializer_function_ser_schema(write, info_arg=True, when_used="json")
    return core_schema.no_info_plain_validator_function(read, serialization=serializer)


#: Words before `token` and `key` that make a secret of it. `num_special_tokens` and `use_cls_token` are none.
_TOKEN_WORDS = frozenset(
    {
        "access", "api", "auth", "bearer", "bot", "github", "gitlab", "hf", "hub", "id", "login", "oauth", "personal",
        "read", "refresh", "sas", "secret", "security", "session", "user", "wandb", "write",
    }
)  # fmt: skip
_KEY_WORDS = frozenset(
    {
        "access", "account", "api", "auth", "encryption", "hf", "license", "master", "private", "secret", "service",
        "shared", "signing", "ssh", "storage", "wandb",
    }
)  # fmt: skip
_SECRET_WORDS = frozenset(
    {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey"}
)


def secret_name(key: str, inside: str | None = None) -> bool:
    """Whether the value of a key of this name is a secret; `inside` is the key that holds its mapping.

    Goes by the words of the name: `api_key`, `secretAccessKey`, `hub_token`, `password`; a bare `key` or `token` only
    as such, and `key` only inside of `storage_options`.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    parts = [part for part in re.split(r"[^a-z0-9]+", words) if part]
    if not parts:
        return False
    last, before = parts[-1], set(parts[:-1])
    if last in _SECRET_WORDS or (last == "value" and before & _SECRET_WORDS):
        return True
    if last == "token":
        return not before or bool(before & _TOKEN_WORDS)
    if last == "key":
        return bool(before & _KEY_WORDS) or (not before and inside == "storage_options")
    return "".join(parts) in {"connectionstring", "sastoken", "signature"} and inside == "storage_options"


def _read_option(value: Any, secret: bool) -> Any:
    """A storage option: text under a secret name is a Secret; other text is read as YAML 1.2 would."""
    if isinstance(value, Mapping):
        return {str(k): _read_option(v, secret or secret_name(str(k), "storage_options")) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_read_option(item, secret) for item in value]
    if not isinstance(value, str):
        return value
    if secret:
        return Secret(value)
    if getattr(value, "quoted", False):
        return str(value)
    if value in {"true", "True", "false", "False"}:
        return value in {"true", "True"}
    if re.fullmatch(r"[+-]?[0-9]+", value):
        return int(value)
    if re.fullmatch(r"[+-]?[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?", value):
        return float(value)
    return str(value)


def _read_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("expected", "a mapping (`key: value` lines)")
    options: dict[str, Any] = _read_option(value, False)
    return options


def _hide(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hide(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hide(item) for item in value]
    return "***" if isinstance(value, Secret) else value


def reveal(options: Any) -> Any:
    """The storage options with every secret as its text, for the file system library and nothing else."""
    if isinstance(options, dict):
        return {key: reveal(item) for key, item in options.items()}
    if isinstance(options, list):
        return [reveal(item) for item in options]
    return options.reveal() if isinstance(options, Secret) else options


class StorageOptions(dict[str, Any]):
    """What a file system (fsspec) needs to open addresses. Values under secret names are `Secret`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return _plain_schema(lambda value: cls(_read_options(value)), lambda value, _info: _hide(dict(value)))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "object"}
