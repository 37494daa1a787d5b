"""Evaluate a traced loss function with identities that receive per-example gradients.

Equations are bound in their order, in the active trace. An equation without parameters is bound
unchanged; one of constants gives constants; one of a constant and examples is a use.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from sawlog.errors import CaptureError
from sawlog.jax import _compat
from sawlog.jax._capture import axis_rules as axis_rules
from sawlog.jax._capture.axes import CONSTANT, Axis, Known, Mixed, Place, State
from sawlog.jax._capture.axis_rules.reducing import as_summed
from sawlog.jax._capture.axis_rules.table import Followed, Operands, follow, is_sliceable, where
from sawlog.jax._capture.constants import Constant, Traced, computed, full
from sawlog.jax._capture.factors import Factors, by_factors, factors_of
from sawlog.jax._capture.known import known_outputs
from sawlog.jax._capture.links import attach
from sawlog.jax._capture.permutations import (
    index_outputs,
    inverse,
    is_negative,
    row_groups,
)
from sawlog.jax._capture.slots import (
    Zeros,
    partition,
    project_inputs,
    projected_rows,
)
from sawlog.jax._capture.uses import Rows, Use, by_masks, by_slices
from sawlog.jax._capture.views import Atoms

StructureRule = Callable[["Interpreter", Any, list[Traced]], list[Traced]]

_structures: dict[str, StructureRule] = {}


def structure_rule(*names: str) -> Callable[[StructureRule], StructureRule]:
    """Register how a primitive that holds programs is evaluated."""

    def register(rule: StructureRule) -> StructureRule:
        for name in names:
            _structures[name] = rule
        return rule

    return register


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One use of a parameter.

    Args:
        names: The parameters.
        where: The equation and its source line.
        sides: The atoms that are groups, outputs and inputs; None without factors.
        lookup: Whether the inputs are one-hot.
        slow: Whether one example is differentiated at a time.
        zeros: The positions of the zeros that receive inputs and cotangents; None if none do.
        loops: For each loop around the use, outermost first, whether its iterations are groups
            (they use different slices of the parameter) rather than positions.
        key: Identifies the use.
        bias: The use to whose output this one adds a bias.
    """

    names: tuple[str, ...]
    where: str
    sides: tuple[Atoms, Atoms, Atoms] | None = None
    lookup: bool = False
    slow: bool = False
    zeros: tuple[int, int] | None = None
    loops: tuple[bool, ...] = ()
    key: int = -1
    bias: int | None = None


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


class Interpreter:
    """Evaluates programs for one batch.

    Args:
        examples: The number of examples.
        zeros: Hands out zeros for factors; None if they are not wanted.
        sums: Whether the loss is a declared sum or mean over examples.
    """

    def __init__(self, examples: int, zeros: Zeros | None, *, sums: bool = False) -> None:
        self.examples, self.zeros, self.sums = examples, zeros, sums
        self.records: list[Recorded] = []
        self.depth = 0
        self.orders: list[Any] = []

    def new_order(self, permutation: Any) -> int:
        """Enter a permutation of examples into the table."""
        self.orders.append(permutation)
        return len(self.orders) - 1

    # -- evaluating ---------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Traced]) -> list[Traced]:
        """Evaluate a program in the active trace."""
        environment: dict[Any, Traced] = {
            var: Traced(value, CONSTANT) for var, value in zip(jaxpr.constvars, consts, strict=True)
        }
        environment.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Traced:
            if isinstance(atom, _compat.Literal):
                return Traced(atom.val, CONSTANT)
            return environment[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            with _compat.equation_scope(eqn):
                outs = self.equation(eqn, operands)
            environment.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[Traced]) -> list[Traced]:
        """Evaluate one equation."""
        if all(x.state.place is None for x in operands):
            return self._without_examples(eqn, operands)
        structure = _structures.get(eqn.primitive.name)
        if structure is not None:
            return structure(self, eqn, operands)
        followed = self.follow(eqn, operands)
        states = [x.state for x in operands]
        outs = self.bind(eqn, operands, followed, known_outputs(eqn, states))
        if any(state.index is not None for state in states):
            outs = _indexed(eqn, states, outs)
        return outs

    def follow(self, eqn: Any, operands: Sequence[Traced]) -> Followed:
        """Return where the examples are in the outputs of an equation."""
        places = tuple(x.state.place for x in operands)
        known = tuple(x.state.known for x in operands)
        indices = tuple(x.state.index for x in operands)
        followed = follow(eqn, Operands(places, known, self.examples, indices))
        return as_summed(followed) if self.sums else followed

    def _without_examples(self, eqn: Any, operands: list[Traced]) -> list[Traced]:
        """Bind an equation of constants."""
        values = _compat.bind_equation(eqn, [x.value for x in operands])
        constants: list[Constant | None] = [None] * len(values)
        if any(x.constant is not None for x in operands) and not _stops(eqn):
            constants = computed(eqn, operands, self.examples)
        known = known_outputs(eqn, [x.state for x in operands])
        return [
            Traced(value, State(None, constant is not None, integers), constant)
            for value, constant, integers in zip(values, constants, known, strict=True)
        ]

    def bind(
        self,
        eqn: Any,
        operands: Sequence[Traced],
        followed: Followed,
        known: Sequence[Known | None] | None = None,
        *,
        sliceable: bool | None = None,
    ) -> list[Traced]:
        """Bind an equation that has examples; attach the constants that it uses."""
        values = _compat.bind_equation(eqn, [x.value for x in operands])
        states = self._states(eqn, operands, followed, known)
        used = [i for i, x in enumerate(operands) if x.constant is not None]
        origin = None
        if used and any(state.param for state in states) and _separate(states):
            sliceable = followed.sliceable if sliceable is None else sliceable
            sliceable = is_sliceable(eqn) if sliceable is None else sliceable
            values, origin = self._attached(eqn, operands, used, values, followed, sliceable)
        if not used:
            origin = _same_origin(eqn, operands)
        return [
            Traced(value, state, None, origin) for value, state in zip(values, states, strict=True)
        ]

    def _states(
        self,
        eqn: Any,
        operands: Sequence[Traced],
        followed: Followed,
        known: Sequence[Known | None] | None,
    ) -> list[State]:
        param = any(x.state.param for x in operands) and not _stops(eqn)
        integers = known or [None] * len(eqn.outvars)
        return [
            State(place, param and _compat.has_gradient(var.aval), each)
            for var, place, each in zip(eqn.outvars, followed.outs, integers, strict=True)
        ]

    # -- uses ---------------------------------------------------------------------------------

    def _attached(
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
            if factors is not None and factors.always:
                rows = by_factors(use, factors)
                sliceable = True
            elif eqn.primitive.name == "ragged_dot_general":
                raise CaptureError(f"There is no rule for this form of {where(eqn)}.")
            else:
                rows = by_slices(use) if sliceable else by_masks(use)
            bias = _bias_of(eqn, operands, i)
            self._record(use, where(eqn), slow=not sliceable, bias=bias)
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

    def _use(self, eqn: Any, operands: Sequence[Traced], i: int, followed: Followed) -> Use:
        constant = operands[i].constant
        assert constant is not None
        places: list[Place] = [x.state.place for x in operands]
        for place, axis in followed.aligned.items():
            places[place] = axis
        shapes = tuple(tuple(atom.aval.shape) for atom in eqn.invars)

        def bind(values: Sequence[Any]) -> list[Any]:
            return _compat.bind_equation(eqn, values)

        return Use(bind, i, constant, shapes, tuple(places), followed.outs, self.examples)

    def _whole(
        self, use: Use, rows: Rows, operands: Sequence[Traced], values: list[Any]
    ) -> list[Any]:
        """Attach the gradients of a constant as they are."""
        given = [x.value for x in operands]
        given[use.index] = use.constant.core

        def back(cotangents: Any, residuals: Any) -> Any:
            return [rows(cotangents, residuals)]

        return attach(values, [use.constant.make_zeros()], tuple(given), back)

    def _factored(
        self,
        eqn: Any,
        use: Use,
        factors: Factors,
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
            rows = by_factors(use, factors) if factors.always else by_slices(use)
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
        self, factors: Factors, given: Sequence[Any], values: list[Any]
    ) -> tuple[list[Any], tuple[int, int]]:
        """Attach zeros that receive the inputs and the cotangents of a use."""
        assert self.zeros is not None
        inputs = factors.inputs(given)
        if factors.lookup:  # cotangents are floats
            inputs = inputs.astype(jnp.float32)
        kept = _kept(factors, given)
        first = len(self.zeros.types)
        of_inputs = self.zeros.take(inputs.shape, inputs.dtype)
        types = jnp.zeros(values[0].shape, values[0].dtype)
        found = factors.cotangents(types, kept)
        of_cotangents = self.zeros.take(found.shape, found.dtype)

        def back(cotangents: Any, residuals: Any) -> Any:
            inputs, kept = residuals
            return [inputs, factors.cotangents(cotangents[0], kept)]

        attached = attach(values, [of_inputs, of_cotangents], (inputs, kept), back)
        return attached, (first, first + 1)

    def _record(self, use: Use, at: str, **facts: Any) -> int:
        key = len(self.records)
        names = tuple(sorted(use.constant.names))
        view = use.constant.view
        grouped = view.loops if view is not None else ()
        loops = tuple(depth in grouped for depth in range(self.depth))
        self.records.append(Recorded(names, at, loops=loops, key=key, **facts))
        return key

    def promoted(self, traced: Traced, axis: Axis, at: str) -> Traced:
        """Return a constant as a value with examples, where each example sees one slice."""
        state = State(axis, traced.state.param)
        if traced.constant is None:
            return Traced(traced.value, state)
        shape = tuple(traced.value.shape)
        use = Use(list, 0, traced.constant, (shape,), (axis,), (axis,), self.examples)
        self._record(use, at)
        (value,) = self._whole(use, by_slices(use), [traced], [traced.value])
        return Traced(value, state)

    # -- inner programs -----------------------------------------------------------------------

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Evaluate without a trace in the records, to find out states."""
        records, zeros = self.records, self.zeros
        self.records, self.zeros = list(records), None
        try:
            yield
        finally:
            self.records, self.zeros = records, zeros

    def full(self, traced: Traced) -> Constant | None:
        """Return the constant of a value with its whole core."""
        if traced.constant is None:
            return None
        return full(traced.constant, traced.value.shape, self.examples)


def _kept(factors: Factors, given: Sequence[Any]) -> dict[int, Any]:
    """Return the operands that the cotangents of a use need."""
    return {i: given[i] for i in factors.kept}


def _indexed(eqn: Any, states: Sequence[State], outs: Sequence[Traced]) -> list[Traced]:
    """Follow a permutation through the arithmetic of indices."""
    index, sign = index_outputs(eqn, states), is_negative(eqn, states)
    if index is None and sign is None:
        return list(outs)
    (out,) = outs
    state = dataclasses.replace(out.state, index=index, known=sign or out.state.known)
    return [dataclasses.replace(out, state=state)]


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


def _stops(eqn: Any) -> bool:
    return bool(eqn.primitive.name == "stop_gradient")


def _separate(states: Sequence[State]) -> bool:
    return not any(isinstance(state.place, Mixed) for state in states)


def _same_origin(eqn: Any, operands: Sequence[Traced]) -> Origin | None:
    """Return the use whose output has the cotangent of the output of an equation."""
    name, origin = eqn.primitive.name, operands[0].origin
    if name in ("add", "add_any"):
        return _sum_origin(operands)
    if origin is None:
        return None
    if name == "convert_element_type":
        return origin
    if name == "transpose":
        order = _compat.permutation(eqn)
        return dataclasses.replace(origin, dims=tuple(order.index(dim) for dim in origin.dims))
    return None


def _sum_origin(operands: Sequence[Traced]) -> Origin | None:
    """Return the one use whose output is added to something else of the same shape."""
    if len({tuple(getattr(x.value, "shape", ())) for x in operands}) > 1:
        return None
    origins = [x.origin for x in operands if x.origin is not None]
    direct = [origin for origin in origins if origin.direct]
    found = direct if direct else origins
    return dataclasses.replace(found[0], direct=False) if len(found) == 1 else None


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
