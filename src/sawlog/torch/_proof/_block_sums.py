"""Sums over examples of the gradients of blocks, compared with the gradients of a batch."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._hooks._hooks import LayerCall
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import (
    precision_of,
    projected_gradient,
    rounding_of,
    weighted_sum,
)
from sawlog.torch._rows._row_builder import RowBuilder


class BlockSums:
    """Sums the gradients of all examples of a batch, plain and weighted, for each block.

    Args:
        watched: the blocks and their parameters.
        rows: projects gradients.
        factors: the factors of the examples in each weighted sum.
    """

    def __init__(self, watched: Watched, rows: RowBuilder, factors: Sequence[Tensor]) -> None:
        self._watched, self._rows, self._factors = watched, rows, factors
        self._lock = threading.Lock()
        self._sums: dict[str, list[Tensor]] = {}
        self._rounding: dict[str, float] = {}
        self._dtypes: dict[str, set[torch.dtype]] = {}

    def add(self, block: Block, pair: Pair) -> None:
        """Add the projected gradients of one use of a block, for all examples."""
        ones = torch.ones(pair.batch, dtype=torch.float64)
        found = [weighted_sum(pair, each).double().cpu() for each in (ones, *self._factors)]
        with self._lock:
            before = self._sums.get(block.name)
            sums = found if before is None else [a + b for a, b in zip(before, found, strict=True)]
            self._sums[block.name] = sums
            rounding = self._rounding.get(block.name, 0.0) + 32 * rounding_of(pair)
            self._rounding[block.name] = rounding

    def add_dtype(self, call: LayerCall, dtype: torch.dtype) -> None:
        """Record the dtype of a gradient from which the rows of a layer are computed."""
        for share in call.unit.shares:
            self._dtypes.setdefault(share.block.name, set()).add(dtype)

    def check(self, totals: Sequence[Mapping[str, Tensor | None]]) -> None:
        """Compare all sums with the gradients of the parameters in each pass.

        Args:
            totals: for the plain pass and each weighted one, the gradients by name.

        Raises:
            CaptureError: the sums of a block differ from its gradient.
        """
        parameters = self._watched.parameters
        every = [grad for grads in totals for grad in grads.values() if grad is not None]
        greatest = max((float(grad.double().norm()) for grad in every), default=0.0)
        for block in self._watched.blocks:
            dtypes = {parameters[name].dtype for name in block.parameters}
            precision = max(map(precision_of, dtypes | self._dtypes.get(block.name, set())))
            for number, grads in enumerate(totals):
                want = projected_gradient(self._rows, block, grads, parameters)
                sums = self._sums.get(block.name)
                got = torch.zeros_like(want) if sums is None else sums[number]
                limit = precision * (float(want.norm()) + 0.01 * greatest)
                if not float((got - want).norm()) <= limit + self._rounding.get(block.name, 0.0):
                    raise CaptureError(
                        f"The gradients of the examples for {block.name!r} do not add up to that "
                        "of the batch: it is used in a way that cannot be seen through reentrant "
                        "checkpointing. Hint: checkpoint(..., use_reentrant=False)."
                    )
