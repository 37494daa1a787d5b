"""``series_curves``: the series of a store as curves of a bounded number of points."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import sawlog.store
from sawlog._validate import positive_integer
from sawlog.errors import DamagedStoreError
from sawlog.inspect._patterns import matching_names
from sawlog.inspect._summarize import _is_number
from sawlog.records import Entries
from sawlog.store import Reader

POINTS = 500


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A series of numbers over one of its step axes, in order of the steps.

    Entries beyond the number of points are put together: each point is the mean, the least and the
    greatest of the finite values of consecutive entries, at the step of the middle one.

    Args:
        axis: the step axis; None counts the entries from 0.
        steps: the step of each point, ``[points]``.
        mean: the mean of the finite values of each point; NaN if it has no finite value.
        least, greatest: their range.
        entries: how many entries there are.
        nonfinite: how many of them are infinite or NaN.
        first_nonfinite: the step of the first of these; None if all are finite.
    """

    axis: str | None
    steps: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    greatest: np.ndarray
    entries: int
    nonfinite: int = 0
    first_nonfinite: float | None = None

    @property
    def thinned(self) -> bool:
        """Whether points are means of several entries."""
        return self.entries > len(self.steps)


@dataclasses.dataclass(frozen=True, eq=False)
class SeriesCurves:
    """A series of numbers: its name, and its curve over each step axis.

    ``last`` is the last logged value, and ``last_steps`` are its steps. ``damage`` says what is
    damaged; there are no curves then.
    """

    name: str
    curves: tuple[Curve, ...]
    last: float | None = None
    last_steps: dict[str, float] = dataclasses.field(default_factory=dict)
    damage: str | None = None


def series_curves(
    store: str | os.PathLike[str] | Reader,
    names: Sequence[str] = (),
    *,
    points: int = POINTS,
) -> list[SeriesCurves]:
    """Return the curves of all series of real numbers, thinned to ``points`` points each.

    Args:
        store: its folder, or an open reader.
        names: the names to read, or patterns such as ``"grad/*"``; without any, all.
        points: how many points a curve has at most.

    Raises:
        UnknownNameError: no name matches one of the patterns.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> with sawlog.store.create(folder) as writer:
    ...     writer.extend({"loss": np.array([4.0, 2.0, 1.0, 0.0])}, step=np.arange(4))
    >>> (loss,) = series_curves(folder, points=2)
    >>> loss.name, loss.last, loss.curves[0].mean, loss.curves[0].thinned
    ('loss', 0.0, array([3. , 0.5]), True)
    """
    positive_integer("points", points)
    if not isinstance(store, Reader):
        with sawlog.store.open(store) as reader:
            return series_curves(reader, names, points=points)
    chosen = set(matching_names(store.schema, names))
    found = []
    for log in store.schema.series:
        if log.column.name in chosen and _is_number(log.column):
            found.append(_curves_of(store, log.column.name, points))
    return found


def _curves_of(reader: Reader, name: str, points: int) -> SeriesCurves:
    try:
        entries = reader.entries(name)
    except DamagedStoreError as error:
        return SeriesCurves(name, (), damage=error.what)
    values, steps = _logged(entries)
    axes: list[tuple[str | None, np.ndarray]] = list(steps.items())
    axes = axes or [(None, np.arange(len(values), dtype=np.float64))]
    curves = tuple(curve(values, own, axis, points) for axis, own in axes)
    last = float(values[-1]) if len(values) else None
    last_steps = {axis: float(own[-1]) for axis, own in steps.items() if len(own)}
    return SeriesCurves(name, curves, last, last_steps)


def _logged(entries: Entries) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return values and steps as float64, without masked entries."""
    values = np.asarray(entries.values).astype(np.float64)
    steps = {axis: np.asarray(own).astype(np.float64) for axis, own in entries.steps.items()}
    if entries.mask is None:
        return values, steps
    mask = np.asarray(entries.mask, bool)
    return values[mask], {axis: own[mask] for axis, own in steps.items()}


def curve(
    values: np.ndarray, steps: np.ndarray, axis: str | None = None, points: int = POINTS
) -> Curve:
    """Return values over steps as a curve of at most ``points`` points."""
    if np.any(steps[1:] < steps[:-1]):
        order = np.argsort(steps, kind="stable")
        values, steps = values[order], steps[order]
    finite = np.isfinite(values)
    odd = np.flatnonzero(~finite)
    about: dict[str, Any] = {"entries": len(values), "nonfinite": len(odd)}
    about["first_nonfinite"] = float(steps[odd[0]]) if len(odd) else None
    if len(values) <= points:
        mean = np.where(finite, values, np.nan)
        return Curve(axis, steps, mean, mean, mean, **about)
    bounds = np.linspace(0, len(values), points + 1).astype(np.int64)
    starts = bounds[:-1]
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    safe = np.where(finite, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.add.reduceat(safe / np.repeat(counts, np.diff(bounds)), starts)
    least = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    greatest = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    for array in (mean, least, greatest):
        array[counts == 0] = np.nan
    return Curve(axis, steps[(starts + bounds[1:] - 1) // 2], mean, least, greatest, **about)
