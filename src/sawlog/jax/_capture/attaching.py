"""Attach the constants that an equation uses to its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sawlog.errors import CaptureError
from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Place, Split, State, digits_of
from sawlog.jax._capture.axis_rules.table import Followed, is_sliceable, where
from sawlog.jax._capture.constants import Traced, full
from sawlog.jax._capture.factors import UseFactors, by_factors, factors_of, is_product
from sawlog.jax._capture.links import attach, example_axes
from sawlog.jax._capture.permutations import inverse, row_groups
from sawlog.jax._capture.slots import Zeros, partition, project_inputs, projected_rows
from sawlog.jax._capture.uses import ConstantUse, Rows, by_masks, by_slices
from sawlog.jax._capture.views import Atoms
from sawlog.jax._capture.without_logs import bind_silently
from sawlog.jax._core import arrays
from sawlog.jax._core.primitive import not_listening


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One use of a parameter.

    Args:
        names: The parameters.
        where: The equation and its source line.
        sides: The atoms that are groups, outputs and inputs; None without factors.
        lookup: Whether the inputs are one-hot.
        slow: Whether one example is differentiated at a time.
        matrix: Whether it is a product or a function of the user, in which the last dimension is
            that of the outputs; otherwise elements meet elements, as those of a table of positions.
        zeros: The positions of the zeros that receive inputs and cotangents; None if none do.
        loops: For each loop around the use, outermost first, whether its iterations are groups
            (they use different slices of the parameter) rather than positions.
        key: Identifies the use.
        bias: The use to whose output this one adds a bias.
        cut: The numbers of the examples that use it; None if all do.
    """

    names: tuple[str, ...]
    where: str
    sides: tuple[Atoms, Atoms, Atoms] | None = None
    lookup: bool = False
    slow: bool = False
    matrix: bool = False
    zeros: tuple[int, int] | None = None
    loops: tuple[bool, ...] = ()
    key: int = -1
    bias: int | None = None
    cut: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Origin:
    """The output of a use with factors, to which a bias may be added.

    Args:
        key: The use.
        dims: Which of its dimensions are the outputs of the layer.
        direct: Whether nothing was added yet, such as the residual stream.
    """

    key: int
    dims: tuple[int, ...]
    direct: bool = True


class Attacher:
    """Attaches uses, and records them.

    Args:
        examples: The number of examples.
        zeros: Hands out zeros for factors; None if they are not wanted.
    """

    def __init__(self, examples: int, zeros: Zeros | None) -> None:
        self.examples, self.zeros = examples, zeros
        self.records: list[Recorded] = []
        self.depth = 0
        self.orders: list[Any] = []

    def new_order(self, permutation: Any) -> int:
        """Enter a permutation of examples into the table."""
        self.orders.append(permutation)
        return len(self.orders) - 1

    def attached(
        self,
        eqn: Any,
        operands: Sequence[Traced],
        used: Sequence[int],
        values: list[Any],
        followed: Followed,
        sliceable: bool,
    ) -> tuple[list[Any], Origin | None]:
        """Attach every constant that an equation uses to its outputs."""
        order = _order_of(followed, operands)
        if order is not None:
            return self._attached_in_order(eqn, operands, used, values, followed, order), None
        if eqn.primitive.name == "ragged_dot_general":
            operands = with_row_groups(operands, None)
        return self._attach_each(eqn, operands, used, values, followed, sliceable)

    def _attach_each(
        self,
        eqn: Any,
        operands: Sequence[Traced],
        used: Sequence[int],
        values: list[Any],
        followed: Followed,
        sliceable: bool,
    ) -> tuple[list[Any], Origin | None]:
        """Attach constants to outputs that are in the order of the batch."""
        origin = None
        for i in used:
            use = self._use(eqn, operands, i, followed)
            factors = factors_of(eqn, use)
            if factors is not None and use.constant.view is not None and len(values) == 1:
                values, origin = self._factored(eqn, use, factors, operands, values)
                continue
            if factors is not None and (factors.always or _is_convolution(eqn)):
                rows = by_factors(use, factors)
                sliceable = True
            elif eqn.primitive.name == "ragged_dot_general":
                raise CaptureError(f"There is no rule for this form of {where(eqn)}.")
            else:
                if not sliceable and example_axes() and _compat.subjaxprs(eqn.params):
                    raise _typed_program(eqn)
                rows = by_slices(use) if sliceable else by_masks(use)
            bias = _bias_of(eqn, operands, i)
            slow = not sliceable and use.examples > 1
            matrix = not sliceable or is_product(eqn)
            self._record(use, where(eqn), slow=slow, bias=bias, matrix=matrix)
            values = self._whole(use, rows, operands, values)
        return values, origin

    def _attached_in_order(
        self,
        eqn: Any,
        operands: Sequence[Traced],
        used: Sequence[int],
        values: list[Any],
        followed: Followed,
        order: int,
    ) -> list[Any]:
        """Attach the constants that sorted rows use, in the order of the batch."""
        ragged = eqn.primitive.name == "ragged_dot_general"
        if not (ragged or is_sliceable(eqn)) or len(values) != 1:
            raise CaptureError(
                f"A parameter is used by {where(eqn)} on rows that are sorted across examples, "
                "and there is no rule for that. Hint: use it before sorting, or names= to leave "
                "it out."
            )
        permutation = self.orders[order]
        back = inverse(permutation)
        if ragged:
            operands = with_row_groups(operands, back)
        own = [_unsorted(x, back) for x in operands]
        outs = tuple(_without_order(place) for place in followed.outs)
        aligned = {i: dataclasses.replace(a, order=None) for i, a in followed.aligned.items()}
        axis = followed.outs[0]
        assert isinstance(axis, Axis)
        plain = Followed(outs, aligned, sliceable=True)
        unsorted = [jnp.take(values[0], back, axis=axis.dim)]
        attached, _ = self._attach_each(eqn, own, used, unsorted, plain, True)
        return [jnp.take(attached[0], permutation, axis=axis.dim)]

    def _use(self, eqn: Any, operands: Sequence[Traced], i: int, followed: Followed) -> ConstantUse:
        constant = operands[i].constant
        assert constant is not None
        places: list[Place] = [x.state.place for x in operands]
        for place, axis in followed.aligned.items():
            places[place] = axis
        shapes = tuple(tuple(atom.aval.shape) for atom in eqn.invars)
        outs = followed.outs
        along = {part.dim for out in outs for part, _ in _digits(out, self.examples)}
        return ConstantUse(
            bind_silently(eqn),
            i,
            constant,
            shapes,
            tuple(places),
            outs,
            self.examples,
            bind_silently(_compat.for_one_example(eqn, along)),
            _compat.is_differentiated_jointly(eqn),
        )

    def _whole(
        self, use: ConstantUse, rows: Rows, operands: Sequence[Traced], values: list[Any]
    ) -> list[Any]:
        """Attach the gradients of a constant as they are."""
        given = [x.value for x in operands]
        given[use.index] = use.constant.core

        def back(cotangents: Any, residuals: Any) -> Any:
            with not_listening():  # nor do the user's rules of a custom_vjp log again
                return [rows(cotangents, residuals)]

        return attach(values, [use.constant.make_zeros()], tuple(given), back)

    def _factored(
        self,
        eqn: Any,
        use: ConstantUse,
        factors: UseFactors,
        operands: Sequence[Traced],
        values: list[Any],
    ) -> tuple[list[Any], Origin | None]:
        """Attach the factors of a use, and its projected gradients."""
        view, slot = use.constant.view, use.constant.slot
        assert view is not None
        given = [x.value for x in operands]
        sides = partition(view, factors)
        zeros = None
        if self.zeros is not None and sides is not None:
            values, zeros = self._factors(factors, given, values)
        whole = sides and ((*view.looped, *sides[0]), *sides[1:])
        key = self._record(use, where(eqn), sides=whole, lookup=factors.lookup, zeros=zeros)
        origin = Origin(key, factors.out_dims) if sides is not None else None
        if slot is None or slot.bias or slot.sides(view, factors) is None:
            by_slice = not (factors.always or _is_convolution(eqn))
            rows = by_slices(use) if by_slice else by_factors(use, factors)
            return self._whole(use, rows, operands, values), origin
        dtype = values[0].dtype
        inputs = project_inputs(slot, view, factors, given, dtype)
        kept = _kept(factors, given)

        def back(cotangents: Any, residuals: Any) -> Any:
            inputs, kept, left, right = residuals
            own = dataclasses.replace(slot, left=left, right=right)
            found = factors.cotangents(cotangents[0], kept)
            return [projected_rows(own, view, factors, found, inputs)]

        residuals = (inputs, kept, slot.left, slot.right)
        return attach(values, [slot.zeros], residuals, back), origin

    def _factors(
        self, factors: UseFactors, given: Sequence[Any], values: list[Any]
    ) -> tuple[list[Any], tuple[int, int]]:
        """Attach zeros that receive the inputs and the cotangents of a use."""
        assert self.zeros is not None
        inputs = factors.inputs(given)
        if factors.lookup:  # cotangents are floats
            inputs = inputs.astype(jnp.float32)
        kept = _kept(factors, given)
        first = len(self.zeros.types)
        of_inputs = self.zeros.take(inputs)
        of_cotangents = self.zeros.take(factors.cotangents(arrays.zeros(values[0]), kept))

        def back(cotangents: Any, residuals: Any) -> Any:
            inputs, kept = residuals
            return [inputs, factors.cotangents(cotangents[0], kept)]

        attached = attach(values, [of_inputs, of_cotangents], (inputs, kept), back)
        return attached, (first, first + 1)

    def _record(self, use: ConstantUse, at: str, **facts: Any) -> int:
        key = len(self.records)
        names = tuple(sorted(use.constant.names))
        view = use.constant.view
        grouped = view.loops if view is not None else ()
        loops = tuple(depth in grouped for depth in range(self.depth))
        self.records.append(Recorded(names, at, loops=loops, key=key, **facts))
        return key

    def promoted(self, traced: Traced, axis: Axis | Split, at: str) -> Traced:
        """Return a constant as a value with examples, where each example sees one slice."""
        state = State(axis, traced.state.param)
        if traced.constant is None:
            return Traced(traced.value, state)
        shape = tuple(traced.value.shape)
        constant = traced.constant
        if isinstance(axis, Split):
            constant = full(constant, shape)
        use = ConstantUse(list, 0, constant, (shape,), (axis,), (axis,), self.examples)
        self._record(use, at)
        (value,) = self._whole(use, by_slices(use), [traced], [traced.value])
        return Traced(value, state)


def _typed_program(eqn: Any) -> CaptureError:
    return CaptureError(
        f"A parameter is used by {where(eqn)}, a function inside of shard_map with a custom "
        "derivative, and there is no rule for that. Hint: jax.shard_map(..., check_vma=False), or "
        "names= to leave the parameter out."
    )


def _is_convolution(eqn: Any) -> bool:
    """Return whether JAX cannot be trusted to map the derivative of an equation over examples.

    Mapped over examples, that of a convolution is one with groups of examples. JAX refuses it on an
    explicit mesh, and where the batch is sharded in another way XLA returns wrong numbers.
    """
    return bool(eqn.primitive.name == "conv_general_dilated")


def _digits(place: Place, examples: int) -> list[tuple[Axis, int]]:
    return digits_of(place, examples) if isinstance(place, (Axis, Split)) else []


def _kept(factors: UseFactors, given: Sequence[Any]) -> dict[int, Any]:
    """Return the operands that the cotangents of a use need."""
    return {i: given[i] for i in factors.kept}


def _order_of(followed: Followed, operands: Sequence[Traced]) -> int | None:
    """Return the permutation of the rows that an equation uses; None if they are not sorted."""
    places = [*followed.outs, *(x.state.place for x in operands)]
    orders = {place.order for place in places if isinstance(place, Axis)}
    return next((order for order in orders if order is not None), None)


def _without_order(place: Place) -> Place:
    return dataclasses.replace(place, order=None) if isinstance(place, Axis) else place


def _unsorted(traced: Traced, back: Any) -> Traced:
    """Return rows in the order of the batch."""
    place = traced.state.place
    if not isinstance(place, Axis) or place.order is None:
        return traced
    value = jnp.take(traced.value, back, axis=place.dim)
    return Traced(value, dataclasses.replace(traced.state, place=_without_order(place)))


def with_row_groups(operands: Sequence[Traced], back: Any) -> list[Traced]:
    """Replace the sizes of groups of a ``ragged_dot`` by the group of each row."""
    left, right, sizes = operands
    groups = row_groups(sizes.value, left.value.shape[0])
    if back is not None:
        groups = jnp.take(groups, back)
    place = _without_order(left.state.place)
    return [left, right, Traced(groups, State(place))]


def _bias_of(eqn: Any, operands: Sequence[Traced], i: int) -> int | None:
    """Return the use to whose output an equation adds a bias, or None."""
    if eqn.primitive.name != "add" or len(operands) != 2:
        return None
    constant, origin = operands[i].constant, operands[1 - i].origin
    if constant is None or origin is None or constant.view is None or not origin.dims:
        return None
    core, out = constant.core.shape, operands[1 - i].value.shape
    if len(core) != len(out):
        return None
    matches = all(core[dim] == (out[dim] if dim in origin.dims else 1) for dim in range(len(core)))
    return origin.key if matches and list(origin.dims) == sorted(origin.dims) else None
