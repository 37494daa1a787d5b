"""Rows of examples as arrays: those of one layer, and those of all layers of some examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from sawlog._array_device import NUMPY, ArrayDevice

Ids = np.ndarray | list[str]


@dataclasses.dataclass(frozen=True)
class LayerRows:
    """Rows of one layer in their stored dtype.

    Args:
        values: ``[n, ...]``.
        scale: ``[n]`` for int8 rows, which represent ``values * scale``.
    """

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def elements(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.values.shape[1:])

    def flat(self, device: ArrayDevice = NUMPY) -> Any:
        """Return ``[n, elements]`` in float32, or float64 if stored so, without the scale."""
        rows = self.values.reshape(len(self.values), self.elements)
        return widen(rows) if device == NUMPY else device.single(rows)

    def cut(self, rows: Any) -> LayerRows:
        """Return some of the rows, by a slice or indices."""
        return LayerRows(self.values[rows], None if self.scale is None else self.scale[rows])

    def rows(self, device: ArrayDevice = NUMPY) -> Any:
        """Return the rows with their scale applied and at least two axes."""
        rows = widen(self.values) if device == NUMPY else device.single(self.values)
        if self.scale is not None:
            rows = rows * device.put(self.scale.reshape(-1, *(1,) * (rows.ndim - 1)))
        return rows.reshape(len(rows), *rows.shape[1:], *(1,) * (3 - rows.ndim))


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """Some examples: their ids, and their rows of each layer."""

    ids: Ids
    columns: Mapping[str, LayerRows]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, device: ArrayDevice = NUMPY) -> dict[str, Any]:
        """Return the rows of every layer with their scales applied."""
        return {name: column.rows(device) for name, column in self.columns.items()}

    def widened(self) -> ExampleRows:
        """Return the same examples in float32 or float64, with their scales applied."""
        return ExampleRows(self.ids, {name: LayerRows(rows) for name, rows in self.rows().items()})

    def cut(self, rows: slice) -> ExampleRows:
        """Return some of the examples."""
        columns = {name: column.cut(rows) for name, column in self.columns.items()}
        return ExampleRows(self.ids[rows], columns)


def widen(array: np.ndarray) -> np.ndarray:
    """Convert to float32; leave float64 as it is."""
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype == ml_dtypes.bfloat16:  # the upper half of the bits of a float32
        bits = np.asarray(array).view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return array.astype(np.float32)


def is_real(dtype: np.dtype) -> bool:
    """Return whether a dtype holds real numbers; those of ml_dtypes do.

    >>> [is_real(np.dtype(name)) for name in ("bool", "int8", "bfloat16", "complex64", "U3", "M8")]
    [True, True, True, False, False, False]
    """
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes")


def id_list(ids: Any) -> list[Any]:
    """Return ids as a list of Python integers or strings."""
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
