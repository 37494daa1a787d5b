"""One side of a factor pair: an array, or the rows of a table that were looked up."""

from __future__ import annotations

import dataclasses
from typing import Any

from array_api_compat import array_namespace, device, is_jax_namespace, is_torch_namespace


@dataclasses.dataclass(frozen=True)
class Dense:
    """``array`` is ``[batch, positions, n]``, or ``[batch, positions, groups, n]``.

    With ``one`` there is one more feature, which is 1 everywhere: it makes the bias of a layer one
    more column of its weight.
    """

    array: Any
    one: bool = False

    @property
    def groups(self) -> int | None:
        """How many groups there are, where there are such."""
        return self.array.shape[2] if self.array.ndim == 4 else None

    @property
    def size(self) -> int:
        """How many features there are."""
        return int(self.array.shape[-1]) + self.one

    @property
    def positions(self) -> int:
        """How many positions each example has."""
        return int(self.array.shape[1])

    def projected(self, matrix: Any) -> Dense:
        """The factor times a matrix ``[size, rank]``, or ``[groups, size, rank]``."""
        xp = array_namespace(self.array)
        plain = matrix[..., :-1, :] if self.one else matrix
        if self.groups is None:
            out = xp.matmul(self.array, plain)
        else:
            out = xp.permute_dims(xp.matmul(_by_group(self.array), plain), (0, 2, 1, 3))
        return Dense(out + matrix[..., -1, :] if self.one else out)

    def full(self) -> Any:
        """The array with all of its features."""
        if not self.one:
            return self.array
        xp = array_namespace(self.array)
        ones = xp.ones_like(self.array[..., :1])
        return xp.concat([self.array, ones], axis=-1)

    def masked(self, mask: Any) -> Dense:
        """The factor with zeros where the mask ``[batch, positions]`` is false."""
        xp = array_namespace(self.array)
        full = self.full()
        shape = (*mask.shape, *(1,) * (self.array.ndim - 2))
        kept = xp.reshape(xp.astype(mask, xp.bool), shape)
        return Dense(xp.where(kept, full, xp.zeros_like(full)))  # a NaN there is no NaN here

    def scaled(self, scale: Any) -> Dense:
        """The factor times a number for each example, ``[batch]``."""
        xp = array_namespace(self.array)
        shape = (self.array.shape[0], *(1,) * (self.array.ndim - 1))
        return Dense(self.full() * xp.reshape(scale, shape))

    def moment(self) -> Any:
        """The sum over examples and positions of its outer products with itself.

        ``[size, size]``, or ``[groups, size, size]``.
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
    """Features that are 1 at ``ids``, ``[batch, positions]``, and 0 at all others of ``size``.

    Where ``weights`` ``[batch, positions]`` are given, they stand in place of the 1.
    """

    ids: Any
    size: int
    weights: Any = None

    groups = None
    one = False

    @property
    def positions(self) -> int:
        """How many positions each example has."""
        return int(self.ids.shape[1])

    def projected(self, matrix: Any) -> Dense:
        """The rows of a matrix ``[size, rank]`` that are looked up."""
        xp = array_namespace(matrix)
        rows = xp.take(matrix, xp.reshape(self.ids, (-1,)), axis=0)
        rows = xp.reshape(rows, (*self.ids.shape, matrix.shape[1]))
        return Dense(self._weighted(rows))

    def full(self, like: Any = None) -> Any:
        """All features, ``[batch, positions, size]``, of the dtype of ``like``."""
        xp = array_namespace(self.ids)
        places = xp.arange(self.size, dtype=self.ids.dtype, device=device(self.ids))
        dtype = xp.float32 if like is None else like.dtype
        return self._weighted(xp.astype(self.ids[..., None] == places, dtype))

    def gathered(self, rows: Any) -> Any:
        """The sum over positions of its outer products with ``rows``, ``[batch, positions, n]``.

        ``[batch, size, n]``, by adding each row in its place.
        """
        xp = array_namespace(rows)
        batch = rows.shape[0]
        first = xp.arange(batch, dtype=self.ids.dtype, device=device(self.ids)) * self.size
        places = xp.reshape(self.ids + first[:, None], (-1,))
        flat = xp.reshape(self._weighted(rows), (-1, rows.shape[-1]))
        summed = _summed(xp, flat, places, batch * self.size)
        return xp.reshape(summed, (batch, self.size, rows.shape[-1]))

    def masked(self, mask: Any) -> OneHot:
        """The factor with zeros where the mask ``[batch, positions]`` is false."""
        return self._times(mask != 0)

    def scaled(self, scale: Any) -> OneHot:
        """The factor times a number for each example, ``[batch]``."""
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
        """Rows ``[batch, positions, n]`` times the weights, in the dtype of the rows."""
        if self.weights is None:
            return rows
        return rows * array_namespace(rows).astype(self.weights, rows.dtype)[..., None]

    def moment(self) -> Any:
        """The diagonal, ``[size]``, of the sum of its outer products with itself: the counts."""
        xp = array_namespace(self.ids)
        flat = xp.reshape(self.ids, (-1,))
        if self.weights is None:
            counted = xp.ones(flat.shape, dtype=xp.float32, device=device(flat))
        else:
            counted = xp.reshape(self.weights, (-1,)) ** 2
        return _summed(xp, counted, flat, self.size)


Factor = Dense | OneHot


def _by_group(array: Any) -> Any:
    """``[batch, positions, groups, n]`` as ``[batch, groups, positions, n]``."""
    return array_namespace(array).permute_dims(array, (0, 2, 1, 3))


def _summed(xp: Any, rows: Any, places: Any, size: int) -> Any:
    """``size`` rows of zeros, to which each of ``rows`` is added in its place.

    The array standard has no such sum; each library has.
    """
    zeros = xp.zeros((size, *rows.shape[1:]), dtype=rows.dtype, device=device(rows))
    if is_torch_namespace(xp):
        return zeros.index_add(0, places, rows)
    if is_jax_namespace(xp):
        return zeros.at[places].add(rows)
    xp.add.at(zeros, places, rows)
    return zeros
