"""Columns of a table -> texts, ids and kept fields, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from stages.readers.batches import Row, text_bytes, too_large
from stages.readers.fields import id_text, json_text
from stages.readers.record import DamagedStream, ReadSettings, Unfit
from stages.readers.template import plain_field, text_fields, text_maker


class Table:
    """The columns of one file that settings ask for.

    names   what to select: columns, or dotted paths into structs
    Raises `DamagedStream("missing-column")` if the text cannot come from a table of this schema.
    """

    def __init__(self, schema: pa.Schema, settings: ReadSettings) -> None:
        self._settings = settings
        self._fields = text_fields(settings)
        self._plain = plain_field(settings) is not None
        for field in self._fields:
            self._check(schema, field)
        self._id = settings.id if _type_of(schema, settings.id) is not None else None
        self._keep = tuple(name for name in settings.keep_meta if _type_of(schema, name) is not None)
        wanted = (*self._fields, *((self._id,) if self._id else ()), *self._keep)
        self.names = list(dict.fromkeys(wanted))
        self.roots = list(dict.fromkeys(_steps(schema, name)[0] for name in self.names))
        self._text_of = text_maker(settings)

    def _check(self, schema: pa.Schema, field: str) -> None:
        kind = _type_of(schema, field)
        if kind is None:
            twice = len(schema.get_all_field_indices(field)) > 1
            reason = "more than one column is called" if twice else "there is no column"
            names = ", ".join(schema.names[:20]) + (", …" if len(schema.names) > 20 else "")
            raise DamagedStream("missing-column", f"{reason} {field!r}; the columns are {names or 'none'}")
        if self._plain and not (_is_text(kind) or pt.is_null(kind)):
            raise DamagedStream("missing-column", f"the column {field!r} holds {kind}, not text")

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row | Unfit]:
        """One outcome per row."""
        count = batch.num_rows
        ids = [None] * count if self._id is None else _ids(_column(batch, self._id))
        metas = self._metas(batch)
        for text, user_id, meta in zip(self._texts(batch), ids, metas, strict=True):
            if isinstance(text, Unfit):
                yield text
                continue
            size = text_bytes(text)
            if size > self._settings.max_document:
                yield too_large(size, self._settings.max_document)
            else:
                yield Row(text, size, user_id, meta)

    def _texts(self, batch: pa.RecordBatch) -> Iterator[str | Unfit]:
        columns = [_values(_column(batch, field)) for field in self._fields]
        for values in zip(*columns, strict=True):
            bad = next((value for value in values if isinstance(value, Unfit)), None)
            if bad is not None:
                yield bad
            elif self._plain and type(values[0]) is str:
                yield values[0]
            else:
                try:
                    yield self._text_of(dict(zip(self._fields, values, strict=True)))
                except Unfit as unfit:
                    yield unfit

    def _metas(self, batch: pa.RecordBatch) -> Iterator[str | None] | list[None]:
        if not self._settings.keep_meta:
            return [None] * batch.num_rows
        columns = [_raw(_column(batch, name)) for name in self._keep]
        return (
            json_text({n: c[row] for n, c in zip(self._keep, columns, strict=True)})
            for row in range(batch.num_rows)
        )


def _steps(schema: pa.Schema, name: str) -> list[str]:
    """A column spelled exactly so comes before the dotted reading."""
    return [name] if name in schema.names else name.split(".")


def _type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    """The type of a column or of a field in a struct; None if it is not there, or not there once."""
    root, *inner = _steps(schema, name)
    index = schema.get_field_index(root)
    if index < 0:
        return None
    kind = schema.field(index).type
    for step in inner:
        if not pt.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return kind


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    root, *inner = _steps(batch.schema, name)
    array = batch.column(batch.schema.get_field_index(root))
    for step in inner:
        array = pc.struct_field(array, step)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _is_text(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return kind in _TEXT_TYPES or kind in _BINARY_TYPES


_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())


def _values(array: pa.Array) -> list[Any]:
    """Python values; a text that is not valid UTF-8 is an `Unfit` (Parquet does not check it)."""
    if not _is_text(array.type):
        return _raw(array)
    content = _bytes(array)
    try:
        return content.cast(pa.large_string()).to_pylist()
    except pa.ArrowInvalid:
        return [_decode(value) for value in content.to_pylist()]


def _bytes(array: pa.Array) -> pa.Array:
    """Any text or binary column as large_binary."""
    if pt.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array.cast(pa.large_binary())


def _decode(value: bytes | None) -> str | Unfit | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        return Unfit("not-utf8", f"byte {error.start} of the cell: {error.reason}")


def _raw(array: pa.Array) -> list[Any]:
    """Python values. Text that is not UTF-8 becomes hexadecimal, a nested cell with such text an `Unfit`."""
    if _is_text(array.type):
        return [_text_or_hex(value) for value in _bytes(array).to_pylist()]
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        return [_cell(array, row) for row in range(len(array))]


def _text_or_hex(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _cell(array: pa.Array, row: int) -> Any:
    try:
        return array[row].as_py()
    except UnicodeDecodeError as error:
        return Unfit("not-utf8", f"inside the cell: {error.reason}")


def _ids(array: pa.Array) -> list[str | None]:
    """The ids as strings: text as it is, other scalars as Arrow spells them, the rest as JSON."""
    if not (_is_text(array.type) or pt.is_nested(array.type) or pt.is_fixed_size_binary(array.type)):
        try:
            return array.cast(pa.string()).to_pylist()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    values = _raw(array)
    if pt.is_fixed_size_binary(array.type):
        return [None if value is None else value.hex() for value in values]
    return [value.detail if isinstance(value, Unfit) else id_text(value) for value in values]
