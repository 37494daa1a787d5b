"""Plot logs: one panel per name, over a step axis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sawlog import _figures
from sawlog.errors import ArgumentError
from sawlog.jax._logdict import lanes
from sawlog.jax._logdict.entries import LogdictPart, check_known, stack

_COLUMNS = 3


def plot(
    parts: Sequence[LogdictPart], x: str | None = None, path: str | os.PathLike[str] | None = None
) -> Any:
    """Draw every name whose entries are single numbers; see :meth:`sawlog.logdict.plot`."""
    check_known(parts, "draw them")
    curves = [part for part in parts if _is_curve(part)]
    if not curves:
        raise ArgumentError(
            "No name has entries that are single real numbers, so there is no curve to draw. Hint: "
            "log numbers in a loop, or reduce arrays first."
        )
    across = min(_COLUMNS, len(curves))
    down = -(-len(curves) // across)
    figure = _figures.new_figure(4 * across, 2.8 * down, "logs.plot()")
    panels = figure.subplots(down, across, squeeze=False).reshape(-1)
    for panel, part in zip(panels, curves, strict=False):
        _draw(panel, part, x)
    for panel in panels[len(curves) :]:
        panel.remove()
    if path is not None:
        _figures.save(figure, path)
    return figure


def _is_curve(part: LogdictPart) -> bool:
    """Return whether an entry is one real number."""
    if not jax.tree_util.all_leaves([part.value]) or not part.stacked:
        return False
    own = np.ndim(part.value) - part.outer - 1 - part.slot.batch
    return own == 0 and np.asarray(part.value).dtype.kind in "fiubV"


def _draw(panel: Any, part: LogdictPart, x: str | None) -> None:
    panel.set_title(_figures.label(part.slot.key), fontsize="medium")
    middle = lanes.over_lanes(part, lanes.statistic("mean"), "plot")
    at, label = _abscissa(middle, x)
    values = np.asarray(stack(middle).value, np.float64)
    panel.set_xlabel(_figures.label(label))
    if not lanes.has_lanes(part):
        panel.plot(at, values)
        return
    low, high = (
        np.asarray(lanes.over_lanes(part, lanes.quantile(q), "plot").value) for q in (0.1, 0.9)
    )
    panel.plot(at, values, label="mean")
    panel.fill_between(at, low, high, alpha=0.25, linewidth=0, label="10 to 90 % of lanes")
    panel.legend(fontsize="x-small")


def _abscissa(part: LogdictPart, x: str | None) -> tuple[np.ndarray, str]:
    """Return the x values: the chosen step axis, the first one, or the entry number."""
    steps = dict(zip(part.slot.steps, part.steps, strict=True))
    if x is not None and x not in steps:
        known = ", ".join(map(repr, steps)) or "none"
        raise ArgumentError(f"{part.slot.key!r} has no step axis {x!r}; it has {known}.")
    name = x or next(iter(steps), None)
    if name is None or np.ndim(steps[name]) != 1:
        return np.arange(len(np.asarray(part.value))), "entry"
    return np.asarray(steps[name]), name
