"""Types that few programs know, as types that all of them know, without changing a value."""

from __future__ import annotations

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.store._format._dtypes import is_extension

_UNITS = {"s", "ms", "us", "ns"}  # those of Arrow, pandas and polars
_SMALLEST = np.iinfo(np.int64).max // 1000  # seconds that still fit when counted in milliseconds


def widened_dtype(dtype: np.dtype) -> np.dtype:
    """What a type of ml_dtypes is widened to; all others stay.

    >>> import ml_dtypes
    >>> widened_dtype(np.dtype(ml_dtypes.bfloat16)), widened_dtype(np.dtype(ml_dtypes.int4))
    (dtype('float32'), dtype('int8'))
    """
    if not is_extension(dtype):
        return dtype
    kind = dtype.name.rstrip("0123456789")
    return np.dtype({"int": np.int8, "uint": np.uint8}.get(kind, np.float32))


def widened(values: np.ndarray) -> np.ndarray:
    """The values in :func:`widened_dtype`: exactly the same numbers."""
    dtype = widened_dtype(values.dtype)
    if dtype == values.dtype:
        return values
    if values.dtype.name == "bfloat16":  # its bits are the upper half of a float32
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(dtype)


def time_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """The type with a unit that other programs have for dates, times and durations.

    Raises:
        ArgumentError: there is none.
    """
    unit, count = np.datetime_data(dtype)
    if unit == "generic" or (dtype.kind == "m" and unit in ("Y", "M")):
        raise ArgumentError(
            f"{what} has the dtype {dtype}, whose length in seconds nobody can tell. "
            "Hint: leave it out with names=, or export to .safetensors, which keeps the integers."
        )
    if dtype.kind == "M" and (unit, count) == ("D", 1):
        return dtype
    finer = {"ps": "ns", "fs": "ns", "as": "ns"}
    unit = unit if unit in _UNITS else finer.get(unit, "s")
    return np.dtype(f"<{dtype.kind}8[{unit}]")


def times(values: np.ndarray, what: str) -> np.ndarray:
    """Dates, times and durations in the unit of :func:`time_dtype`.

    Raises:
        ArgumentError: a value is not the same in that unit.
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
