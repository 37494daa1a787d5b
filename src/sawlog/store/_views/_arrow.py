"""Convert numpy columns to Arrow columns, sharing the memory if Arrow has the type.

Cells with axes become nested lists of fixed size. Types that Arrow lacks are converted exactly:
bfloat16 and float8 to float32, complex numbers to a struct of ``real`` and ``imag``, structured
types to a struct of their fields, dates in other units to seconds. Types without an exact
representation (``longdouble``) are refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sawlog._optional import require
from sawlog.errors import ArgumentError
from sawlog.store._views._cells import TEXT, Cells, Field
from sawlog.store._views._widen import time_dtype, times, widened, widened_dtype

_REFUSED = "Hint: leave it out with names=[...], or export to .safetensors, which has its bytes."


def pyarrow(needed_by: str = "Arrow") -> Any:
    """Import pyarrow.

    Raises:
        MissingPackageError: it is not installed.
    """
    return require("pyarrow", "arrow", needed_by)


# -- types ----------------------------------------------------------------------------------------


def type_of(field: Field) -> Any:
    """Return the Arrow type of a field.

    Raises:
        ArgumentError: no Arrow type represents its values exactly.
    """
    pa, what = pyarrow(), repr(field.name)
    if field.shape is None:
        return pa.list_(_leaf_type(field.dtype, what))
    return _list_type(_leaf_type(field.dtype, what), field.shape)


def _list_type(leaf: Any, shape: tuple[int, ...]) -> Any:
    pa = pyarrow()
    for size in reversed(shape):  # readers do not support lists of the fixed size 0
        leaf = pa.list_(leaf, size) if size else pa.list_(leaf)
    return leaf


def _leaf_type(dtype: np.dtype, what: str) -> Any:
    pa = pyarrow()
    dtype = widened_dtype(dtype)
    if dtype == TEXT or dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    if dtype.names:
        fields = ((name, dtype.fields[name][0]) for name in dtype.names)  # type: ignore[index]
        return pa.struct(
            [(name, _list_type(_leaf_type(own.base, what), own.shape)) for name, own in fields]
        )
    if dtype.kind == "V" and dtype.itemsize and dtype.names is None:
        return pa.binary(dtype.itemsize)
    if dtype.kind in "Mm":
        return pa.from_numpy_dtype(time_dtype(dtype, what))
    if dtype in (np.complex64, np.complex128):
        part = pa.from_numpy_dtype(dtype.type(0).real.dtype)
        return pa.struct([("real", part), ("imag", part)])
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return pa.from_numpy_dtype(dtype)
    raise ArgumentError(f"{what} has the dtype {dtype}, which Arrow does not have. {_REFUSED}")


# -- arrays ---------------------------------------------------------------------------------------


def array_of(field: Field, cells: Cells) -> Any:
    """Convert cells to an Arrow array.

    Raises:
        ArgumentError: a string is not valid, or a date is out of range.
    """
    what = repr(field.name)
    if field.shape is None:
        return ragged(cells, what)
    return _nested(cells.values, cells.valid, cells.mask, what)


def ragged(cells: Cells, what: str) -> Any:
    """Convert cells of a column with several shapes: each becomes a flat list."""
    rows, shape = len(cells), cells.values.shape[1:]
    mask = cells.mask
    if mask is not None:
        mask = mask.reshape(mask.shape + (1,) * (cells.values.ndim - mask.ndim))
        mask = np.broadcast_to(mask, cells.values.shape).reshape(-1)
    child = _leaf(cells.values.reshape(-1), mask, what)
    return _list_array(child, rows, math.prod(shape), cells.valid, fixed=False)


def _nested(
    values: np.ndarray, valid: np.ndarray | None, mask: np.ndarray | None, what: str
) -> Any:
    if values.ndim == 1:
        return _leaf(values, valid, what)
    rows, size = values.shape[:2]
    inner_valid = inner_mask = None
    if mask is not None:
        inner = mask.reshape(rows * size, *mask.shape[2:])
        inner_valid, inner_mask = (inner, None) if inner.ndim == 1 else (None, inner)
    flat = values.reshape(rows * size, *values.shape[2:])
    child = _nested(flat, inner_valid, inner_mask, what)
    return _list_array(child, rows, size, valid, fixed=size > 0)


def _list_array(child: Any, rows: int, size: int, valid: np.ndarray | None, fixed: bool) -> Any:
    pa = pyarrow()
    if fixed:
        kind = pa.list_(child.type, size)
        return pa.Array.from_buffers(kind, rows, [_bits(valid)], children=[child])
    offsets = np.arange(rows + 1, dtype=np.int64) * size
    if int(offsets[-1]) > np.iinfo(np.int32).max:
        raise ArgumentError(
            f"{rows} lists of {size} items are too many at once. Hint: use a smaller budget."
        )
    buffers = [_bits(valid), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(child.type), rows, buffers, children=[child])


def _bits(valid: np.ndarray | None) -> Any:
    if valid is None:
        return None
    return pyarrow().py_buffer(np.packbits(valid, bitorder="little"))


def _leaf(values: np.ndarray, valid: np.ndarray | None, what: str) -> Any:
    """Convert an array ``[n]`` of any dtype."""
    pa, rows = pyarrow(), len(values)
    values = np.ascontiguousarray(widened(values)) if values.dtype != TEXT else values
    kind, dtype = _leaf_type(values.dtype, what), values.dtype
    if dtype == TEXT or dtype.kind in "US":
        return _texts(values, valid, kind, what)
    if dtype.names:
        parts = [_nested(values[name], None, None, what) for name in dtype.names]
        return pa.Array.from_buffers(kind, rows, [_bits(valid)], children=parts)
    if dtype.kind == "c":
        parts = [
            _leaf(np.ascontiguousarray(part), None, what) for part in (values.real, values.imag)
        ]
        return pa.Array.from_buffers(kind, rows, [_bits(valid)], children=parts)
    if dtype.kind in "Mm":
        there = ~np.isnat(values)
        if not there.all():
            valid = there if valid is None else there & valid
        values = times(values, what)
        if kind == pa.date32():
            values = _days(values, there, what)
    if dtype.kind == "b":
        values = np.packbits(values, bitorder="little")
    data = values.view(np.uint8) if values.dtype.kind in "VMm" else values
    return pa.Array.from_buffers(kind, rows, [_bits(valid), pa.py_buffer(data)])


def _days(values: np.ndarray, there: np.ndarray, what: str) -> np.ndarray:
    days = np.where(there, values.view(np.int64), 0)
    if days.size and max(int(days.max()), -int(days.min())) > np.iinfo(np.int32).max:
        raise ArgumentError(f"{what} has a date that Arrow cannot hold. {_REFUSED}")
    return days.astype(np.int32)


def _texts(values: np.ndarray, valid: np.ndarray | None, kind: Any, what: str) -> Any:
    pa = pyarrow()
    if values.dtype == TEXT and values.strides == (0,) and len(values) and valid is None:
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    missing = None if valid is None else ~valid
    try:
        return pa.array(values.tolist(), kind, mask=missing)
    except (UnicodeError, ValueError) as error:
        raise ArgumentError(f"{what} has a value that is not text: {error}. {_REFUSED}") from error
