"""``series_curves``: the series of a store as curves of a bounded number of points."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import sawlog.store
from sawlog._validate import positive_integer
from sawlog.errors import DamagedStoreError
from sawlog.inspect._patterns import matching_names
from sawlog.inspect._summarize import _is_number, _is_real
from sawlog.records import Entries
from sawlog.sinks._entries import deepened
from sawlog.store import Reader, Series

POINTS = 500
_MOST_LANES = 1 << 24  # numbers of a series that are read for a curve; larger ones are arrays only


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A series of numbers over one of its step axes, in order of the steps.

    Axes of other things than numbers and times, such as text, have no curve.

    Entries of the same step are one point: their mean, their least and their greatest finite value.
    If there are more steps than points, a point is that of consecutive entries, at the step of the
    middle one.

    Args:
        axis: the step axis; None counts the entries from 0.
        steps: the step of each point, ``[points]``.
        mean: the mean of the finite values of each point; NaN if it has no finite value.
        least, greatest: their range.
        entries: how many entries there are.
        nonfinite: how many of them are infinite or NaN.
        first_nonfinite: the step of the first of these; None if all are finite.
        distinct: how many different steps the entries have.
    """

    axis: str | None
    steps: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    greatest: np.ndarray
    entries: int
    nonfinite: int = 0
    first_nonfinite: float | None = None
    distinct: int = 0

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

    Numbers that were logged inside of a ``vmap`` are entries of one series, those of all lanes
    that logged, so an episode that ends in one of many environments is a point of a curve. Series
    of more than 2**24 such numbers are left out.

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
        if log.column.name in chosen and has_curve(store, log):
            found.append(_curves_of(store, log, points))
    return found


def has_curve(reader: Reader, log: Series) -> bool:
    """Return whether the entries of a series are real numbers, or lanes of real numbers."""
    return _is_number(log.column) or (_is_real(log.column.dtype) and _has_lanes(reader, log))


def _has_lanes(reader: Reader, log: Series) -> bool:
    """Return whether each element of an entry was logged as a number, by a lane of a ``vmap``."""
    name, shape = log.column.name, log.column.shape
    rows = sum(c.rows for s in reader.segments for c in s.chunks if name in c.names)
    if not shape or rows * math.prod(shape) > _MOST_LANES:
        return False
    if any(step.shape == shape for step in log.steps):  # each element has steps of its own
        return True
    about = [attrs.get("logdict") for _, attrs in reader.attrs(name)]
    return bool(about) and all(
        isinstance(each, dict) and each.get("batch") == len(shape) for each in about
    )


def drawable_entries(reader: Reader, log: Series) -> Entries:
    """Return the numbers of a series, lane by lane, and their steps.

    Step axes of other things than numbers and times, such as text or vectors, are left out. Times
    are numbers of their unit, since 1970.
    """
    entries, shape = reader.entries(log.column.name), log.column.shape
    steps = {
        step.name: _as_numbers(np.asarray(entries.steps[step.name]))
        for step in log.steps
        if step.shape == shape[: len(step.shape)]
        and (_is_real(step.dtype) or step.dtype.kind in "Mm")
    }
    return _by_lane(dataclasses.replace(entries, steps=steps))


def _as_numbers(steps: np.ndarray) -> np.ndarray:
    if steps.dtype.kind not in "Mm":
        return steps
    return np.where(np.isnat(steps), np.nan, steps.astype(np.float64))


def _curves_of(reader: Reader, log: Series, points: int) -> SeriesCurves:
    name = log.column.name
    try:
        values, steps = _logged(drawable_entries(reader, log))
    except DamagedStoreError as error:
        return SeriesCurves(name, (), damage=error.what)
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


def _by_lane(entries: Entries) -> Entries:
    """Return the numbers of lanes as entries; without lanes, the entries as they are."""
    shape = entries.values.shape

    def spread(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        array = np.asarray(array)
        return np.broadcast_to(deepened(array, len(shape)), shape).reshape(-1)

    steps = {axis: spread(own) for axis, own in entries.steps.items()}
    return Entries(spread(entries.values), steps, spread(entries.mask), entries.attrs)


def curve(
    values: np.ndarray, steps: np.ndarray, axis: str | None = None, points: int = POINTS
) -> Curve:
    """Return values over steps as a curve of at most ``points`` points."""
    if not np.all(steps[1:] >= steps[:-1]):  # a step that is NaN comes last
        order = np.argsort(steps, kind="stable")
        values, steps = values[order], steps[order]
    finite = np.isfinite(values)
    odd = np.flatnonzero(~finite)
    about: dict[str, Any] = {"entries": len(values), "nonfinite": len(odd)}
    about["first_nonfinite"] = float(steps[odd[0]]) if len(odd) else None
    starts = np.flatnonzero(np.append(True, steps[1:] != steps[:-1])[: len(steps)])
    about["distinct"] = len(starts)
    if len(starts) > points:
        starts = starts[np.linspace(0, len(starts), points + 1).astype(np.int64)[:-1]]
    if len(starts) == len(values):
        mean = np.where(finite, values, np.nan)
        return Curve(axis, steps, mean, mean, mean, **about)
    ends = np.append(starts[1:], len(values))
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    safe = np.where(finite, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.add.reduceat(safe / np.repeat(counts, ends - starts), starts)
    least = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    greatest = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    for array in (mean, least, greatest):
        array[counts == 0] = np.nan
    return Curve(axis, steps[(starts + ends - 1) // 2], mean, least, greatest, **about)
