"""Long tables: a row for each entry of each name, in columns name, steps, value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.store._format._schema import Column, Series
from sawlog.store._views._cells import TEXT, Batch, Cells, Field, Sheet, free_name
from sawlog.store._views._stored import StoredSeries, windows
from sawlog.store._views._wide import common_dtype, step_kind
from sawlog.store._views._widen import widened, widened_dtype

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader


class LongSheet(Sheet):
    """Columns ``name``, every step axis of any name, ``value``; and ``shape`` if shapes differ.

    An axis is null for names that do not have it. Values have one dtype, which represents all of
    them exactly, or are refused.
    """

    name = "entries"

    def __init__(self, reader: Reader, series: Sequence[Series]) -> None:
        self._series = [StoredSeries(reader, each) for each in series]
        self.logs = tuple(each.column for each in series)
        self._axes = _axes(series)
        self._dtype = _value_dtype({s.column.name: s.column.dtype for s in series})
        shapes = {each.column.shape for each in series}
        self.rows = sum(map(len, self._series))
        self.nbytes = sum(len(each) * each.row_bytes for each in self._series)
        title, value, shape = (free_name(n, self._axes) for n in ("name", "value", "shape"))
        self.fields = (
            Field(title, "name", TEXT),
            *(Field(axis, "step", step.dtype, step.shape) for axis, step in self._axes.items()),
            Field(value, "value", self._dtype, shapes.pop() if len(shapes) == 1 else None),
        )
        self._ragged = self.fields[-1].shape is None
        if self._ragged:
            self.fields += (Field(shape, "shape", np.dtype(np.int64), None),)

    def __str__(self) -> str:
        return f"entries one below the other: {', '.join(repr(s.name) for s in self._series)}"

    @property
    def attrs(self) -> dict[str, list[Any]]:
        """As :attr:`Sheet.attrs`."""
        return {each.name: each.attrs for each in self._series if each.attrs}

    def batches(self, budget: int) -> Iterator[Batch]:
        """Implement :meth:`Sheet.batches`."""
        for each in self._series:
            cuts = each.values.starts.tolist()
            for start, stop in windows(len(each), each.row_bytes, budget, cuts):
                yield self._batch(each, start, stop)
                each.release(start, stop)

    def _batch(self, each: StoredSeries, start: int, stop: int) -> Batch:
        rows = stop - start
        name = Cells(np.broadcast_to(np.array(each.name, dtype=object), rows))
        mask = None if each.mask is None else each.mask.slice(start, stop)
        steps = [self._step(each, axis, start, stop, mask) for axis in self._axes]
        values = exactly(each.values.slice(start, stop), self._dtype, each.name)
        value = Cells.of(values, mask)
        if not self._ragged:
            return [name, *steps, value]
        shape = np.array(each.values.shape, np.int64)
        return [name, *steps, value, Cells(np.broadcast_to(shape, (rows, len(shape))))]

    def _step(
        self, each: StoredSeries, axis: str, start: int, stop: int, mask: np.ndarray | None
    ) -> Cells:
        column = self._axes[axis]
        if axis not in each.steps:
            nothing = np.zeros((stop - start, *column.shape), column.dtype)
            return Cells(nothing, np.zeros(stop - start, bool))
        steps = exactly(each.steps[axis].slice(start, stop), column.dtype, each.name)
        return Cells.of(steps, each.step_mask(axis, mask))


def _axes(series: Sequence[Series]) -> dict[str, Column]:
    found: dict[str, list[tuple[str, Column]]] = {}
    for each in series:
        for step in each.steps:
            found.setdefault(step.name, []).append((each.column.name, step))
    for axis, columns in found.items():
        if len({(step_kind(step.dtype), step.shape) for _, step in columns}) > 1:
            listed = "; ".join(f"{step} for {name!r}" for name, step in columns[:6])
            raise ArgumentError(
                f"The step axis {axis!r} has several types: {listed}. "
                "Hint: choose names whose steps are of one shape and kind with names=[...]."
            )
    return {
        axis: Column(axis, common_dtype([step.dtype for _, step in columns]), columns[0][1].shape)
        for axis, columns in found.items()
    }


def _value_dtype(dtypes: dict[str, np.dtype]) -> np.dtype:
    if len(set(dtypes.values())) == 1:
        return next(iter(dtypes.values()))
    wide = {name: widened_dtype(dtype) for name, dtype in dtypes.items()}
    if all(dtype.kind in "biufc" for dtype in wide.values()):
        return common_dtype(list(wide.values()))
    listed = ", ".join(f"{name!r} {dtype}" for name, dtype in list(dtypes.items())[:8])
    raise ArgumentError(
        f"One column cannot hold the values of all these names: {listed}. "
        "Hint: choose names of one kind with names=[...], or omit long=True."
    )


def exactly(values: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """Convert values to a wider dtype.

    Raises:
        ArgumentError: a value would change, such as a large integer among floats.
    """
    if values.dtype == dtype:
        return values
    wide = widened(values)
    out = wide.astype(dtype, copy=False)
    if wide.dtype.kind in "iu" and dtype.kind in "fc" and wide.dtype.itemsize == 8:
        most = 1 << np.finfo(dtype).nmant + 1
        lost = (wide > most) | (wide < -most) if wide.dtype.kind == "i" else wide > most
        if bool(lost.any()):
            raise ArgumentError(
                f"{name!r} has the integer {wide[lost][0]}, which {dtype} cannot hold exactly, and "
                "other names here have floats. Hint: leave one of them out with names=[...]."
            )
    return out
