"""Slots: the zeros that receive projected gradients, and the factors of each use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.factored import Dense, Factor, OneHot, Pair, gradient
from sawlog.jax._capture.factors import UseFactors
from sawlog.jax._capture.links import link
from sawlog.jax._capture.views import Atoms, ParameterView, canonical, in_order, size_of
from sawlog.jax._core import arrays


@dataclasses.dataclass(frozen=True)
class BlockSlot:
    """Receives the projected gradients of a block, from its weight or its bias.

    Args:
        zeros: ``[examples, *groups, left rank, right rank]``.
        left, right: Projection matrices ``[*groups, size, rank]``; None for a side that is whole.
        groups, lefts, rights: The atoms of the parameter that are groups, rows and columns.
        inputs: The side of the inputs, ``"left"`` or ``"right"``.
        bias: Whether this is the slot of the bias, whose input is one more feature that is 1.
        has_bias: Whether the block has a bias.
    """

    zeros: Any
    left: Any
    right: Any
    groups: Atoms
    lefts: Atoms
    rights: Atoms
    inputs: str
    bias: bool = False
    has_bias: bool = False

    @property
    def arrays(self) -> list[Any]:
        """The arrays that a loop passes to its iterations."""
        return [self.zeros, self.left, self.right]

    def matrices(self) -> tuple[Any, Any]:
        """Return the projections of the rows and columns of the weight, without the bias."""
        left, right = self.left, self.right
        if self.has_bias and self.inputs == "left":
            left = None if left is None else left[..., :-1, :]
        elif self.has_bias:
            right = None if right is None else right[..., :-1, :]
        return left, right

    def whole(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return zeros ``[examples, *shape]`` for gradients of the parameter itself."""

        def back(cotangent: Any, matrices: Any) -> Any:
            return [dataclasses.replace(self, left=matrices[0], right=matrices[1]).rows(cotangent)]

        core = jax.ShapeDtypeStruct(tuple(shape), dtype)
        return link([self.zeros], core, (self.left, self.right), back)

    def rows(self, gradients: Any) -> Any:
        """Return what the block receives from gradients ``[examples, *shape]``."""
        return self._of_bias(gradients) if self.bias else self._of_weight(gradients)

    def _of_weight(self, rows: Any) -> Any:
        atoms = (*self.groups, *self.lefts, *self.rights)
        ordered = in_order(atoms)
        rows = jnp.reshape(rows, (rows.shape[0], *(atom.size for atom in ordered)))
        rows = jnp.transpose(rows, (0, *(ordered.index(atom) + 1 for atom in atoms)))
        groups = tuple(atom.size for atom in self.groups)
        rows = jnp.reshape(
            rows, (rows.shape[0], *groups, size_of(self.lefts), size_of(self.rights))
        )
        left, right = self.matrices()
        if left is not None:
            rows = jnp.swapaxes(left, -1, -2) @ rows
        if right is not None:
            rows = rows @ right
        return self._padded(rows)

    def _padded(self, rows: Any) -> Any:
        """Add zeros for the bias where the side of the inputs is whole."""
        missing = self.zeros.shape[-2] - rows.shape[-2], self.zeros.shape[-1] - rows.shape[-1]
        if not any(missing):
            return rows
        return jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, missing[0]), (0, missing[1])])

    def _of_bias(self, rows: Any) -> Any:
        groups = tuple(atom.size for atom in self.groups)
        rows = jnp.reshape(
            rows, (rows.shape[0], *groups, math.prod(rows.shape[1:]) // math.prod(groups))
        )
        outs, ins = (self.left, self.right) if self.inputs == "right" else (self.right, self.left)
        if outs is not None:
            rows = (rows[..., None, :] @ outs)[..., 0, :]
        size = self.zeros.shape[-1 if self.inputs == "right" else -2]
        one = jnp.eye(size, dtype=rows.dtype)[-1] if ins is None else ins[..., -1, :]
        if self.inputs == "right":
            return rows[..., :, None] * one[..., None, :]
        return one[..., :, None] * rows[..., None, :]

    def sides(self, view: ParameterView, factors: UseFactors) -> tuple[Any, Any] | None:
        """Return the projections of cotangents and inputs of a use, in the order of its features.

        Returns:
            None if the use divides the parameter in another way than the block.
        """
        sides = partition(view, factors)
        if sides is None:
            return None
        groups, outs, ins = sides
        if groups != self.groups:
            return None
        left, right = self.matrices()
        if canonical(outs) == canonical(self.lefts) and canonical(ins) == canonical(self.rights):
            return (_Side(left, outs), _Side(right, ins))
        if canonical(outs) == canonical(self.rights) and canonical(ins) == canonical(self.lefts):
            return (_Side(right, outs), _Side(left, ins))
        return None

    def swapped(self, view: ParameterView, factors: UseFactors) -> bool:
        """Return whether the cotangents of a use are columns of the block."""
        sides = partition(view, factors)
        return sides is not None and canonical(sides[1]) != canonical(self.lefts)


@dataclasses.dataclass(frozen=True)
class _Side:
    """A projection matrix, and the atoms whose features it is applied to."""

    matrix: Any
    atoms: Atoms

    def arranged(self) -> Any:
        """Return the matrix with its rows in the order of the atoms; None without a matrix."""
        if self.matrix is None:
            return None
        ordered = in_order(self.atoms)
        if ordered == self.atoms:
            return self.matrix
        lead = self.matrix.shape[:-2]
        parts = jnp.reshape(self.matrix, (*lead, *(a.size for a in ordered), -1))
        count = len(lead)
        order = [ordered.index(atom) + count for atom in self.atoms]
        parts = jnp.transpose(parts, (*range(count), *order, count + len(order)))
        return jnp.reshape(parts, self.matrix.shape)


def partition(view: ParameterView, factors: UseFactors) -> tuple[Atoms, Atoms, Atoms] | None:
    """Return the atoms of a parameter that are groups, outputs and inputs of a use."""
    split = view.reshaped(factors.shape)
    if split is None:
        return None
    groups = split.atoms(factors.groups)
    if groups != in_order(groups):
        return None
    return groups, split.atoms(factors.outs), split.atoms(factors.ins)


def factor(features: Any, factors: UseFactors, table: int, *, one: bool = False) -> Factor:
    """Return inputs as a factor: ids are one-hot, and several groups are one."""
    if factors.lookup:
        return OneHot(features, table)
    return Dense(grouped(features), one=one)


def grouped(features: Any) -> Any:
    """Merge the groups of ``[examples, positions, *groups, features]``."""
    if features.ndim <= 4:
        return features
    sizes = features.shape
    return jnp.reshape(features, (*sizes[:2], math.prod(sizes[2:-1]), sizes[-1]))


def _flat(matrix: Any) -> Any:
    """Merge the groups of a projection matrix."""
    if matrix is None or matrix.ndim <= 3:
        return matrix
    return jnp.reshape(matrix, (-1, *matrix.shape[-2:]))


def project_inputs(
    slot: BlockSlot, view: ParameterView, factors: UseFactors, operands: Sequence[Any], dtype: Any
) -> Any:
    """Return the projected inputs of a use, as they are kept for the backward pass."""
    sides = slot.sides(view, factors)
    assert sides is not None
    matrix = _flat(sides[1].arranged())
    found = factors.inputs(operands)
    if matrix is None:
        return found
    made = factor(found, factors, matrix.shape[-2]).projected(matrix.astype(dtype))
    return made.array


def projected_rows(
    slot: BlockSlot, view: ParameterView, factors: UseFactors, cotangents: Any, inputs: Any
) -> Any:
    """Return what a slot receives from a use.

    Args:
        slot: The slot, with its matrices.
        view: The view of the parameter that the use sees.
        factors: The factors of the use.
        cotangents: ``[examples, positions, *groups, outs]``.
        inputs: What :func:`project_inputs` returned.
    """
    sides = slot.sides(view, factors)
    assert sides is not None
    out, into = sides
    matrix = _flat(out.arranged())
    left: Factor = Dense(grouped(cotangents))
    if matrix is not None:
        left = left.projected(matrix.astype(cotangents.dtype))
    whole = into.matrix is None
    right = factor(inputs, factors, size_of(into.atoms)) if whole else Dense(inputs)
    pair = Pair(right, left) if slot.swapped(view, factors) else Pair(left, right)
    rows = gradient(pair)
    sizes = tuple(atom.size for atom in slot.groups)
    rows = jnp.reshape(rows, (rows.shape[0], *sizes, *rows.shape[-2:]))
    ordered = _reordered(rows, slot, sides, slot.swapped(view, factors))
    return slot._padded(ordered)


def _reordered(rows: Any, slot: BlockSlot, sides: tuple[Any, Any], swapped: bool) -> Any:
    """Return rows whose unprojected sides are in the order of the parameter."""
    first, second = (sides[1], sides[0]) if swapped else sides
    for axis, side in ((-2, first), (-1, second)):
        ordered = in_order(side.atoms)
        if side.matrix is not None or ordered == side.atoms:
            continue
        moved = jnp.moveaxis(rows, axis, -1)
        parts = jnp.reshape(moved, (*moved.shape[:-1], *(a.size for a in side.atoms)))
        lead = moved.ndim - 1
        order = [lead + side.atoms.index(atom) for atom in ordered]
        parts = jnp.transpose(parts, (*range(lead), *order))
        rows = jnp.moveaxis(jnp.reshape(parts, moved.shape), -1, axis)
    return rows


class Zeros:
    """Hands out zeros that receive factors, and remembers their types.

    Args:
        arrays: The zeros, in the order in which they will be taken; None makes new ones, which
            receive nothing, to find out the types.
    """

    def __init__(self, arrays: Sequence[Any] | None = None) -> None:
        self._arrays = arrays
        self.types: list[Any] = []
        self.axes: list[int] = []

    def take(self, like: Any, axis: int = 0) -> Any:
        """Return the next zeros: of the type of an array, with its examples along ``axis``."""
        kind = arrays.type_of(like)
        self.types.append(kind)
        self.axes.append(axis)
        if self._arrays is None:
            return arrays.zeros(kind)
        return self._arrays[len(self.types) - 1]
