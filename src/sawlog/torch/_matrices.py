"""Projections and eigenbases of the blocks, as tensors where they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog.capture import Block, Compression, Measured
from sawlog.errors import ArgumentError, UnknownNameError
from sawlog.factored import Pair, principal, random_projection

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
        self._made = {block.name: _made(block, how, measured) for block in blocks}
        self._there: dict[Any, Any] = {}

    def projection(
        self, block: Block, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """The matrices of both sides, None for a side that stays whole."""
        return self._on(("projection", block.name), self._made[block.name], device, dtype)

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


def _made(
    block: Block, how: Compression | None, measured: Measured | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if how is None:
        return None, None
    if how.kind == "pca":
        return _main(block, measured)
    sides = []
    for side, rank in zip(("left", "right"), block.ranks, strict=True):
        size = block.rows if side == "left" else block.cols
        sides.append(None if rank is None else _random(block, how, side, size, rank))
    return sides[0], sides[1]


def _random(block: Block, how: Compression, side: str, size: int, rank: int) -> np.ndarray:
    groups = block.shape[:-2]
    names = [f"{block.name}/{side}" + (f"/{i}" if groups else "") for i in range(*groups or (1,))]
    made = [random_projection(how.kind, size, rank, seed=how.seed, name=name) for name in names]
    return np.stack(made) if groups else made[0]


def _main(block: Block, measured: Measured | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    hint = (
        'Hint: run over some data with statistic="kfac" and without compress first, finalize(), '
        "and set up again."
    )
    if measured is None:
        raise ArgumentError(f"compress kind='pca' needs covariances, and there are none. {hint}")
    try:
        moments = measured.kfac(block.name)
    except UnknownNameError as error:
        raise ArgumentError(f"compress kind='pca' needs covariances. {error} {hint}") from error
    sides: list[np.ndarray | None] = []
    for moment, rank, size in zip(moments, block.ranks, block.shape[-2:], strict=True):
        if rank is None:
            sides.append(None)
            continue
        if moment.shape[-1] != size:
            raise ArgumentError(
                f"The covariances of {block.name!r} are of size {moment.shape[-1]}, and those of "
                f"its whole gradient would be of size {size}: they were measured after a "
                f"projection. {hint}"
            )
        if block.shape[:-2]:
            sides.append(np.stack([principal(each, rank) for each in moment]))
        else:
            sides.append(principal(moment, rank))
    return sides[0], sides[1]
