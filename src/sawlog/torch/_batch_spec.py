"""One batch as the caller of ``run(...)`` described it."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from sawlog.factored import Dense, OneHot, Pair


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """The examples of a batch and where they are in its tensors.

    Args:
        size: the number of examples.
        todo: which of them to log, a mask ``[batch]``; None is all.
        mask: which positions of each example count, ``[batch, positions]``.
        factor: the scale of the ``GradScaler`` passed to ``run(...)``; 1.0 if none was.
        axis: the axis of the examples.
        views: how many times the batch was concatenated with itself.
    """

    size: int
    todo: Tensor | None = None
    mask: Tensor | None = None
    factor: float = 1.0
    axis: int = 0
    views: int = 1

    def chosen(self, rows: Tensor) -> Tensor:
        """Return the rows of the examples to log."""
        return rows if self.todo is None else rows[self.todo.to(rows.device)]

    def chosen_pair(self, pair: Pair) -> Pair:
        """Return the factors of the examples to log."""
        if self.todo is None:
            return pair
        return Pair(self._chosen_factor(pair.left), self._chosen_factor(pair.right))

    def _chosen_factor(self, factor: Dense | OneHot) -> Dense | OneHot:
        if isinstance(factor, OneHot):
            weights = None if factor.weights is None else self.chosen(factor.weights)
            return OneHot(self.chosen(factor.ids), factor.size, weights)
        return Dense(self.chosen(factor.array), factor.one)
