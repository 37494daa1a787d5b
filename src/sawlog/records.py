"""``Records``: logs as numpy arrays, without any framework.

Sinks take them, and stores return them. :class:`sawlog.logdict` is the same for JAX.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sawlog.errors import LogMismatchError


@dataclasses.dataclass(frozen=True)
class Entries:
    """The entries of one name: values ``[n, ...]``, and for each step axis an array ``[n, ...]``.

    ``mask``, if given, has the shape of the leading axes of the values, ``[n, ...]``, and is false
    where nothing was logged. ``attrs`` is metadata in types of JSON, which is stored as well.
    """

    values: np.ndarray
    steps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    mask: np.ndarray | None = None
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._same_length():
            return
        shapes = {"values": np.shape(self.values)}
        shapes.update(
            (f"step axis {axis!r}", np.shape(array)) for axis, array in self.steps.items()
        )
        if self.mask is not None:
            shapes["mask"] = np.shape(self.mask)
        lengths = {what: shape[0] if shape else None for what, shape in shapes.items()}
        if len(set(lengths.values())) > 1 or None in lengths.values():
            described = ", ".join(f"{what} {shape}" for what, shape in shapes.items())
            raise LogMismatchError(
                f"These entries differ in length: {described}. "
                "Hint: give all of them the same first axis, one item for each entry."
            )

    def _same_length(self) -> bool:
        """Return whether all parts are arrays with the same first axis; called often, so fast."""
        try:
            rows = self.values.shape[0]
            for array in self.steps.values():
                if array.shape[0] != rows:
                    return False
            return self.mask is None or self.mask.shape[0] == rows
        except (AttributeError, IndexError):
            return False

    def __len__(self) -> int:
        return len(self.values)


class Records(Mapping[str, Entries]):
    """Named entries, in the order they were first logged.

    >>> records = Records({"loss": Entries(np.array([2.0, 1.0]), {"step": np.array([0, 1])})})
    >>> records["loss"].values[-1], records["loss"].steps["step"][-1]
    (np.float64(1.0), np.int64(1))
    """

    def __init__(self, entries: Mapping[str, Entries] | None = None) -> None:
        self._entries = dict(entries or {})

    def __getitem__(self, name: str) -> Entries:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        parts = (
            f"{k}: {len(e)} x {e.values.dtype}{list(e.values.shape[1:])}" for k, e in self.items()
        )
        return f"Records({', '.join(parts)})"


def lost_by_numpy(value: Any) -> str | None:
    """Return what ``np.asarray`` would silently drop of a value, as text; None if nothing.

    >>> lost_by_numpy(["a", "b\\0"])
    "the last NUL of 'b\\\\x00'"
    """
    ma = sys.modules.get("numpy.ma")  # numpy imports it on first use
    if ma is not None and isinstance(value, getattr(ma, "MaskedArray", ())):
        return "its mask" if any(ma.getmaskarray(value).tobytes()) else None
    if isinstance(value, (list, tuple)):
        return _lost_in_list(value)
    if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
        return f"the last NUL of {value!r}"
    return None


_EXACT = 1 << 53  # floats represent all integers up to this one
_MOST_AXES = 64  # numpy refuses deeper lists


def _lost_in_list(value: list[Any] | tuple[Any, ...]) -> str | None:
    """Return what is lost of items, or because an array has only one type for all of them."""
    leaves: list[Any] = []
    _collect(value, leaves, _MOST_AXES)
    kinds = set(map(type, leaves))
    if kinds <= {float} or kinds <= {bool}:
        return None
    others = (lost_by_numpy(item) for item in leaves if not isinstance(item, (int, float)))
    if lost := next((lost for lost in others if lost), None):
        return lost
    texts = [isinstance(item, (str, bytes)) for item in leaves]
    if any(texts) and not all(texts):
        return f"the type of {leaves[texts.index(False)]!r:.100}"
    large = [x for x in leaves if type(x) is int and abs(x) > _EXACT]
    if not large or not _become_floats(value):
        return None
    rounded = next((x for x in large if int(float(x)) != x), None)
    return None if rounded is None else f"the last digits of {rounded}"


def _collect(items: Iterable[Any], leaves: list[Any], depth: int) -> None:
    for item in items:
        if not isinstance(item, (list, tuple)):
            leaves.append(item)
        elif depth:
            _collect(item, leaves, depth - 1)


def _become_floats(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "fc"
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False  # reported where it is converted
