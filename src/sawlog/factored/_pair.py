"""A factor pair, and the gradients it stands for."""

from __future__ import annotations

import dataclasses
from typing import Any

from array_api_compat import array_namespace, device

from sawlog.factored._factor import Dense, Factor, OneHot


@dataclasses.dataclass(frozen=True)
class Pair:
    """One use of a matrix of parameters ``[rows, cols]``, or ``[groups, rows, cols]``.

    Its gradient for example ``b`` is the sum over positions ``t`` of the outer products of
    ``left[b, t]`` and ``right[b, t]``.
    """

    left: Factor
    right: Factor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix of parameters."""
        sides = (self.left.size, self.right.size)
        groups = self.left.groups or self.right.groups
        return sides if groups is None else (groups, *sides)

    @property
    def batch(self) -> int:
        """How many examples there are."""
        factor = self.left
        return int((factor.ids if isinstance(factor, OneHot) else factor.array).shape[0])

    def projected(self, left: Any = None, right: Any = None) -> Pair:
        """The pair whose gradients are projected: ``left.T @ gradient @ right``.

        A side without a matrix stays as it is.
        """
        return Pair(
            self.left if left is None else self.left.projected(left),
            self.right if right is None else self.right.projected(right),
        )

    def masked(self, mask: Any) -> Pair:
        """The pair without the positions where ``mask``, ``[batch, positions]``, is false."""
        return Pair(self.left.masked(mask), self.right.masked(mask))

    def scaled(self, scale: Any) -> Pair:
        """The pair whose gradients are multiplied by a number for each example, ``[batch]``."""
        if isinstance(self.left, OneHot):
            return Pair(self.left, self.right.scaled(scale))
        return Pair(self.left.scaled(scale), self.right)


def gradient(pair: Pair, out: Any = None) -> Any:
    """The gradient of each example, ``[batch, rows, cols]``, or with groups before the rows.

    ``out`` is an array to put it into, where the library has such and neither side is one-hot.
    """
    left, right = pair.left, pair.right
    if isinstance(left, OneHot):
        return left.gathered(right.full())
    if isinstance(right, OneHot):
        return array_namespace(left.array).matrix_transpose(right.gathered(left.full()))
    xp = array_namespace(left.array, right.array)
    into = {} if out is None else {"out": out}
    one, two = left.full(), right.full()
    if left.groups is not None:
        one, two = xp.permute_dims(one, (0, 2, 3, 1)), xp.permute_dims(two, (0, 2, 1, 3))
        return xp.matmul(one, two, **into)
    if left.positions == 1:
        return xp.multiply(one[:, 0, :, None], two[:, 0, None, :], **into)
    return xp.matmul(xp.matrix_transpose(one), two, **into)


def rows(gradients: Any) -> Pair:
    """Gradients ``[batch, rows, cols]`` of a matrix that has no factors, as a pair of its shape.

    Its positions are the rows: each row stands where its number says.

    >>> import numpy as np
    >>> gradients = np.arange(12.0).reshape(2, 2, 3)
    >>> rows(gradients).shape, bool((gradient(rows(gradients)) == gradients).all())
    ((2, 3), True)
    """
    xp = array_namespace(gradients)
    batch, size = gradients.shape[:2]
    numbers = xp.arange(size, device=device(gradients))
    return Pair(OneHot(xp.broadcast_to(numbers, (batch, size)), size), Dense(gradients))


def vector(gradients: Any) -> Pair:
    """Gradients ``[batch, n]`` of a vector of parameters, as a pair of the shape ``[n, 1]``."""
    xp = array_namespace(gradients)
    return Pair(Dense(gradients[:, None, :]), Dense(xp.ones_like(gradients[:, None, :1])))
