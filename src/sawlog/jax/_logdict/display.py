"""Print logs: the repr of a logdict, and the lines of ``tap``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sawlog._format import count, shortened
from sawlog._html import html_table
from sawlog._text import printable_name
from sawlog._trend import sparkline
from sawlog.jax import _compat
from sawlog.jax._core.arrays import is_elsewhere, is_plain
from sawlog.jax._logdict.entries import LogdictPart, stack
from sawlog.jax._logdict.lanes import over_lanes, statistic

_SHOWN = 3
_ROWS = 50  # keys in a notebook
_LANES_SHOWN = 4
_BLOCKS = 16  # of a trend
_LONG = 160  # characters of values
_NAME = 100  # characters of names


def describe(parts: list[LogdictPart]) -> str:
    """Return one line per key: its type, its values, its steps."""
    if not parts:
        return "logdict: empty"
    rows = [(_name(p.slot.key), _types(p), _values(p), _steps(p)) for p in parts]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["logdict:"]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(("  " + "  ".join((*cells, row[3]))).rstrip())
    return "\n".join(lines)


def describe_html(parts: list[LogdictPart]) -> str:
    """Return the same as a small table for notebooks, with the trends of numbers."""
    if not parts:
        return html_table("logdict: empty", (), [])
    head = ("key", "type", "values", "steps", "trend")
    rows = [(_name(p.slot.key), _types(p), _values(p), _steps(p), _trend(p)) for p in parts[:_ROWS]]
    kept = 5 if any(row[4] for row in rows) else 4
    note = f"and {len(parts) - _ROWS:,} more keys" if len(parts) > _ROWS else ""
    title = f"logdict: {count(len(parts), 'key')}"
    return html_table(title, head[:kept], [row[:kept] for row in rows], whole=(3, 4), note=note)


def _trend(part: LogdictPart) -> str:
    """Draw the entries of a number, the mean of all lanes; return nothing for anything else."""
    leaves = jax.tree.leaves(part.value)
    if len(leaves) != 1 or not part.stacked or part.mask is not None or not _is_number(leaves[0]):
        return ""
    values = np.asarray(leaves[0]).astype(np.float64)
    if values.ndim != part.outer + 1 + part.slot.batch or values.shape[part.outer] < 2:
        return ""
    lanes = tuple(axis for axis in range(values.ndim) if axis != part.outer)
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = np.array_split(values.mean(lanes), min(_BLOCKS, values.shape[part.outer]))
        return sparkline([float(piece.mean()) for piece in pieces])


def line(logs: Any) -> str:
    """Return one log call as one line, as ``tap`` prints it."""
    steps = {}
    for name, by_key in logs.steps.items():
        steps[name] = _short(_collapse(next(iter(by_key.values()))))
    head = "".join(f"[{printable_name(name)} {value}] " for name, value in steps.items())
    return head + "  ".join(
        f"{printable_name(key)}={_tree_text(value)}" for key, value in logs.items()
    )


def _shared(step: Any, part: LogdictPart) -> Any:
    """Return the steps of one lane if all lanes have the same, and otherwise all steps."""
    if _compat.is_tracer(step) or isinstance(step, jax.ShapeDtypeStruct) or part.mask is not None:
        return step
    if not jax.tree.leaves(part.value):
        return step
    lanes = (*range(part.outer), *range(part.outer + int(part.stacked), np.ndim(step)))
    if is_elsewhere(step):
        return step
    array = np.asarray(step)
    if not lanes or not array.size:
        return step
    least = array.min(axis=lanes)
    return least if np.array_equal(least, array.max(axis=lanes)) else step


def _collapse(step: Any) -> Any:
    """Return one number if all lanes are at the same step."""
    flat = np.unique(np.asarray(step))
    return flat[0] if flat.size == 1 else step


def _name(name: object) -> str:
    return shortened(printable_name(name), _NAME)


def _types(part: LogdictPart) -> str:
    leaves = jax.tree.leaves(part.value)
    texts = [_type(leaf) for leaf in leaves[:2]]
    return ", ".join(texts) + (f" +{len(leaves) - 2}" if len(leaves) > 2 else "")


def _type(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _values(part: LogdictPart) -> str:
    leaves = jax.tree.leaves(part.value)
    if len(leaves) != 1:
        return f"pytree of {len(leaves)} arrays"
    return _of_lanes(part) or _summary(leaves[0])


def _summary(leaf: Any) -> str:
    """Return the first and last elements, or mean and range where these would be a long text."""
    text = _short(leaf)
    if len(text) <= _LONG or not _is_number(leaf):
        return text
    array = np.asarray(leaf).astype(np.float64)
    finite = array[np.isfinite(array)]
    odd = array.size - finite.size
    more = f", {odd:,} not finite" if odd else ""
    if not finite.size:
        return f"{odd:,} values, none finite"
    low, high = _short(finite.min()), _short(finite.max())
    return f"mean {_short(finite.mean())}, from {low} to {high}{more}"


def _of_lanes(part: LogdictPart) -> str:
    """Summarize the last entry of many lanes: their number, mean, minimum and maximum."""
    if not jax.tree.leaves(part.value) or not _is_number(part.first):
        return ""
    wide = stack(part)
    entries = wide.first.shape[wide.outer]
    lanes = int(np.prod(wide.first.shape[: wide.outer + 1 + wide.slot.batch])) // max(1, entries)
    if lanes <= _LANES_SHOWN or not entries:
        return ""
    found = [over_lanes(wide, statistic(x), "repr").value for x in ("mean", "min", "max")]
    if not len(found[0]):
        return f"{lanes} lanes, none of which logged it"
    if np.ndim(found[0]) > 1:
        return ""
    middle, low, high = (_short(values[-1]) for values in found)
    return f"{lanes} lanes, last: mean {middle}, from {low} to {high}"


def _is_number(leaf: Any) -> bool:
    known = not _compat.is_tracer(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)
    return (
        known
        and not is_elsewhere(leaf)
        and hasattr(leaf, "dtype")
        and is_plain(leaf)
        and leaf.dtype.kind in "fiub"
    )


def _tree_text(value: Any) -> str:
    if jax.tree_util.all_leaves([value]):
        return _short(value)
    return str(jax.tree.map(_Verbatim, value))


class _Verbatim:
    def __init__(self, value: Any) -> None:
        self._text = _short(value)

    def __repr__(self) -> str:
        return self._text


def _short(array: Any) -> str:
    if _compat.is_tracer(array) or isinstance(array, jax.ShapeDtypeStruct):
        return "traced"
    if is_elsewhere(array):
        return "on the devices of several processes"
    if _compat.key_kind(getattr(array, "dtype", np.dtype(float))) is not None:
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return np.array2string(
        array, precision=4, threshold=2 * _SHOWN, edgeitems=_SHOWN, separator=", "
    ).replace("\n", "")


def _steps(part: LogdictPart) -> str:
    texts = []
    for name, array in zip(part.slot.steps, part.steps, strict=True):
        texts.append(f"{_name(name)} {_short(_shared(array, part))}")
    if part.mask is not None:
        texts.append("some entries may be missing: see logs.mask")
    return "; ".join(texts)
