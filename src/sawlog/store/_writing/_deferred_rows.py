"""Rows that are computed where they will be stored."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np


class DeferredRows(abc.ABC):
    """Rows ``[n, ...]`` that are made when the writer has memory for them, without a copy.

    ``writer.append(ids, {name: rows})`` takes them in place of arrays. ``into`` must not fail.
    """

    dtype: np.dtype
    shape: tuple[int, ...]

    @abc.abstractmethod
    def into(self, out: np.ndarray) -> None:
        """Put the rows into an array of their dtype and shape."""

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> DeferredRows:
        """Some of the rows, by a slice or a mask."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """How many axes they have."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        made = np.empty(self.shape, self.dtype)
        self.into(made)
        return made if dtype is None else made.astype(dtype)
