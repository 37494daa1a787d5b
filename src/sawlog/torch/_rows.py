"""What the factor pairs of a batch become: rows for the store, and statistics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.run_files._blocks import Block
from sawlog.run_files._measured import LEFT, RIGHT
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import Statistics
from sawlog.torch._loss import Scale
from sawlog.torch._matrices import Matrices
from sawlog.torch._outer import Outer


class BlockRows:
    """The gradients of blocks for each example of a batch, projected and added up.

    Args:
        options: what is logged.
        matrices: projections and eigenbases.
        todo: which examples are to be logged, as a mask ``[batch]``; None is all.
        mask: which positions of each example count, ``[batch, positions]``.
        rooms: memory that batches share; rows are then good until the next.
    """

    def __init__(
        self,
        options: Options,
        matrices: Matrices,
        *,
        todo: Tensor | None,
        mask: Tensor | None,
        rooms: dict[Any, Tensor] | None,
    ) -> None:
        self._options, self._matrices = options, matrices
        self._todo, self._mask, self._rooms = todo, mask, rooms
        self.factor = 1.0  # what gradients are divided by, as the scale of a `GradScaler`
        self._lock = threading.Lock()
        self._grads: dict[str, Tensor | Outer] = {}
        self._moments: list[tuple[str, Tensor, int]] = []
        self._pairs: dict[str, list[Pair]] = {}

    def chosen(self, rows: Tensor) -> Tensor:
        """The rows of those examples that are to be logged."""
        return rows if self._todo is None else rows[self._todo.to(rows.device)]

    def projected(self, block: Block, pair: Pair) -> Pair:
        """The factors of one use, projected as the block is."""
        left, right = self._matrices.projection(block, device_of(pair), dtype_of(pair))
        return pair.projected(left, right)

    def take(self, block: Block, pair: Pair, scale: Scale) -> None:
        """Add the factors of one use of a block."""
        if self._todo is not None:
            pair = Pair(self._chosen_of(pair.left), self._chosen_of(pair.right))
        small = self.projected(block, pair)
        if self.needed:
            self._add_rows(block, self._scaled(small, scale))
        if "ekfac" in self._options.statistic:
            with self._lock:
                self._pairs.setdefault(block.name, []).append(self._scaled(small, scale))
        if "kfac" in self._options.statistic:
            self._add_moments(block, small, scale)

    def _add_rows(self, block: Block, pair: Pair) -> None:
        """Add to the gradients of a block; what is a product of vectors is made in the store."""
        with self._lock:
            there = self._grads.get(block.name)
            if there is None and self._can_wait(pair):
                left, right = pair.left.full()[:, 0], pair.right.full()[:, 0]
                self._grads[block.name] = Outer(left, right)
            elif there is None:
                self._grads[block.name] = gradient(pair, self._room(block, pair))
            else:
                there = there.made() if isinstance(there, Outer) else there
                self._grads[block.name] = there.add_(gradient(pair))

    def _can_wait(self, pair: Pair) -> bool:
        return (
            self._rooms is not None
            and self._options.dtype == "float32"
            and not {*self._options.statistic} - {"kfac", "ekfac"}
            and _is_product(pair)
            and device_of(pair).type == "cpu"
            and dtype_of(pair) == torch.float32
        )

    def _scaled(self, pair: Pair, scale: Scale) -> Pair:
        """The pair whose gradients are those of each example alone; the smaller side is scaled."""
        if isinstance(scale, float):
            by: Any = scale / self.factor
            if by == 1.0:
                return pair
        else:
            by = self.chosen(scale).to(device_of(pair), dtype_of(pair)) / self.factor
            by = by.reshape(-1, 1, 1, *(1,) * (pair.left.groups is not None))
        left, right = pair.left, pair.right
        if isinstance(left, OneHot) or (isinstance(right, Dense) and right.size < left.size):
            assert isinstance(right, Dense)
            return Pair(left, Dense(right.full() * by))
        return Pair(Dense(left.full() * by), right)

    def _room(self, block: Block, pair: Pair) -> Tensor | None:
        """Memory for the gradients of a block, from batch to batch the same."""
        if self._rooms is None or isinstance(pair.left, OneHot) or isinstance(pair.right, OneHot):
            return None
        key = (block.name, pair.batch, device_of(pair), dtype_of(pair))
        if key not in self._rooms:
            shape = (pair.batch, *pair.shape)
            self._rooms[key] = torch.empty(shape, device=key[2], dtype=key[3])
        return self._rooms[key]

    @property
    def needed(self) -> bool:
        """Whether the gradients themselves are needed, or only what they are made of."""
        factors = {"kfac", "ekfac"}
        return "grad" in self._options.saved or bool({*self._options.statistic} - factors)

    def _chosen_of(self, factor: Dense | OneHot) -> Dense | OneHot:
        if isinstance(factor, OneHot):
            weights = None if factor.weights is None else self.chosen(factor.weights)
            return OneHot(self.chosen(factor.ids), factor.size, weights)
        return Dense(self.chosen(factor.array), factor.one)

    def _add_moments(self, block: Block, pair: Pair, scale: Scale) -> None:
        """The second moments of both sides; that of the outputs with the scale of the loss."""
        if self._options.precision == "float64":
            pair = Pair(_double(pair.left), _double(pair.right))
        positions = pair.left.positions * pair.batch
        mask = None if self._mask is None else self.chosen(self._mask)
        if mask is not None and mask.shape[1:] == (pair.left.positions,):
            pair, positions = pair.masked(mask), int(mask.sum())
        inputs, outputs = pair.right, pair.left
        if block.inputs == "left":
            inputs, outputs = outputs, inputs
        if isinstance(scale, float):
            total = outputs.moment() * (scale / self.factor) ** 2
        else:
            own = self.chosen(scale).to(device_of(pair)) / self.factor
            total = outputs.scaled(own.to(dtype_of(pair))).moment()
        sides = (inputs.moment(), total)
        left, right = sides if block.inputs == "left" else sides[::-1]
        with self._lock:
            self._moments.append((f"{LEFT}/{block.name}", left, positions))
            self._moments.append((f"{RIGHT}/{block.name}", right, positions))

    # -- the end of the batch ---------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether rows of all examples are kept."""
        return self._todo is None and self.needed

    def total(self, block: Block, scale: Scale) -> Tensor:
        """The sum of the rows of a block, as the loss joins them."""
        found = self._grads.get(block.name)
        if found is None:
            return torch.zeros(block.stored, dtype=torch.float64)
        made = (found.made() if isinstance(found, Outer) else found).double().cpu()
        if isinstance(scale, float):
            return made.sum(0) * (self.factor / scale)
        by = torch.where(scale > 0, self.factor / scale, 0.0).cpu()
        return (made * by.reshape(-1, *(1,) * (made.dim() - 1))).sum(0)

    def rows(self, block: Block, examples: int) -> Tensor | Outer:
        """The gradients of a block; zeros where it was not used in this batch."""
        found = self._grads.pop(block.name, None)
        return torch.zeros((examples, *block.stored)) if found is None else found

    def add_statistics(
        self, add: Statistics, logs: Mapping[str, Any], blocks: tuple[Block, ...], examples: int
    ) -> None:
        """Add the batch to the statistics."""
        wanted = set(self._options.statistic)
        for name, total, count in self._moments:
            add.add(name, total, count)
        self._moments.clear()
        for name, rows in logs.items():
            if wanted & {"mean", "variance"}:
                add.add_rows(name, rows)
            if "covariance" in wanted:
                kind = name.partition("/")[0]
                flat = rows.reshape(len(rows), -1) if kind == "grad" else _by_position(rows)
                flat = flat.to(getattr(torch, self._options.precision))
                add.add(f"covariance:{name}", flat.mT @ flat, len(flat))
                add.add(f"mean:{name}", flat.sum(0), len(flat))
        if "ekfac" in wanted:
            for block in blocks:
                pairs = self._pairs.pop(block.name, [])
                add.add(f"ekfac/{block.name}", self._squares(block, pairs), examples)

    def _squares(self, block: Block, pairs: list[Pair]) -> Tensor:
        """The sum of squares of the gradients of a block in its eigenbasis."""
        if not pairs:  # not used in this batch
            return torch.zeros(block.stored)
        if len(pairs) == 1 and _is_product(pairs[0]):
            return self._matrices.squares_of(block, pairs[0])
        rows = gradient(pairs[0])
        for pair in pairs[1:]:
            rows = rows + gradient(pair)
        return self._matrices.squares(block, rows)


def _is_product(pair: Pair) -> bool:
    """Whether gradients are products of two vectors: one position, and no groups."""
    dense = isinstance(pair.left, Dense) and isinstance(pair.right, Dense)
    return dense and pair.left.positions == 1 and pair.left.groups is None


def _double(factor: Dense | OneHot) -> Dense | OneHot:
    if isinstance(factor, OneHot):
        weights = None if factor.weights is None else factor.weights.double()
        return OneHot(factor.ids, factor.size, weights)
    return Dense(factor.array.double(), factor.one)


def _by_position(rows: Tensor) -> Tensor:
    """``[batch, ..., n]`` as ``[all positions, n]``."""
    return rows.reshape(-1, rows.shape[-1]) if rows.ndim > 1 else rows.reshape(-1, 1)


def device_of(pair: Pair) -> torch.device:
    """Where a pair is."""
    device: torch.device = _dense(pair).array.device
    return device


def dtype_of(pair: Pair) -> torch.dtype:
    """The dtype of a pair."""
    dtype: torch.dtype = _dense(pair).array.dtype
    return dtype


def _dense(pair: Pair) -> Dense:
    factor = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(factor, Dense)
    return factor
