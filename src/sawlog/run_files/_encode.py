"""Encode rows for the store: fewer bits, and for int8 a scale for each row."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from array_api_compat import array_namespace

from sawlog._array_device import to_numpy

SCALE = ".scale"
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int8": 1}
"""The dtypes that rows can be stored in, and the bytes of an element."""


def row_bytes(elements: int, dtype: str) -> int:
    """Return the number of bytes that a row of ``elements`` takes."""
    return elements * BYTES[dtype] + (4 if dtype == "int8" else 0)


def encode(name: str, rows: Any, dtype: str) -> dict[str, np.ndarray]:
    """Encode rows ``[batch, ...]`` of any array library as columns of a store.

    ``"int8"`` is symmetric, with a scale for each row: max abs / 127. The scale of a row with an
    infinity or NaN is NaN.
    """
    if dtype == "int8":
        return _quantized(name, rows)
    if dtype == "bfloat16":
        return {name: to_numpy(rows).astype(ml_dtypes.bfloat16)}
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return {name: to_numpy(rows).astype(np.float16)}
    return {name: to_numpy(rows).astype(np.dtype(dtype), copy=False)}


def _quantized(name: str, rows: Any) -> dict[str, np.ndarray]:
    xp = array_namespace(rows)
    if rows.dtype not in (xp.float32, xp.float64):  # a scale in a smaller dtype would be too coarse
        rows = xp.astype(rows, xp.float32)
    flat = xp.reshape(rows, (rows.shape[0], -1))
    if not flat.shape[1]:
        scale = xp.zeros_like(flat[:, :0].sum(1))
    else:
        scale = xp.max(xp.abs(flat), axis=1) / 127
    finite = xp.isfinite(scale)
    safe = xp.where(finite & (scale > 0), scale, xp.ones_like(scale))
    shape = (rows.shape[0], *(1,) * (rows.ndim - 1))
    small = xp.round(
        xp.where(xp.isfinite(rows), rows, xp.zeros_like(rows)) / xp.reshape(safe, shape)
    )
    small = xp.clip(small, -127, 127)
    scale = xp.where(finite, scale, xp.full_like(scale, float("nan")))
    return {
        name: to_numpy(xp.astype(small, xp.int8)),
        name + SCALE: to_numpy(scale).astype(np.float32),
    }


def decode(columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return rows as float32, or as float64 if they are stored so."""
    rows = columns[name]
    if rows.dtype == np.int8 and name + SCALE in columns:
        scale = columns[name + SCALE]
        return rows.astype(np.float32) * scale.reshape(-1, *(1,) * (rows.ndim - 1))
    return rows.astype(np.float32 if rows.dtype != np.float64 else np.float64)
