"""Compute the statistics of one batch: K-FAC moments, EK-FAC squares, means and covariances."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.run_files._blocks import Block
from sawlog.run_files._log_names import kind_of
from sawlog.run_files._measured import LEFT, RIGHT
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._loss._terms import Scale
from sawlog.torch._rows._pairs import device_of, dtype_of, is_outer_product, scaled
from sawlog.torch._rows._projectors import Projectors


class BatchStatistics:
    """Collects what a batch adds to the statistics that the options select.

    Args:
        options: what is measured.
        projectors: the eigenbases for EK-FAC.
        batch: the batch.
    """

    def __init__(self, options: Options, projectors: Projectors, batch: BatchSpec) -> None:
        self._options, self._projectors, self._batch = options, projectors, batch
        self._wanted = frozenset(options.statistic)
        self._lock = threading.Lock()
        self._moments: list[tuple[str, Tensor, int]] = []
        self._pairs: dict[str, list[Pair]] = {}

    def add(
        self, block: Block, pair: Pair, scale: Scale, factor: float, inputs: str, whole: bool
    ) -> None:
        """Add one use of a block, given as a projected pair and the scale of its gradients.

        Args:
            block: the block.
            pair: the projected gradients.
            scale, factor: what they are multiplied and divided by.
            inputs: the side of the inputs, ``"left"`` or ``"right"``.
            whole: whether the pair was made of gradients that have no factors.
        """
        if "ekfac" in self._wanted:
            with self._lock:
                own = scaled(pair, scale, factor, self._batch)
                self._pairs.setdefault(block.name, []).append(own)
        if "kfac" in self._wanted:
            self._add_moments(block, pair, scale, factor, "left" if whole else inputs, not whole)

    def _add_moments(
        self, block: Block, pair: Pair, scale: Scale, factor: float, side: str, masks: bool
    ) -> None:
        """Add the second moments of both sides; only that of the outputs has the loss scale.

        A whole gradient has one row of the matrix at each of its positions, which no mask is for.
        """
        if self._options.precision == "float64":
            pair = Pair(_double(pair.left), _double(pair.right))
        positions = pair.left.positions * pair.batch
        mask = None if self._batch.mask is None else self._batch.chosen(self._batch.mask)
        if mask is not None and masks and mask.shape[1:] == (pair.left.positions,):
            pair, positions = pair.masked(mask), int(mask.sum())
        inputs, outputs = pair.right, pair.left
        if side == "left":
            inputs, outputs = outputs, inputs
        if isinstance(scale, float):
            total = outputs.moment() * (scale / factor) ** 2
        else:
            own = self._batch.chosen(scale).to(device_of(pair)) / factor
            total = outputs.scaled(own.to(dtype_of(pair))).moment()
        sides = (inputs.moment(), total)
        left, right = sides if side == "left" else sides[::-1]
        with self._lock:
            self._moments.append((f"{LEFT}/{block.name}", left, positions))
            self._moments.append((f"{RIGHT}/{block.name}", right, positions))

    def add_to(
        self, sums: RunStatistics, logs: Mapping[str, Any], blocks: Sequence[Block], examples: int
    ) -> None:
        """Add the batch to the statistics of a pass."""
        for name, total, count in self._moments:
            sums.add(name, total, count)
        for name, rows in logs.items():
            if self._wanted & {"mean", "variance"}:
                sums.add_rows(name, rows)
            if "covariance" in self._wanted:
                flat = (
                    rows.reshape(len(rows), -1) if kind_of(name) == "grad" else _by_position(rows)
                )
                flat = flat.to(getattr(torch, self._options.precision))
                sums.add(f"covariance:{name}", flat.mT @ flat, len(flat))
                sums.add(f"mean:{name}", flat.sum(0), len(flat))
        if "ekfac" in self._wanted:
            for block in blocks:
                pairs = self._pairs.pop(block.name, [])
                sums.add(f"ekfac/{block.name}", self._squares(block, pairs), examples)

    def _squares(self, block: Block, pairs: list[Pair]) -> Tensor:
        """Return the sum of squares of the gradients of a block in its eigenbasis."""
        if not pairs:  # the batch did not use the block
            return torch.zeros(block.stored)
        if len(pairs) == 1 and is_outer_product(pairs[0]):
            return self._projectors.squares_of(block, pairs[0])
        rows = gradient(pairs[0])
        for pair in pairs[1:]:
            rows = rows + gradient(pair)
        return self._projectors.squares(block, rows)


def _double(factor: Dense | OneHot) -> Dense | OneHot:
    if isinstance(factor, OneHot):
        weights = None if factor.weights is None else factor.weights.double()
        return OneHot(factor.ids, factor.size, weights)
    return Dense(factor.array.double(), factor.one)


def _by_position(rows: Tensor) -> Tensor:
    """Reshape ``[batch, ..., n]`` to ``[all positions, n]``."""
    return rows.reshape(-1, rows.shape[-1]) if rows.ndim > 1 else rows.reshape(-1, 1)
