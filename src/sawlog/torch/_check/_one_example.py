"""Cut one example out of a batch of any structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from sawlog.errors import ArgumentError


def one_of(batch: Any, place: int, size: int, axis: int = 0) -> Any:
    """Return a batch with the one example at ``place``, of the same type as the batch.

    Tensors and arrays are cut along the axis of the examples, and lists of ``size`` items by item.
    Everything else is shared by all examples and stays.

    Args:
        batch: a tensor, array, list, tuple, dict, dataclass, or any nesting of them.
        place: the index of the example.
        size: the number of examples.
        axis: the axis of the examples; 1 if the sequence comes first.

    Raises:
        ArgumentError: nothing in the batch has an axis of examples.

    >>> import torch
    >>> one_of({"x": torch.arange(6).reshape(3, 2), "text": ["a", "b", "c"]}, 1, 3)
    {'x': tensor([[2, 3]]), 'text': ['b']}
    """
    cut = _Cut(place, size, axis)
    found = cut.of(batch)
    if not cut.count:
        raise ArgumentError(
            f"A {type(batch).__name__} cannot be cut into examples: nothing in it has length "
            f"{size}. Hint: pass a function that cuts it, run.check(step, batch, one=lambda batch, "
            "i: ...)."
        )
    return found


class _Cut:
    """Cuts the values of a batch, and counts those that were cut."""

    def __init__(self, place: int, size: int, axis: int) -> None:
        self._place, self._size, self._axis = place, size, axis
        self.count = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, (Tensor, np.ndarray)):
            return self._array(value)
        if isinstance(value, Mapping):
            items = {key: self.of(each) for key, each in value.items()}
            return items if type(value) is dict else _rebuilt(value, items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return dataclasses.replace(value, **{name: self.of(each) for name, each in own.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.of, value))
        if isinstance(value, (list, tuple)):
            return self._sequence(value)
        return value

    def _array(self, array: Any) -> Any:
        for axis in (self._axis, 0):
            if array.ndim > axis and array.shape[axis] == self._size:
                self.count += 1
                at = slice(self._place, self._place + 1)
                return array[at] if axis == 0 else array[:, at]
        return array

    def _sequence(self, values: Any) -> Any:
        inside = _Cut(self._place, self._size, self._axis)
        cut = [inside.of(each) for each in values]
        if inside.count:
            self.count += inside.count
            return type(values)(cut)
        if len(values) == self._size:
            self.count += 1
            return type(values)([values[self._place]])
        return values


def _rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping of the same type, such as ``BatchEncoding``, with other values."""
    try:
        return type(value)(items)
    except TypeError:
        return items
