"""Convert rare dtypes to common ones without changing a value."""

from __future__ import annotations

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.store._format._dtypes import is_extension

_UNITS = {"s", "ms", "us", "ns"}  # of Arrow, pandas and polars
_SMALLEST = np.iinfo(np.int64).max // 1000  # seconds that still fit when counted in milliseconds


def widened_dtype(dtype: np.dtype) -> np.dtype:
    """Return the common dtype for one of ml_dtypes; others are returned as they are.

    >>> import ml_dtypes
    >>> widened_dtype(np.dtype(ml_dtypes.bfloat16)), widened_dtype(np.dtype(ml_dtypes.int4))
    (dtype('float32'), dtype('int8'))
    """
    if not is_extension(dtype):
        return dtype
    kind = dtype.name.rstrip("0123456789")
    return np.dtype({"int": np.int8, "uint": np.uint8}.get(kind, np.float32))


def widened(values: np.ndarray) -> np.ndarray:
    """Convert values to :func:`widened_dtype`, exactly."""
    dtype = widened_dtype(values.dtype)
    if dtype == values.dtype:
        return values
    if values.dtype.name == "bfloat16":  # its bits are the upper half of a float32
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(dtype)


def time_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """Return the dtype of dates, times or durations with a unit that other programs have.

    Raises:
        ArgumentError: the unit has no fixed length.
    """
    unit, count = np.datetime_data(dtype)
    if unit == "generic" or (dtype.kind == "m" and unit in ("Y", "M")):
        raise ArgumentError(
            f"{what} has the dtype {dtype}, whose unit has no fixed length. "
            "Hint: leave it out with names=, or export to .safetensors, which keeps the integers."
        )
    if dtype.kind == "M" and (unit, count) == ("D", 1):
        return dtype
    finer = {"ps": "ns", "fs": "ns", "as": "ns"}
    unit = unit if unit in _UNITS else finer.get(unit, "s")
    return np.dtype(f"<{dtype.kind}8[{unit}]")


def times(values: np.ndarray, what: str) -> np.ndarray:
    """Convert dates, times and durations to the unit of :func:`time_dtype`.

    Raises:
        ArgumentError: a value cannot be represented exactly.
    """
    dtype = time_dtype(values.dtype, what)
    out = values.astype(dtype, copy=False)
    there = ~np.isnat(values)
    same = out.astype(values.dtype, copy=False) == values
    if np.datetime_data(dtype)[0] == "s":
        same = same & (np.abs(out.view(np.int64)) <= _SMALLEST)
    if not bool(same[there].all()):
        bad = values[there & ~same][0]
        raise ArgumentError(
            f"{what} has the value {bad!r}, which {dtype} cannot hold exactly. "
            "Hint: leave it out with names=, or export to .safetensors, which keeps the integers."
        )
    return out
