"""Curves in the terminal, drawn with dots of braille characters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from rich.text import Text

from sawlog._format import number, shortened
from sawlog._text import printable_name
from sawlog.inspect import Curve

_HEIGHT = 12  # lines
_WIDEST = 110
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def draw(
    name: str, curves: Mapping[str, Curve], width: int, log: bool = False, unicode: bool = True
) -> Text:
    """Return a chart of the curves of one name, one for each run."""
    margin, columns = 11, max(10, min(width, _WIDEST) - 12)
    scaled = {label: _scaled(curve, log) for label, curve in curves.items()}
    steps = np.concatenate([x for x, _ in scaled.values()])
    values = np.concatenate([y for _, y in scaled.values()])
    text = Text(printable_name(name), style="bold")
    if not len(values):
        return text.append("  no finite value" + (" above 0" if log else ""), style="not bold")
    left, right, low, high = steps.min(), steps.max(), values.min(), values.max()
    cells = np.zeros((_HEIGHT, columns), int)
    owner = np.zeros((_HEIGHT, columns), int)
    for at, (x, y) in enumerate(scaled.values()):
        _dot(cells, owner, at, _share(x, left, right), _share(y, low, high))
    ends = (high, low)
    labels = {0: ends[0], _HEIGHT - 1: ends[1]}
    for line in range(_HEIGHT):
        value = labels.get(line)
        shown = "" if value is None else number(float(10**value if log else value))
        text.append(f"\n{shown:>{margin - 1}} ", style="not bold dim")
        for column in range(columns):
            bits = int(cells[line, column])
            mark = (chr(0x2800 + bits) if unicode else "*") if bits else " "
            text.append(mark, style=f"not bold {_COLOURS[owner[line, column] % len(_COLOURS)]}")
    axis = printable_name(next(iter(curves.values())).axis or "entry")
    foot = f"{axis} {number(float(left))}"
    end = number(float(right))
    gap = " " * max(1, columns - len(foot) - len(end))
    text.append(f"\n{'':>{margin}}{foot}{gap}{end}", style="not bold dim")
    if len(curves) > 1:
        text.append(f"\n{'':>{margin}}", style="not bold")
        for at, label in enumerate(list(curves)[:12]):
            shown = shortened(printable_name(label), 30) + "  "
            text.append(shown, style=f"not bold {_COLOURS[at % len(_COLOURS)]}")
        if len(curves) > 12:
            text.append(f"and {len(curves) - 12} more", style="not bold dim")
    return text


def _scaled(curve: Curve, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the points that can be drawn; values as logarithms if ``log``."""
    kept = np.isfinite(curve.mean) & ((curve.mean > 0) | (not log))
    values = curve.mean[kept]
    return curve.steps[kept], np.log10(values) if log else values


def _share(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.full(len(values), 0.5) if high <= low else (values - low) / (high - low)


def _dot(
    cells: np.ndarray, owner: np.ndarray, curve: int, across: np.ndarray, up: np.ndarray
) -> None:
    lines, columns = cells.shape
    x = np.rint(across * (2 * columns - 1)).astype(int)
    y = np.rint((1 - up) * (4 * lines - 1)).astype(int)
    if len(x) > 1:  # fill the way from one point to the next
        fine = np.arange(x[0], x[-1] + 1)
        y, x = np.rint(np.interp(fine, x, y)).astype(int), fine
    before = np.append(y[:1], y[:-1])
    for place, height, last in zip(x.tolist(), y.tolist(), before.tolist(), strict=True):
        way = 1 if height >= last else -1
        for each in range(height, last, -way) if height != last else (height,):
            cells[each // 4, place // 2] |= _BITS[each % 4][place % 2]
            owner[each // 4, place // 2] = curve
