"""Projections and eigenbases of the blocks, as tensors where they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Compression
from sawlog.run_files._projections import projection_of

CHUNK = 64 * 2**20


class Matrices:
    """What the gradients of each block are multiplied with.

    Args:
        blocks: all of them.
        how: how they are projected; None leaves them whole.
        measured: statistics of an earlier pass, for projections on main directions.
        bases: the eigenbases for EK-FAC, by block.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        how: Compression | None,
        measured: Measured | None,
        bases: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self._bases = dict(bases or {})
        made = {block.name: projection_of(block, how, measured) for block in blocks}
        self.made = {name: (each.left, each.right) for name, each in made.items()}
        self._there: dict[Any, Any] = {}

    def projection(
        self, block: Block, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """The matrices of both sides, None for a side that stays whole."""
        return self._on(("projection", block.name), self.made[block.name], device, dtype)

    def _on(self, name: Any, arrays: Any, device: torch.device, dtype: torch.dtype) -> Any:
        key = (name, device, dtype)
        if key not in self._there:
            self._there[key] = tuple(
                None if each is None else torch.as_tensor(each, dtype=dtype, device=device)
                for each in arrays
            )
        return self._there[key]

    def squares_of(self, block: Block, pair: Pair) -> Tensor:
        """The same as :meth:`squares`, of a pair with one position: no gradient is made at all.

        The square of a product is the product of squares, so one matrix product sums them up.
        """
        rows = pair.left.full()
        bases = self._on(("basis", block.name), self._bases[block.name], rows.device, rows.dtype)
        turned = pair.projected(*(each if each.ndim > 1 else None for each in bases))
        left, right = turned.left.full()[:, 0], turned.right.full()[:, 0]
        total: Tensor = (left**2).mT @ right**2
        return total

    def squares(self, block: Block, rows: Tensor) -> Tensor:
        """The sum over examples of the squares of their gradients in the eigenbasis."""
        bases = self._bases[block.name]
        left, right = self._on(("basis", block.name), bases, rows.device, rows.dtype)
        total = torch.zeros(rows.shape[1:], dtype=rows.dtype, device=rows.device)
        size = max(1, CHUNK // max(1, rows[:1].numel() * rows.element_size()))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            if left.ndim > 1:  # a vector stands for a basis of single elements
                part = left.mT @ part
            if right.ndim > 1:
                part = part @ right
            total += (part**2).sum(0)
        return total
