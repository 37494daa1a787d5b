"""Wide tables: one row for all entries with the same steps, one column for each name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog.store._format._schema import Column, Series
from sawlog.store._views._cells import Batch, Cells, Field, Sheet, free_name
from sawlog.store._views._join import join
from sawlog.store._views._stored import StoredSeries, StoredTensor, windows
from sawlog.store._views._widen import widened, widened_dtype

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader


class WideSheet(Sheet):
    """Columns for step axes, then names. Steps are in memory; values are read in batches."""

    def __init__(self, reader: Reader, series: Sequence[Series]) -> None:
        self._series = [StoredSeries(reader, each) for each in series]
        names = [each.name for each in self._series]
        self.logs = tuple(each.column for each in series)
        self._axes = {step.name: _common(step.name, series) for step in series[0].steps}
        self._joined = join(*self._all_steps())
        self.name = ".".join(["entries", *self._axes])
        self.rows = self._joined.rows
        self.nbytes = sum(len(each) * each.row_bytes for each in self._series)
        steps = [
            Field(free_name(axis, names), "step", step.dtype, step.shape)
            for axis, step in self._axes.items()
        ]
        values = [Field(s.name, "value", s.values.dtype, s.values.shape) for s in self._series]
        self.fields = (*steps, *values)

    def __str__(self) -> str:
        listed = ", ".join(repr(each.name) for each in self._series)
        by = ", ".join(
            axis + (f"{list(step.shape)}" if step.shape else "")
            for axis, step in self._axes.items()
        )
        return f"entries {f'by {by}' if by else f'without steps, {self.rows} each'}: {listed}"

    @property
    def attrs(self) -> dict[str, list[Any]]:
        """As :attr:`Sheet.attrs`."""
        return {each.name: each.attrs for each in self._series if each.attrs}

    def _all_steps(self) -> tuple[list[dict[str, np.ndarray]], list[int]]:
        steps = [
            {axis: each.steps[axis].slice(0, len(each)) for axis in self._axes}
            for each in self._series
        ]
        return steps, [len(each) for each in self._series]

    def batches(self, budget: int) -> Iterator[Batch]:
        """Implement :meth:`Sheet.batches`."""
        numbers = list(zip(self._series, self._joined.entries, strict=True))
        whole = [each for each, entries in numbers if entries is None]
        cuts = np.unique(np.concatenate([np.zeros(1, np.int64), *(s.values.starts for s in whole)]))
        row_bytes = sum(each.row_bytes for each in self._series)
        for start, stop in windows(self.rows, row_bytes, budget, cuts.tolist()):
            values = [_cells(each, own, start, stop) for each, own in numbers]
            steps = [
                Cells.of(self._steps(axis, start, stop), self._step_mask(axis, values))
                for axis in self._axes
            ]
            yield [*steps, *values]
            for each, own in numbers:
                _release(each, own, start, stop)

    def _steps(self, axis: str, start: int, stop: int) -> np.ndarray:
        dtype = self._axes[axis].dtype
        if self._joined.first is None:
            entries = zip(self._series, self._joined.entries, strict=True)
            source = next(each for each, own in entries if own is None)
            return _as(source.steps[axis].slice(start, stop), dtype)
        of, at = (array[start:stop] for array in self._joined.first)
        out = np.zeros((stop - start, *self._axes[axis].shape), dtype)
        for number in np.unique(of).tolist():
            where = of == number
            out[where] = _as(self._series[number].steps[axis].take(at[where]), dtype)
        return out

    def _step_mask(self, axis: str, values: Sequence[Cells]) -> np.ndarray | None:
        """Return which lanes of a step axis any name has logged, or None for all of them."""
        out: np.ndarray | None = None
        for each, cells in zip(self._series, values, strict=True):
            own = each.step_mask(axis, cells.mask)
            if own is None:  # it has no mask, so all lanes of its entries were logged
                own = np.ones(len(cells), bool)
            if cells.valid is not None:
                own = own & cells.valid.reshape(-1, *(1,) * (own.ndim - 1))
            if out is not None and out.ndim != own.ndim:
                axes = max(out.ndim, own.ndim)
                out, own = (x.reshape(x.shape + (1,) * (axes - x.ndim)) for x in (out, own))
            out = own if out is None else out | own
        return None if out is None or out.ndim == 1 or bool(out.all()) else out


def _cells(each: StoredSeries, entries: np.ndarray | None, start: int, stop: int) -> Cells:
    def read(stored: StoredTensor) -> np.ndarray:
        return stored.slice(start, stop) if own is None else stored.take(own)

    own = None if entries is None else entries[start:stop]
    cells = Cells.of(read(each.values), None if each.mask is None else read(each.mask))
    if own is None or bool((own >= 0).all()):
        return cells
    valid = own >= 0 if cells.valid is None else (own >= 0) & cells.valid
    return Cells(cells.values, valid, cells.mask)


def _release(each: StoredSeries, entries: np.ndarray | None, start: int, stop: int) -> None:
    if entries is not None:
        own = entries[start:stop]
        own = own[own >= 0]
        if not len(own):
            return
        start, stop = int(own.min()), int(own.max()) + 1
    each.release(start, stop)


def _as(steps: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return steps if steps.dtype == dtype else widened(steps).astype(dtype, copy=False)


def _common(axis: str, series: Sequence[Series]) -> Column:
    """Return the common type of a step axis."""
    found = [step for each in series for step in each.steps if step.name == axis]
    return Column(axis, common_dtype([step.dtype for step in found]), found[0].shape)


def common_dtype(dtypes: Sequence[np.dtype]) -> np.dtype:
    """Return the dtype that all share, or the smallest that numpy promotes them to."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return np.result_type(*(widened_dtype(dtype) for dtype in dtypes))


def step_kind(dtype: np.dtype) -> str:
    """Return the kind of steps that can be compared: int (except uint64), float, or one dtype."""
    dtype = widened_dtype(dtype)
    if dtype.kind in "iu" and dtype != np.uint64:
        return "int"
    return "float" if dtype.kind == "f" else str(dtype)
