"""Factor pairs from what the zeros of each use received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sawlog.factored import Dense, Factor, OneHot, Pair, rows, vector
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.cut_uses import uses_of_all
from sawlog.jax._capture.plan import CapturePlan, Layout
from sawlog.jax._capture.views import Atoms, in_order, size_of


def make_pairs(
    plan: CapturePlan, records: Sequence[Recorded], found: Any, examples: int
) -> dict[str, tuple[Pair, ...]]:
    """Return the pairs of each block, one for each use.

    A block with a use that has no factors has one pair of its gradients instead: those of a vector
    as :func:`sawlog.factored.vector`, those of a matrix as :func:`sawlog.factored.rows`.
    """
    return {layout.block.name: _pairs(layout, records, found, examples) for layout in plan.layouts}


def _pairs(
    layout: Layout, records: Sequence[Recorded], found: Any, examples: int
) -> tuple[Pair, ...]:
    name = layout.block.name
    if not layout.factored:
        return (_of_gradients(layout, found["whole"]),)
    own = [record for record in records if name in record.names]
    factors = found["factors"]
    return tuple(_pair(layout, *use) for use in uses_of_all(own, factors, examples))


def _of_gradients(layout: Layout, whole: Any) -> Pair:
    """Return a pair of whole gradients; such a block has no groups and no bias."""
    gradients = whole[layout.block.name]
    if not layout.rights:
        return vector(jnp.reshape(gradients, (gradients.shape[0], -1)))
    atoms = (*layout.lefts, *layout.rights)
    ordered = in_order(atoms)
    parts = jnp.reshape(gradients, (-1, *(atom.size for atom in ordered)))
    parts = jnp.transpose(parts, (0, *(ordered.index(atom) + 1 for atom in atoms)))
    return rows(jnp.reshape(parts, (-1, *layout.block.shape)))


def _pair(layout: Layout, record: Recorded, inputs: Any, cotangents: Any) -> Pair:
    assert record.sides is not None
    groups, outs, ins = record.sides
    inner = len(groups) - sum(record.loops)
    right: Factor
    if record.lookup:
        ids = _merged(inputs[..., None], record.loops, 0)[..., 0]
        right = OneHot(ids.astype(jnp.int32), size_of(ins))
    else:
        features = _sorted(_merged(inputs, record.loops, inner), ins)
        right = Dense(features, one=layout.bias is not None)
    left = Dense(_sorted(_merged(cotangents, record.loops, inner), outs))
    return Pair(right, left) if layout.swapped(record) else Pair(left, right)


def _merged(array: Any, loops: Sequence[bool], groups: int) -> Any:
    """Return ``[examples, positions, groups, features]`` of ``[*loops, examples, ...]``.

    Args:
        array: ``[*loops, examples, positions, *groups, features]``.
        loops: Which loops are groups; the others are positions.
        groups: The number of dimensions that are groups.
    """
    count = len(loops)
    of_groups = [i for i, is_group in enumerate(loops) if is_group]
    of_positions = [i for i, is_group in enumerate(loops) if not is_group]
    order = [count, *of_positions, count + 1, *of_groups, *range(count + 2, array.ndim)]
    array = jnp.transpose(array, order)
    first = 1 + len(of_positions) + 1
    last = first + len(of_groups) + groups
    sizes = array.shape
    merged = [math.prod(sizes[first:last])] if last > first else []
    return jnp.reshape(array, (sizes[0], math.prod(sizes[1:first]), *merged, *sizes[last:]))


def _sorted(features: Any, atoms: Atoms) -> Any:
    """Return features in the order of the parameter."""
    ordered = in_order(atoms)
    if ordered == atoms:
        return features
    lead = features.ndim - 1
    parts = jnp.reshape(features, (*features.shape[:-1], *(atom.size for atom in atoms)))
    parts = jnp.transpose(parts, (*range(lead), *(lead + atoms.index(a) for a in ordered)))
    return jnp.reshape(parts, features.shape)
