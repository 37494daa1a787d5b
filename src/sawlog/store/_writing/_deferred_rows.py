"""Rows that are computed directly into the buffers of a writer."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np


class DeferredRows(abc.ABC):
    """Rows ``[n, ...]`` that are computed into the memory of a writer, without a copy.

    Pass an instance to ``writer.append(ids, {name: rows})`` in place of an array. ``into`` must not
    raise.
    """

    dtype: np.dtype
    shape: tuple[int, ...]

    @abc.abstractmethod
    def into(self, out: np.ndarray) -> None:
        """Compute the rows into an array of their dtype and shape."""

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> DeferredRows:
        """Return some of the rows, selected by a slice or a mask."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        made = np.empty(self.shape, self.dtype)
        self.into(made)
        return made if dtype is None else made.astype(dtype)
