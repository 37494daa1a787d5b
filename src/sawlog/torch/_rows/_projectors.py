"""Projections and eigenbases of the blocks, as tensors on the device that needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog.factored import Pair
from sawlog.run_files._blocks import Block

CHUNK = 64 * 2**20


class Projectors:
    """The matrices that the gradients of each block are multiplied by.

    Args:
        projections: the left and right projection by block; None for a side that is not projected.
        bases: the left and right eigenbasis for EK-FAC by block.
    """

    def __init__(
        self,
        projections: Mapping[str, tuple[np.ndarray | None, np.ndarray | None]],
        bases: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self._projections, self._bases = projections, bases
        self._tensors: dict[Any, Any] = {}

    def projection(
        self, block: Block, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the matrices of both sides; None for a side that is not projected."""
        return self._on(("projection", block.name), self._projections[block.name], device, dtype)

    def _on(self, name: Any, arrays: Any, device: torch.device, dtype: torch.dtype) -> Any:
        key = (name, device, dtype)
        if key not in self._tensors:
            self._tensors[key] = tuple(
                None if each is None else torch.as_tensor(each, dtype=dtype, device=device)
                for each in arrays
            )
        return self._tensors[key]

    def squares_of(self, block: Block, pair: Pair) -> Tensor:
        """Return :meth:`squares` for a pair with one position, without computing gradients.

        The square of a product is the product of squares, so one matrix product sums them.
        """
        rows = pair.left.full()
        bases = self._on(("basis", block.name), self._bases[block.name], rows.device, rows.dtype)
        turned = pair.projected(*(each if each.ndim > 1 else None for each in bases))
        left, right = turned.left.full()[:, 0], turned.right.full()[:, 0]
        total: Tensor = (left**2).mT @ right**2
        return total

    def squares(self, block: Block, rows: Tensor) -> Tensor:
        """Return the sum over examples of their squared gradients in the eigenbasis."""
        bases = self._bases[block.name]
        left, right = self._on(("basis", block.name), bases, rows.device, rows.dtype)
        total = torch.zeros(rows.shape[1:], dtype=rows.dtype, device=rows.device)
        size = max(1, CHUNK // max(1, rows[:1].numel() * rows.element_size()))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            if left.ndim > 1:  # a vector represents the identity
                part = left.mT @ part
            if right.ndim > 1:
                part = part @ right
            total += (part**2).sum(0)
        return total
