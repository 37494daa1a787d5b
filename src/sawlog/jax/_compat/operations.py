"""Parameters of first-order equations: which dimensions they contract, move, reduce or index."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax.dtypes import float0

from sawlog.jax._compat.equations import subjaxprs
from sawlog.jax._compat.private import JaxprEqn


@dataclasses.dataclass(frozen=True)
class Dot:
    """The dimensions of a ``dot_general``, of the left and of the right operand."""

    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def read(cls, eqn: JaxprEqn) -> Dot:
        """Read the parameters of an equation."""
        (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
        return cls((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))


@dataclasses.dataclass(frozen=True)
class RaggedDot:
    """The dimensions of a ``ragged_dot_general``, and which of them are cut into groups."""

    dot: Dot
    ragged: tuple[int, ...]
    groups: tuple[int, ...]

    @classmethod
    def read(cls, eqn: JaxprEqn) -> RaggedDot:
        """Read the parameters of an equation."""
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (lc, rc), (lb, rb) = numbers.dot_dimension_numbers
        dot = Dot((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
        return cls(dot, tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions))


@dataclasses.dataclass(frozen=True)
class Conv:
    """The dimensions and the geometry of a ``conv_general_dilated``.

    ``lhs``, ``rhs`` and ``out`` are batch (or output feature), feature and spatial dimensions.
    """

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    groups: int
    batch_groups: int

    @classmethod
    def read(cls, eqn: JaxprEqn) -> Conv:
        """Read the parameters of an equation."""
        p = eqn.params
        numbers = p["dimension_numbers"]
        return cls(
            tuple(numbers.lhs_spec),
            tuple(numbers.rhs_spec),
            tuple(numbers.out_spec),
            tuple(p["window_strides"]),
            tuple(map(tuple, p["padding"])),
            tuple(p["lhs_dilation"]),
            tuple(p["rhs_dilation"]),
            p["feature_group_count"],
            p["batch_group_count"],
        )


@dataclasses.dataclass(frozen=True)
class Gather:
    """The dimensions of a ``gather``: windows of an operand at indices.

    ``offset`` are the dimensions of the output inside of windows; ``collapsed`` those of the
    operand that a window leaves out; ``indexed`` those that the last dimension of the indices
    selects from; ``batching`` pairs dimensions of the operand and of the indices.
    """

    offset: tuple[int, ...]
    collapsed: tuple[int, ...]
    indexed: tuple[int, ...]
    batching: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]

    @classmethod
    def read(cls, eqn: JaxprEqn) -> Gather:
        """Read the parameters of an equation."""
        numbers = eqn.params["dimension_numbers"]
        pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        return cls(
            tuple(numbers.offset_dims),
            tuple(numbers.collapsed_slice_dims),
            tuple(numbers.start_index_map),
            tuple(pairs),
            tuple(eqn.params["slice_sizes"]),
        )


@dataclasses.dataclass(frozen=True)
class Scatter:
    """The dimensions of a ``scatter``: windows of updates that change an operand at indices."""

    window: tuple[int, ...]
    inserted: tuple[int, ...]
    indexed: tuple[int, ...]
    batching: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, eqn: JaxprEqn) -> Scatter:
        """Read the parameters of an equation."""
        numbers = eqn.params["dimension_numbers"]
        pairs = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        return cls(
            tuple(numbers.update_window_dims),
            tuple(numbers.inserted_window_dims),
            tuple(numbers.scatter_dims_to_operand_dims),
            tuple(pairs),
        )


def gather_clips(eqn: JaxprEqn) -> bool:
    """Return whether a gather moves indices out of bounds to the next valid ones."""
    return getattr(eqn.params["mode"], "name", "") == "CLIP"


def broadcast_dimensions(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return where ``broadcast_in_dim`` puts the dimensions of its operand."""
    return tuple(eqn.params["broadcast_dimensions"])


def permutation(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the order of dimensions of a ``transpose``."""
    return tuple(eqn.params["permutation"])


def reshape_order(eqn: JaxprEqn) -> Any:
    """Return the order in which ``reshape`` reads the dimensions of its operand; usually None."""
    return eqn.params["dimensions"]


def removed_dimensions(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the dimensions that a ``squeeze`` removes."""
    return tuple(eqn.params["dimensions"])


def reduced_axes(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the dimensions that a reduction removes."""
    params = eqn.params
    return tuple(params["axes"] if "axes" in params else params["dimensions"])


def operated_axis(eqn: JaxprEqn) -> int:
    """Return the dimension along which an equation accumulates, sorts, joins or splits."""
    for name in ("axis", "dimension", "operand"):
        if name in eqn.params:
            return int(eqn.params[name])
    raise KeyError(eqn.primitive.name)


def reversed_dimensions(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the dimensions that a ``rev`` reverses."""
    return tuple(eqn.params["dimensions"])


def slice_bounds(eqn: JaxprEqn) -> tuple[tuple[int, int, int], ...]:
    """Return start, end and stride of a ``slice`` for each dimension."""
    params = eqn.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    return tuple(zip(params["start_indices"], params["limit_indices"], strides, strict=True))


def repetitions(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return how often a ``tile`` repeats each dimension."""
    return tuple(eqn.params["reps"])


def slice_sizes(eqn: JaxprEqn) -> tuple[int, ...]:
    """Return the sizes of a ``dynamic_slice``."""
    return tuple(eqn.params["slice_sizes"])


def padding(eqn: JaxprEqn) -> tuple[tuple[int, int, int], ...]:
    """Return the padding of a ``pad`` for each dimension: before, after and between."""
    return tuple(map(tuple, eqn.params["padding_config"]))


def windows(eqn: JaxprEqn) -> tuple[tuple[int, int, int, int, tuple[int, int]], ...]:
    """Return size, stride, dilations and padding of the windows of a pooling for each dimension."""
    params = eqn.params
    sizes = params["window_dimensions"]
    ones = (1,) * len(sizes)
    return tuple(
        zip(
            sizes,
            params.get("window_strides") or ones,
            params.get("base_dilation") or ones,
            params.get("window_dilation") or ones,
            map(tuple, params["padding"]),
            strict=True,
        )
    )


def iota_values(eqn: JaxprEqn) -> np.ndarray:
    """Return the values of an ``iota``."""
    params = eqn.params
    shape, dim = params["shape"], params["dimension"]
    numbers = np.arange(shape[dim], dtype=params["dtype"])
    return np.broadcast_to(
        numbers.reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape
    )


def transformed_dimensions(eqn: JaxprEqn) -> int:
    """Return how many of the last dimensions an ``fft`` transforms."""
    return len(eqn.params["fft_lengths"])


def right_hand_sides(eqn: JaxprEqn) -> int:
    """Return the dimension of the right-hand sides in what ``triangular_solve`` solves for."""
    solved: Any = eqn.invars[1].aval
    rank = len(solved.shape)
    return rank - 1 if eqn.params["left_side"] else rank - 2


def collective_axes(eqn: JaxprEqn) -> frozenset[str]:
    """Return the axes of a mesh over which an equation, or a program in it, combines values.

    Casts inside of a program count as well: backwards they combine values.
    """
    if eqn.primitive.name in CASTS or eqn.primitive.name == "axis_index":
        return frozenset()
    found = _axis_names(eqn)
    for inner in subjaxprs(eqn.params):
        for each in getattr(inner, "jaxpr", inner).eqns:
            found |= _axis_names(each) if each.primitive.name in CASTS else collective_axes(each)
    return found


def moved_dimensions(eqn: JaxprEqn) -> frozenset[int] | None:
    """Return the dimensions along which a collective gathers or scatters; None for a new one."""
    if not eqn.params.get("tiled", False):
        return None
    keys = ("all_gather_dimension", "scatter_dimension", "split_axis", "concat_axis")
    return frozenset(eqn.params[key] for key in keys if key in eqn.params)


def _axis_names(eqn: JaxprEqn) -> frozenset[str]:
    keys = ("axes", "axis_name", "axis_names")
    values = [name for key in keys for name in _as_tuple(eqn.params.get(key, ()))]
    return frozenset(name for name in values if isinstance(name, str))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)


#: Primitives that only declare that a value differs, or may differ, between devices.
CASTS = frozenset({"pvary", "pcast"})


def equation_name(eqn: JaxprEqn) -> str:
    """Return the name of an equation's primitive, with that of a function it calls."""
    name = eqn.params.get("name")
    return f"{eqn.primitive.name} {name!r}" if isinstance(name, str) else str(eqn.primitive.name)


def has_gradient(aval: Any) -> bool:
    """Return whether a gradient can flow through values of this type."""
    tangent = getattr(aval, "to_tangent_aval", None)
    return tangent is not None and getattr(tangent(), "dtype", float0) != float0
