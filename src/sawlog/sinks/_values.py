"""Entries in the form of trackers: rows of scalars, histograms and images with one step each.

The value of one entry becomes:

==========================================  ====================================================
a number                                    a scalar; bools are 0 and 1, and a complex number is
                                            two scalars, ``name/real`` and ``name/imag``
``[n]``                                     a histogram
``[h, w]``, ``[h, w, c]`` with c = 1, 3, 4  an image; with ``images=False`` a histogram
any other shape                             a histogram of all elements
==========================================  ====================================================

With ``histograms=False`` histograms are dropped. An entry that is masked in part is a histogram of
the other elements. Entries that are masked entirely and empty arrays are dropped.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._names import did_you_mean
from sawlog._validate import refuse
from sawlog.errors import LogMismatchError, LogValueError
from sawlog.records import Entries, Records
from sawlog.sinks._entries import deepened, logged, step_mask
from sawlog.sinks._logdict_metadata import is_news
from sawlog.sinks._unmatched import warn_unmatched

BINS = 64
_SOON = 1000  # entries after which a missing axis is reported

Number = int | float


class Kind(enum.Enum):
    """How a tracker displays a value."""

    SCALAR = "scalar"
    HISTOGRAM = "histogram"
    IMAGE = "image"


@dataclasses.dataclass(frozen=True)
class TrackerColumn:
    """The values of one name: Python numbers, or one array for each entry.

    ``single`` says that ``float32`` represents all of them exactly.
    """

    kind: Kind
    items: Sequence[Any]
    single: bool = False


class XAxis:
    """The step axis of charts: the given one, or else the first axis of each log.

    All runs of a logger share one object, which warns once if no log has the axis.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            refuse("x", "the name of a step axis", name, 'x="step"')
        self._name = name
        self._settled = name is None
        self._others: dict[str, None] = {}
        self._entries = 0

    def of(self, axes: Sequence[str], entries: int) -> str | None:
        """Return the axis to use for entries with these step axes."""
        if self._name in axes:
            self._settled = True
            return self._name
        self._others.update(dict.fromkeys(axes))
        self._entries += entries if axes else 0
        if self._entries >= _SOON:
            self.warn()
        return next(iter(axes), None)

    def warn(self) -> None:
        """Warn once if no entries so far have the axis."""
        if self._settled or not self._entries:
            return
        self._settled = True
        warn_unmatched(
            f"x={self._name!r}: no log has this step axis, so charts are drawn over the first one "
            f"that each log has. {did_you_mean(str(self._name), self._others)}"
        )


@dataclasses.dataclass(frozen=True)
class TrackerGroup:
    """Names that were logged together, with the same steps.

    Args:
        columns: the values by name, of equal length.
        axes: the steps of every step axis, of the same length.
        x: the step axis for charts, if there is one.
        axis: the same if its steps are integers, which all trackers accept as steps, else None.
        steps: the steps of that axis, or else the index of each entry.
    """

    columns: Mapping[str, TrackerColumn]
    axes: Mapping[str, Sequence[Number]]
    x: str | None
    axis: str | None
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def others(self) -> dict[str, TrackerColumn]:
        """The step axes that are not in :attr:`steps`, to be written as scalars."""
        return {
            axis: TrackerColumn(Kind.SCALAR, items)
            for axis, items in self.axes.items()
            if axis != self.axis and axis not in self.columns
        }


def groups(
    records: Records,
    counts: Mapping[str, int],
    *,
    images: bool,
    histograms: bool,
    x: XAxis | None = None,
) -> list[TrackerGroup]:
    """Convert records to groups of columns, in the order of the records.

    ``counts`` has the number of earlier entries of each name; ``x`` selects the axis for charts.

    Raises:
        LogValueError: a value is not a number.
        LogMismatchError: a step axis has the same name as a value, with other numbers.

    >>> records = Records({"loss": Entries(np.array([2.0, 1.0]), {"step": np.array([3, 4])})})
    >>> (group,) = groups(records, {}, images=True, histograms=True)
    >>> group.columns["loss"].items, group.steps
    ([2.0, 1.0], [3, 4])
    """
    found: dict[Any, tuple[dict[str, TrackerColumn], Entries, int]] = {}
    for name, each in records.items():
        entries = logged(each)
        if not entries.values.size or not is_news(entries):
            continue
        columns = dict(_columns(name, entries, images=images, histograms=histograms))
        if columns:
            before = counts.get(next(iter(columns)), 0)
            together = found.setdefault(_together(entries, before), ({}, entries, before))[0]
            _check_new(columns, together)
            together.update(columns)
    return [_group(*each, x or XAxis()) for each in found.values()]


def _check_new(columns: Mapping[str, TrackerColumn], there: Mapping[str, TrackerColumn]) -> None:
    for name in columns.keys() & there.keys():
        raise LogMismatchError(
            f"Two values would be written under the name {name!r}: one has that name, the other "
            "is a part of a complex number. Hint: rename one of them."
        )


def _together(entries: Entries, before: int) -> Any:
    """Return a key that is equal for names whose entries share rows."""
    steps = tuple((axis, a.dtype.str, a.shape, a.tobytes()) for axis, a in entries.steps.items())
    mask = None if entries.mask is None else (entries.mask.shape, entries.mask.tobytes())
    return len(entries), steps, mask, before


def _group(
    columns: dict[str, TrackerColumn], entries: Entries, before: int, x: XAxis
) -> TrackerGroup:
    axes = {
        axis: numbers(_first(array, step_mask(entries, array)), f"the step axis {axis!r}")
        for axis, array in entries.steps.items()
        if array.size
    }
    for name in axes.keys() & columns.keys():
        if list(columns[name].items) != list(axes[name]):
            raise LogMismatchError(
                f"{name!r} is the name of a value and of a step axis, with different numbers, and "
                "trackers store both under one name. Hint: rename one of them."
            )
    axis = x.of(list(axes), len(entries))
    if axis is None or not all(float(step).is_integer() for step in axes[axis]):
        return TrackerGroup(columns, axes, axis, None, range(before, before + len(entries)))
    return TrackerGroup(columns, axes, axis, axis, [int(step) for step in axes[axis]])


def _first(array: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return one number for each entry: the first that was logged."""
    if array.ndim == 1:
        return array
    flat = array.reshape(len(array), -1)
    if mask is None:
        return flat[:, 0]
    there = np.broadcast_to(deepened(mask, array.ndim), array.shape)
    return flat[np.arange(len(flat)), there.reshape(len(flat), -1).argmax(axis=1)]


def _columns(
    name: str, entries: Entries, *, images: bool, histograms: bool
) -> Iterator[tuple[str, TrackerColumn]]:
    values, mask = entries.values, entries.mask
    if values.dtype.kind == "c":
        for part in ("real", "imag"):
            half = dataclasses.replace(entries, values=getattr(values, part))
            yield from _columns(f"{name}/{part}", half, images=images, histograms=histograms)
        return
    if values.ndim == 1:
        yield (
            name,
            TrackerColumn(Kind.SCALAR, numbers(values, repr(name)), _is_single(values.dtype)),
        )
        return
    _check_numeric(values, repr(name))
    kind = Kind.IMAGE if images and mask is None and _is_image(values) else Kind.HISTOGRAM
    if kind is Kind.IMAGE or histograms:
        items = values if mask is None else [v[m] for v, m in zip(values, mask, strict=True)]
        yield name, TrackerColumn(kind, [np.array(item) for item in items])


def _is_image(values: np.ndarray) -> bool:
    return values.ndim == 3 or (values.ndim == 4 and values.shape[-1] in (1, 3, 4))


def _is_single(dtype: np.dtype) -> bool:
    """Return whether ``float32`` represents every number of a dtype exactly."""
    sizes = {"b": 1, "i": 2, "u": 2, "f": 4, "V": 4}  # V: those of ml_dtypes
    return dtype.itemsize <= sizes.get(dtype.kind, 0)


def _check_numeric(values: np.ndarray, what: str) -> None:
    if values.dtype.kind in "SUOMm" or values.dtype.names is not None:
        raise LogValueError(
            f"{what} is of the dtype {values.dtype}, and trackers take numbers only. "
            "Nothing of the call was taken. Hint: sawlog.sinks.JsonlSink takes texts and times."
        )


def numbers(values: np.ndarray, what: str) -> list[Number]:
    """Convert ``[n]`` numbers to Python numbers, exactly.

    Raises:
        LogValueError: they are not numbers.
    """
    _check_numeric(values, what)
    if values.dtype.kind in "iu":
        return values.tolist()
    if values.dtype.kind == "b":
        return values.astype(np.int64).tolist()
    return values.astype(np.float64).tolist()


def bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Count the finite elements in 64 equal intervals; return the counts and the edges.

    Returns None if no element is finite.

    >>> counts, edges = bins(np.array([0.0, 1.0, np.nan]))
    >>> counts.sum(), edges[0], edges[-1]
    (np.int64(2), np.float64(0.0), np.float64(1.0))
    """
    flat = values.astype(np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return None
    try:
        with np.errstate(all="ignore"):
            return np.histogram(flat, BINS)
    except ValueError:  # too close together, or too far apart, for 64 edges
        return np.array([flat.size]), np.array([flat.min(), flat.max()])


def summary(values: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation, min and max, for trackers without histograms."""
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        found = {"mean": wide.mean(), "std": wide.std(), "min": wide.min(), "max": wide.max()}
    return {name: float(value) for name, value in found.items()}


def pixels(values: np.ndarray) -> np.ndarray:
    """Convert an image to ``uint8``, ``[h, w]`` or ``[h, w, 3 or 4]``.

    ``uint8`` is not changed. Numbers from 0 to 1 are scaled to 255. Other images are scaled so that
    the minimum is black and the maximum white. Elements that are not finite are black.

    >>> pixels(np.array([[-1.0, 0.0, 1.0]]))
    array([[  0, 128, 255]], dtype=uint8)
    """
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.dtype == np.uint8:
        return values
    wide = values.astype(np.float64)
    there = np.isfinite(wide)
    low, high = (wide[there].min(), wide[there].max()) if there.any() else (0.0, 1.0)
    if low < 0 or high > 1:
        half = wide / 2 - low / 2  # the difference of halves cannot overflow
        wide = half / (high / 2 - low / 2) if high > low else np.ones_like(wide)
    return np.rint(np.where(there, wide, 0.0) * 255).astype(np.uint8)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings: ``{"net": {"width": 3}}`` becomes ``{"net/width": 3}``."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found.update(flat_config(value, f"{prefix}{name}/"))
        else:
            found[f"{prefix}{name}"] = value
    return found
