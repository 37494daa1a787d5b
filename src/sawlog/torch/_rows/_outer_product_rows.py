"""Gradients of layers with one position per example: outer products of two vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog.store import DeferredRows


class OuterProductRows(DeferredRows):
    """The outer products of ``left`` ``[batch, rows]`` and ``right`` ``[batch, cols]``."""

    dtype = np.dtype(np.float32)

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left, right
        self.shape = (len(left), left.shape[1], right.shape[1])

    def into(self, out: np.ndarray) -> None:
        """Write the products into an array."""
        torch.mul(self._left[:, :, None], self._right[:, None, :], out=torch.from_numpy(out))

    def __getitem__(self, rows: Any) -> OuterProductRows:
        """Return the products of some examples."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows)
        return OuterProductRows(self._left[rows], self._right[rows])

    def multiplied(self) -> Tensor:
        """Return the products as a tensor."""
        return self._left[:, :, None] * self._right[:, None, :]
