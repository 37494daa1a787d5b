"""Dtypes: their names in the schema, and the safetensors types that they are stored as."""

from __future__ import annotations

import functools
import re
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from sawlog.errors import SchemaError
from sawlog.store._format import _parse

SAFETENSORS = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_SIMPLE = re.compile(r"[<|]?[A-Za-z][A-Za-z0-9_]*(\[[A-Za-z0-9/]*\])?")
_PLAIN = {*SAFETENSORS, "complex128"}


def normalize_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """Return the dtype that ``what`` is stored as: the same, little-endian.

    Raises:
        SchemaError: items have no fixed size, such as objects and variable-width strings.
    """
    found = _normalized(dtype)
    return _refused(dtype, what) if found is None else found


@functools.lru_cache(1024)
def _normalized(dtype: np.dtype) -> np.dtype | None:
    """Return the stored dtype, or None for one that cannot be stored."""
    if dtype.hasobject or dtype.kind in "OT" or _has_extension_fields(dtype):
        return None
    if dtype.names is not None and (not _has_description(dtype) or _has_odd_fields(dtype)):
        return None
    if is_extension(dtype):
        return dtype
    little = dtype.newbyteorder("<")
    return np.dtype(little.str) if little.kind in "biufc" else little  # numpy's own object


def _has_description(dtype: np.dtype) -> bool:
    """Return whether numpy can describe the fields, which must not overlap."""
    try:
        np.lib.format.dtype_to_descr(dtype)
    except ValueError:
        return False
    return True


def _refused(dtype: np.dtype, what: str) -> NoReturn:
    if dtype.hasobject or dtype.kind in "OT":
        raise SchemaError(
            f"{what} has the dtype {dtype}, whose items have no fixed size. Hint: convert it to "
            "numbers, or strings to a fixed width with np.asarray(values, dtype='U32')."
        )
    raise SchemaError(
        f"{what} has the structured dtype {dtype}, whose fields overlap, have no bytes, are not "
        "of a numpy type or have a name that is not valid Unicode. Hint: write each field under a "
        "name of its own."
    )


def _has_extension_fields(dtype: np.dtype) -> bool:
    fields = [dtype[name].base for name in dtype.names or ()]
    return any(is_extension(field) or _has_extension_fields(field) for field in fields)


def _has_odd_fields(dtype: np.dtype) -> bool:
    """Return whether a field has no bytes, or a name that is not valid Unicode.

    Rows of fields without bytes would not be bounded by their bytes.
    """
    fields = [dtype[name] for name in dtype.names or ()]
    return not all(map(_is_text, dtype.fields or ())) or any(
        not field.itemsize or _has_odd_fields(field.base) for field in fields
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_extension(dtype: np.dtype) -> bool:
    """Return whether a dtype is from ml_dtypes, such as bfloat16."""
    return dtype.type.__module__ == "ml_dtypes"


@functools.cache
def name_of(dtype: np.dtype) -> Any:
    """Return the name of a dtype in the schema, as a JSON value.

    >>> name_of(np.dtype("float32")), name_of(np.dtype("<M8[ns]")), name_of(np.dtype("S3"))
    ('float32', '<M8[ns]', '|S3')
    """
    if is_extension(dtype) or dtype.name in _PLAIN:
        return dtype.name
    return _as_lists(np.lib.format.dtype_to_descr(dtype))


def dtype_of(name: Any) -> np.dtype:
    """Return the dtype of a name: the inverse of :func:`name_of`.

    Raises:
        SchemaError: the dtype is unknown, or cannot be stored.
    """
    return _named(name) if isinstance(name, str) else _checked(name)


@functools.lru_cache(1024)
def _named(name: str) -> np.dtype:
    return _checked(name)


def _checked(name: Any) -> np.dtype:
    try:
        dtype = _unchecked(name)
        if dtype.subdtype is not None or normalize_dtype(dtype, "it") != dtype:
            raise TypeError("stores do not use it")
        return dtype
    except Exception as error:  # numpy raises many kinds of errors
        raise SchemaError(
            f"{_parse.shown(name)} is not a known dtype: {str(error)[:200]}. "
            "Hint: a newer numpy or ml_dtypes may have it."
        ) from error


def _unchecked(name: Any) -> np.dtype:
    if isinstance(name, list):
        return np.lib.format.descr_to_dtype(_as_tuples(name))
    if not isinstance(name, str):
        raise TypeError("a dtype is a string, or a list of fields")
    if not _SIMPLE.fullmatch(name):
        raise TypeError("the name has other characters than letters and digits")
    own = getattr(ml_dtypes, name, None)
    return np.dtype(own) if isinstance(own, type) else np.dtype(name)


def _as_lists(descr: Any) -> Any:
    return [_as_lists(x) for x in descr] if isinstance(descr, (list, tuple)) else descr


def _as_tuples(name: Any) -> Any:
    """Return field descriptions with tuples where JSON has lists."""
    if not isinstance(name, list):
        return name
    return [_field(field) for field in name]


def _field(field: list) -> tuple:
    title, dtype, *shape = field
    title = tuple(title) if isinstance(title, list) else title
    return (title, _as_tuples(dtype), *(tuple(s) for s in shape))


@functools.lru_cache(1024)
def stored_as(dtype: np.dtype) -> str | None:
    """Return the safetensors type, or None if the items are stored as bytes."""
    return SAFETENSORS.get(dtype.name) if dtype.names is None else None


def dtype_stored_as(stored: Any) -> np.dtype:
    """Return the dtype of a safetensors type.

    Raises:
        SchemaError: stores do not use this type.
    """
    if type(stored) is not str or stored not in _NUMPY_OF:
        raise SchemaError(f"safetensors type {_parse.shown(stored)} is not one that a store uses")
    return _NUMPY_OF[stored]


_NUMPY_OF = {stored: dtype_of(name) for name, stored in SAFETENSORS.items()}
