"""Entries as what trackers take: rows of scalars, histograms and images with one step each.

The rule, for the value of one entry:

==========================================  ====================================================
a number                                    a scalar; bools are 0 and 1, and a complex number is
                                            two scalars, ``name/real`` and ``name/imag``
``[n]``                                     a histogram
``[h, w]``, ``[h, w, c]`` with c = 1, 3, 4  an image; with ``images=False`` a histogram
any other shape                             a histogram of all elements
==========================================  ====================================================

With ``histograms=False`` what would be a histogram is left out. Of entries that are masked in part,
the rest is a histogram. Entries that are masked as a whole, and arrays without elements, are left
out: nothing was logged.
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
from sawlog.sinks._asked import say
from sawlog.sinks._entries import deepened, logged, step_mask
from sawlog.sinks._notes import is_news

BINS = 64
_SOON = 1000  # entries after which an axis that none of them has is reported

Number = int | float


class Kind(enum.Enum):
    """What a tracker shows a value as."""

    SCALAR = "scalar"
    HISTOGRAM = "histogram"
    IMAGE = "image"


@dataclasses.dataclass(frozen=True)
class TrackerColumn:
    """The values of one name: Python numbers, or one array for each entry.

    ``single`` says that 32 bits of floating point are enough for all of them.
    """

    kind: Kind
    items: Sequence[Any]
    single: bool = False


class XAxis:
    """Which step axis charts are drawn over: the one that was asked for, or else the first.

    One object serves all runs of a logger, and warns once if no log has the axis.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            refuse("x", "the name of a step axis", name, 'x="step"')
        self._name = name
        self._settled = name is None
        self._others: dict[str, None] = {}
        self._entries = 0

    def of(self, axes: Sequence[str], entries: int) -> str | None:
        """The axis for entries that have these."""
        if self._name in axes:
            self._settled = True
            return self._name
        self._others.update(dict.fromkeys(axes))
        self._entries += entries if axes else 0
        if self._entries >= _SOON:
            self.warn()
        return next(iter(axes), None)

    def warn(self) -> None:
        """Say that nothing so far has the axis, once."""
        if self._settled or not self._entries:
            return
        self._settled = True
        say(
            f"x={self._name!r}: no log has this step axis, so charts are drawn over the first one "
            f"that each log has. {did_you_mean(str(self._name), self._others)}"
        )


@dataclasses.dataclass(frozen=True)
class TrackerGroup:
    """Names that were logged together: they have the same steps.

    Args:
        columns: the values by name, as many for each.
        axes: every step axis, as many numbers.
        x: the axis to draw them over, if they have any.
        axis: the same if its steps are whole numbers, which all trackers can count by, else None.
        steps: the numbers of that axis, or else how many entries these names had before.
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
        """The step axes that :attr:`steps` does not say, to be written as scalars."""
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
    """Records as groups of columns, in the order of the records.

    ``counts`` says how many entries each name had before, ``x`` which axis to draw them over.

    Raises:
        LogValueError: a value is no number.
        LogMismatchError: a name is also that of a step axis, with other numbers.

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
            f"Two values would be written under the name {name!r}: one is called that, the other "
            "is the part of a complex number. Hint: rename one of them."
        )


def _together(entries: Entries, before: int) -> Any:
    """Equal for names whose entries belong in the same rows."""
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
                "trackers have one place for both. Hint: rename one of them."
            )
    axis = x.of(list(axes), len(entries))
    if axis is None or not all(float(step).is_integer() for step in axes[axis]):
        return TrackerGroup(columns, axes, axis, None, range(before, before + len(entries)))
    return TrackerGroup(columns, axes, axis, axis, [int(step) for step in axes[axis]])


def _first(array: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """One number for each entry: where there are several, the first that was logged."""
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
    """Whether every number of a dtype is one of ``float32``."""
    sizes = {"b": 1, "i": 2, "u": 2, "f": 4, "V": 4}  # V: those of ml_dtypes
    return dtype.itemsize <= sizes.get(dtype.kind, 0)


def _check_numeric(values: np.ndarray, what: str) -> None:
    if values.dtype.kind in "SUOMm" or values.dtype.names is not None:
        raise LogValueError(
            f"{what} is of the dtype {values.dtype}, and what trackers take are numbers. "
            "Nothing of the call was taken. Hint: sawlog.sinks.JsonlSink takes texts and times."
        )


def numbers(values: np.ndarray, what: str) -> list[Number]:
    """``[n]`` numbers as those of Python, exactly.

    Raises:
        LogValueError: they are no numbers.
    """
    _check_numeric(values, what)
    if values.dtype.kind in "iu":
        return values.tolist()
    if values.dtype.kind == "b":
        return values.astype(np.int64).tolist()
    return values.astype(np.float64).tolist()


def bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """How many of the finite elements are in each of 64 equal intervals, and their edges.

    None where no element is finite.

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
    """What trackers without histograms get instead: mean, standard deviation, min and max."""
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        found = {"mean": wide.mean(), "std": wide.std(), "min": wide.min(), "max": wide.max()}
    return {name: float(value) for name, value in found.items()}


def pixels(values: np.ndarray) -> np.ndarray:
    """An image as ``uint8``, ``[h, w]`` or ``[h, w, 3 or 4]``.

    ``uint8`` stays as it is, and so do numbers from 0 to 1, where 1 is full brightness. Of anything
    else, the least number is black and the greatest white. What is not finite is black.

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
        half = wide / 2 - low / 2  # the difference of two halves is never too large
        wide = half / (high / 2 - low / 2) if high > low else np.ones_like(wide)
    return np.rint(np.where(there, wide, 0.0) * 255).astype(np.uint8)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings without nesting, ``{"net": {"width": 3}}`` as ``{"net/width": 3}``."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found.update(flat_config(value, f"{prefix}{name}/"))
        else:
            found[f"{prefix}{name}"] = value
    return found
