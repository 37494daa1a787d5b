"""Build the rows of a batch: per-example gradients, projected, added up and encoded."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sawlog.factored import OneHot, Pair, gradient
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import encode
from sawlog.run_files._log_names import kind_of
from sawlog.run_files._options import Options
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._rows._outer_product_rows import OuterProductRows
from sawlog.torch._rows._pairs import device_of, dtype_of, is_outer_product
from sawlog.torch._rows._projectors import Projectors


class RowBuilder:
    """Turns the factor pairs of blocks into rows ``[examples, *block.stored]``.

    Args:
        options: what is logged.
        projectors: the projection matrices of the blocks.
        batch: the batch.
        memory: buffers that batches share; rows are then valid until the next batch. None
            allocates new ones.
    """

    def __init__(
        self,
        options: Options,
        projectors: Projectors,
        batch: BatchSpec,
        memory: dict[Any, Tensor] | None = None,
    ) -> None:
        self._options, self._projectors, self._batch = options, projectors, batch
        self._memory = memory
        self._lock = threading.Lock()
        self._grads: dict[str, Tensor | OuterProductRows] = {}

    @property
    def needed(self) -> bool:
        """Whether gradients are stored or enter statistics, rather than only their factors."""
        factors = {"kfac", "ekfac"}
        return "grad" in self._options.saved or bool({*self._options.statistic} - factors)

    def projected(self, block: Block, pair: Pair) -> Pair:
        """Return a pair projected to the ranks of its block."""
        left, right = self._projectors.projection(block, device_of(pair), dtype_of(pair))
        return pair.projected(left, right)

    def add(self, block: Block, pair: Pair) -> None:
        """Add the gradients of one use of a block, given as a projected and scaled pair."""
        with self._lock:
            before = self._grads.get(block.name)
            if before is None and self._can_defer(pair):
                left, right = pair.left.full()[:, 0], pair.right.full()[:, 0]
                self._grads[block.name] = OuterProductRows(left, right)
            elif before is None:
                self._grads[block.name] = gradient(pair, self._buffer(block, pair))
            else:
                before = before.multiplied() if isinstance(before, OuterProductRows) else before
                self._grads[block.name] = before.add_(gradient(pair))

    def _can_defer(self, pair: Pair) -> bool:
        """Return whether the store can multiply the factors itself, into its own memory."""
        return (
            self._memory is not None
            and self._options.dtype == "float32"
            and not {*self._options.statistic} - {"kfac", "ekfac"}
            and is_outer_product(pair)
            and device_of(pair).type == "cpu"
            and dtype_of(pair) == torch.float32
        )

    def _buffer(self, block: Block, pair: Pair) -> Tensor | None:
        """Return memory for the gradients of a block, which later batches use again."""
        if self._memory is None or isinstance(pair.left, OneHot) or isinstance(pair.right, OneHot):
            return None
        key = (block.name, pair.batch, device_of(pair), dtype_of(pair))
        if key not in self._memory:
            shape = (pair.batch, *pair.shape)
            self._memory[key] = torch.empty(shape, device=key[2], dtype=key[3])
        return self._memory[key]

    def rows(self, block: Block, examples: int) -> Tensor | OuterProductRows:
        """Return and release the rows of a block; zeros if the batch did not use it."""
        found = self._grads.pop(block.name, None)
        return torch.zeros((examples, *block.stored)) if found is None else found

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return logs as columns of the store, encoded as the options say."""
        columns: dict[str, Any] = {}
        for name, rows in logs.items():
            if kind_of(name) not in self._options.saved:
                continue
            deferred = isinstance(rows, OuterProductRows)
            columns.update({name: rows} if deferred else encode(name, rows, self._options.dtype))
        return columns
