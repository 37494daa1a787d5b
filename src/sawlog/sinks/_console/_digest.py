"""What the console keeps of the entries of one name: a number for each, and the last of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from sawlog._format import Number
from sawlog.records import Entries
from sawlog.sinks._entries import deepened, logged, step_mask

STEP = "step"
_BLOCK = 1 << 18  # elements that are converted at a time


@dataclasses.dataclass(frozen=True)
class LastDigest:
    """The last value of one run.

    For a number, ``mean`` is the number itself. For an array, mean, standard deviation and range
    are those of its finite elements; ``size`` is how many these are, and ``odd`` how many elements
    are not finite. ``text`` is set for values that are not numbers.
    """

    mean: Number = np.nan
    std: float = 0.0
    least: Number = np.nan
    greatest: Number = np.nan
    size: int = 1
    odd: int = 0
    shape: tuple[int, ...] | None = None
    text: str | None = None


@dataclasses.dataclass(frozen=True)
class Digest:
    """Some entries of one name: a number for each, ``[n]``, and the last one."""

    name: str
    numbers: np.ndarray
    last: LastDigest
    axis: str | None
    step: Number | None


def digests(name: str, entries: Entries) -> Iterator[Digest]:
    """Yield a digest of entries: none if they are empty, two for complex numbers, otherwise one."""
    entries = logged(entries)
    if not len(entries):
        return
    axis, step = _step(entries)
    values = entries.values
    if values.dtype.kind == "c" or _is_small_complex(values.dtype):
        values = values if values.dtype.kind == "c" else values.astype(np.complex64)
        parts = {f"{name}/real": values.real, f"{name}/imag": values.imag}
    else:
        parts = {name: values}
    with np.errstate(all="ignore"):
        for part, array in parts.items():
            yield Digest(part, *_digest(array, entries.mask), axis, step)


def _digest(values: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, LastDigest]:
    if not _is_numeric(values.dtype):
        return np.zeros(0), LastDigest(text=_text(values[-1]))
    if values.ndim == 1:
        return values.astype(np.float64), _number(values[-1])
    flat = values.reshape(len(values), -1) if values.size else np.zeros((len(values), 0))
    if mask is not None and values.size:
        mask = np.broadcast_to(deepened(mask, values.ndim), values.shape).reshape(flat.shape)
    last = None if mask is None else mask[-1]
    return _means(flat, mask), _array(flat[-1], last, values.shape[1:])


def _is_small_complex(dtype: np.dtype) -> bool:
    return dtype.kind not in "biufSU" and "complex" in dtype.name  # of ml_dtypes


def _is_numeric(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" or dtype.type.__module__ == "ml_dtypes"


def _text(value: np.generic) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _number(value: np.generic) -> LastDigest:
    exact: Number = int(value) if value.dtype.kind in "biu" else float(value)
    odd = int(not np.isfinite(float(exact)))
    return LastDigest(exact, 0.0, exact, exact, size=1 - odd, odd=odd)


def _means(flat: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the mean of the finite elements of each row; NaN if a row has none."""
    means = np.full(len(flat), np.nan)
    rows = max(1, _BLOCK // max(1, flat.shape[1]))
    for start in range(0, len(flat), rows):
        block = flat[start : start + rows].astype(np.float64)
        there = np.isfinite(block)
        if mask is not None:
            there &= mask[start : start + rows]
        means[start : start + rows] = np.where(there, block, 0.0).sum(axis=1) / there.sum(axis=1)
    return means


def _array(flat: np.ndarray, mask: np.ndarray | None, shape: tuple[int, ...]) -> LastDigest:
    wide = (flat if mask is None else flat[mask]).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    odd = wide.size - finite.size
    if not finite.size:
        return LastDigest(size=0, odd=odd, shape=shape)
    least, greatest = float(finite.min()), float(finite.max())
    mean = min(max(float(finite.mean()), least), greatest)
    return LastDigest(mean, float(finite.std()), least, greatest, finite.size, odd, shape)


def _step(entries: Entries) -> tuple[str | None, Number | None]:
    """Return the axis ``step``, or the only one, and the last step on it."""
    axes = entries.steps
    axis = STEP if STEP in axes else next(iter(axes)) if len(axes) == 1 else None
    if axis is None or not _is_numeric(axes[axis].dtype) or not axes[axis][-1].size:
        return None, None
    last, mask = axes[axis][-1], step_mask(entries, axes[axis])
    last = last.ravel() if mask is None or not mask[-1].any() else last[mask[-1]].ravel()
    greatest = max(float(step) for step in last)
    if not np.isfinite(greatest):
        return None, None
    return axis, int(greatest) if greatest.is_integer() else greatest
