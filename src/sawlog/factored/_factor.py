"""One side of a factor pair: a dense array, or one-hot rows of a table."""

from __future__ import annotations

import dataclasses
from typing import Any

from array_api_compat import array_namespace, device, is_jax_namespace, is_torch_namespace


@dataclasses.dataclass(frozen=True)
class Dense:
    """A factor that is an array.

    Args:
        array: ``[batch, positions, features]``, or ``[batch, positions, groups, features]``.
        one: Whether to append a feature that is 1 everywhere. It makes the bias of a layer one more
            column of its weight.

    >>> import numpy as np
    >>> Dense(np.zeros((2, 1, 3)), one=True).full()[0]
    array([[0., 0., 0., 1.]])
    """

    array: Any
    one: bool = False

    @property
    def groups(self) -> int | None:
        """The number of groups; None if the factor has no groups."""
        return self.array.shape[2] if self.array.ndim == 4 else None

    @property
    def size(self) -> int:
        """The number of features, with the constant one."""
        return int(self.array.shape[-1]) + self.one

    @property
    def positions(self) -> int:
        """The number of positions of an example."""
        return int(self.array.shape[1])

    def projected(self, matrix: Any) -> Dense:
        """Multiply by a matrix ``[size, rank]``, or ``[groups, size, rank]``."""
        xp = array_namespace(self.array)
        plain = matrix[..., :-1, :] if self.one else matrix
        if self.groups is None:
            out = xp.matmul(self.array, plain)
        else:
            out = xp.permute_dims(xp.matmul(_by_group(self.array), plain), (0, 2, 1, 3))
        return Dense(out + matrix[..., -1, :] if self.one else out)

    def full(self) -> Any:
        """Return the array with the constant feature."""
        if not self.one:
            return self.array
        xp = array_namespace(self.array)
        ones = xp.ones_like(self.array[..., :1])
        return xp.concat([self.array, ones], axis=-1)

    def masked(self, mask: Any) -> Dense:
        """Set positions to zero where the mask ``[batch, positions]`` is false."""
        xp = array_namespace(self.array)
        full = self.full()
        shape = (*mask.shape, *(1,) * (self.array.ndim - 2))
        kept = xp.reshape(xp.astype(mask, xp.bool), shape)
        return Dense(xp.where(kept, full, xp.zeros_like(full)))  # NaN times 0 would stay NaN

    def scaled(self, scale: Any) -> Dense:
        """Multiply each example by a number, ``[batch]``."""
        xp = array_namespace(self.array)
        shape = (self.array.shape[0], *(1,) * (self.array.ndim - 1))
        return Dense(self.full() * xp.reshape(scale, shape))

    def moment(self) -> Any:
        """Return the second moment, summed over examples and positions.

        Its shape is ``[size, size]``, or ``[groups, size, size]``.
        """
        xp = array_namespace(self.array)
        full = self.full()
        if self.groups is None:
            flat = xp.reshape(full, (-1, full.shape[-1]))
            return xp.matmul(flat.T, flat)
        flat = xp.reshape(full, (-1, *full.shape[2:]))  # [all, groups, n]
        by_group = xp.permute_dims(flat, (1, 0, 2))
        return xp.matmul(xp.matrix_transpose(by_group), by_group)


@dataclasses.dataclass(frozen=True)
class OneHot:
    """A factor whose features are one-hot, such as the rows that an embedding looks up.

    Args:
        ids: The index of the feature that is 1, ``[batch, positions]``.
        size: The number of features.
        weights: Values to use in place of 1, ``[batch, positions]``.

    >>> import numpy as np
    >>> OneHot(np.array([[2, 0]]), size=3).full()[0]
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    ids: Any
    size: int
    weights: Any = None

    groups = None
    one = False

    @property
    def positions(self) -> int:
        """The number of positions of an example."""
        return int(self.ids.shape[1])

    def projected(self, matrix: Any) -> Dense:
        """Multiply by a matrix ``[size, rank]``, by looking up its rows."""
        xp = array_namespace(matrix)
        rows = xp.take(matrix, xp.reshape(self.ids, (-1,)), axis=0)
        rows = xp.reshape(rows, (*self.ids.shape, matrix.shape[1]))
        return Dense(self._weighted(rows))

    def full(self, like: Any = None) -> Any:
        """Return ``[batch, positions, size]`` in the dtype of ``like``, or float32."""
        xp = array_namespace(self.ids)
        numbers = xp.arange(self.size, dtype=self.ids.dtype, device=device(self.ids))
        dtype = xp.float32 if like is None else like.dtype
        return self._weighted(xp.astype(self.ids[..., None] == numbers, dtype))

    def gathered(self, rows: Any) -> Any:
        """Sum the outer products with ``rows`` over positions, by scatter-add.

        Args:
            rows: ``[batch, positions, n]``.

        Returns:
            ``[batch, size, n]``.
        """
        xp = array_namespace(rows)
        batch = rows.shape[0]
        first = xp.arange(batch, dtype=self.ids.dtype, device=device(self.ids)) * self.size
        index = xp.reshape(self.ids + first[:, None], (-1,))
        flat = xp.reshape(self._weighted(rows), (-1, rows.shape[-1]))
        summed = _summed(xp, flat, index, batch * self.size)
        return xp.reshape(summed, (batch, self.size, rows.shape[-1]))

    def masked(self, mask: Any) -> OneHot:
        """Set positions to zero where the mask ``[batch, positions]`` is false."""
        return self._times(mask != 0)

    def scaled(self, scale: Any) -> OneHot:
        """Multiply each example by a number, ``[batch]``."""
        return self._times(scale[:, None])

    def _times(self, weights: Any) -> OneHot:
        xp = array_namespace(self.ids)
        weights = xp.broadcast_to(weights, self.ids.shape)
        if not xp.isdtype(weights.dtype, "real floating"):
            dtype = xp.float32 if self.weights is None else self.weights.dtype
            weights = xp.astype(weights, dtype)
        if self.weights is not None:
            weights = self.weights * weights
        return dataclasses.replace(self, weights=weights)

    def _weighted(self, rows: Any) -> Any:
        """Multiply rows ``[batch, positions, n]`` by the weights, in the dtype of the rows."""
        if self.weights is None:
            return rows
        return rows * array_namespace(rows).astype(self.weights, rows.dtype)[..., None]

    def moment(self) -> Any:
        """Return the diagonal of the second moment, ``[size]``: counts, or squared weights."""
        xp = array_namespace(self.ids)
        flat = xp.reshape(self.ids, (-1,))
        if self.weights is None:
            counted = xp.ones(flat.shape, dtype=xp.float32, device=device(flat))
        else:
            counted = xp.reshape(self.weights, (-1,)) ** 2
        return _summed(xp, counted, flat, self.size)


Factor = Dense | OneHot


def _by_group(array: Any) -> Any:
    """Swap the axes of positions and groups."""
    return array_namespace(array).permute_dims(array, (0, 2, 1, 3))


def _summed(xp: Any, rows: Any, index: Any, size: int) -> Any:
    """Scatter-add ``rows`` into ``size`` rows of zeros.

    The array API standard has no scatter-add, but each library does.
    """
    zeros = xp.zeros((size, *rows.shape[1:]), dtype=rows.dtype, device=device(rows))
    if is_torch_namespace(xp):
        return zeros.index_add(0, index, rows)
    if is_jax_namespace(xp):
        return zeros.at[index].add(rows)
    xp.add.at(zeros, index, rows)
    return zeros
