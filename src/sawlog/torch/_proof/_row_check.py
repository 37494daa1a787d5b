"""Compare rows with the gradients of a batch: weighted and summed, they must be equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import (
    precision_of,
    projected_gradient,
    rounding_of,
    weighted_sum,
)
from sawlog.torch._proof._measured_gradients import MeasuredGradients
from sawlog.torch._rows._row_builder import RowBuilder


class RowCheck:
    """Checks the rows of blocks against the measured gradients of their parameters.

    Args:
        watched: the parameters.
        rows: projects pairs.
        measured: the gradients.
        uses: the uses of each parameter, by name.
    """

    def __init__(
        self,
        watched: Watched,
        rows: RowBuilder,
        measured: MeasuredGradients,
        uses: Mapping[str, Sequence[WeightUse]],
    ) -> None:
        self._watched, self._rows = watched, rows
        self._measured, self._uses = measured, uses
        every = [grad for grads in measured.totals for grad in grads.values()]
        norms = (float(grad.double().norm()) for grad in every if grad is not None)
        self._greatest = max(norms, default=0.0)

    def is_complete(self, block: Block, pairs: Sequence[Pair]) -> bool:
        """Return whether there are as many pairs as operations that use each parameter."""
        counts = [len({use.number for use in self._uses[name]}) for name in block.parameters]
        return max(counts, default=0) <= len(pairs)

    def holds(self, block: Block, pairs: Sequence[Pair], complete: bool = True) -> bool:
        """Return whether the rows of a block sum to its gradient in every weighted pass.

        Args:
            block: the block.
            pairs: the factors of its uses.
            complete: whether no use can be missing. The sums may then differ by rounding in other
                layers, where the gradients of the block are much smaller than those of others.
        """
        tolerance = self._precision(block)
        small = [self._rows.projected(block, pair) for pair in pairs]
        rounding = 32 * sum(rounding_of(pair) for pair in small)
        for factors, grads in zip(self._measured.codes.factors, self._measured.totals, strict=True):
            want = projected_gradient(self._rows, block, grads, self._watched.parameters)
            got = torch.zeros_like(want)
            for pair in small:
                got += weighted_sum(pair, factors).double().cpu()
            apart = float((got - want).norm())
            others = 0.01 * self._greatest if complete else 0.0
            limit = tolerance * (float(want.norm()) + others) + rounding * float(factors.max())
            if not apart <= limit:
                return False
        return True

    def _precision(self, block: Block) -> float:
        """Return the relative error allowed, by the least precise gradient that rows come from."""
        dtypes = [self._watched.parameters[name].dtype for name in block.parameters]
        for number, (grad, *_) in self._measured.of_calls.items():
            if any(s.block.name == block.name for s in self._measured.calls[number].unit.shares):
                dtypes.append(grad.dtype)
        for use in (use for name in block.parameters for use in self._uses[name]):
            grads = self._measured.of_nodes.get(use.number, [()])[0]
            dtypes += [grad.dtype for grad in grads if grad is not None]
        return max(map(precision_of, dtypes))
