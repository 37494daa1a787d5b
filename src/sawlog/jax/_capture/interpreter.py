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
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture import axis_rules as axis_rules
from sawlog.jax._capture.attaching import Attacher, Origin, Recorded
from sawlog.jax._capture.axes import CutBatch, Known, Mixed, Place, State, Summed
from sawlog.jax._capture.axis_rules.reducing import as_summed
from sawlog.jax._capture.axis_rules.table import (
    Followed,
    FollowedOperands,
    follow,
    is_sliceable,
    where,
)
from sawlog.jax._capture.constants import Constant, Traced, computed, full
from sawlog.jax._capture.cuts import equation_of_cuts, has_cuts
from sawlog.jax._capture.known_integers import known_literal, known_outputs, known_value
from sawlog.jax._capture.permutations import index_outputs, is_negative, stays_index
from sawlog.jax._capture.slots import Zeros
from sawlog.jax._capture.uniform import uniform_dimensions
from sawlog.jax._core import arrays

StructureRule = Callable[["CaptureInterpreter", Any, list[Traced]], list[Traced]]

_structures: dict[str, StructureRule] = {}

#: Primitives whose equations or operands are evaluated one by one, in place.
_in_place: set[str] = set()

#: Primitives that do the same to each of their operands, which may have different shapes.
_EACH_BY_ITSELF = frozenset(["device_put"])


def structure_rule(*names: str, in_place: bool = False) -> Callable[[StructureRule], StructureRule]:
    """Register how a primitive that holds programs is evaluated.

    Args:
        names: the names of primitives.
        in_place: whether the rule evaluates each equation or operand by itself, so that operands
            may be cuts of the batch.
    """

    def register(rule: StructureRule) -> StructureRule:
        for name in names:
            _structures[name] = rule
        if in_place:
            _in_place.update(names)
        return rule

    return register


class CaptureInterpreter(Attacher):
    """Evaluates programs for one batch.

    Args:
        lead: The type ``[examples]``, with the sharding of the examples.
        zeros: Hands out zeros for factors; None if they are not wanted.
        sums: Whether the loss is a declared sum or mean over examples.
    """

    def __init__(self, lead: arrays.Type, zeros: Zeros | None, *, sums: bool = False) -> None:
        super().__init__(lead.shape[0], zeros)
        self.sums = sums
        self.mesh: frozenset[str] = frozenset()
        self.sharded = False
        self.differentiated = True
        self._examples_type = lead

    @property
    def examples_type(self) -> arrays.Type:
        """The type ``[examples]`` of the examples that the evaluated program sees."""
        if self.examples == self._examples_type.shape[0] and not self.sharded:
            return self._examples_type
        return arrays.Type((self.examples,), bool)

    # -- evaluating ---------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Traced]) -> list[Traced]:
        """Evaluate a program in the active trace."""
        environment: dict[Any, Traced] = {
            var: Traced(_jax_array(value), State(known=known_value(value)))
            for var, value in zip(jaxpr.constvars, consts, strict=True)
        }
        environment.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Traced:
            if isinstance(atom, _compat.Literal):
                return Traced(atom.val, State(known=known_literal(atom)))
            return environment[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            with _compat.equation_scope(eqn):
                outs = self.equation(eqn, operands)
            environment.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[Traced]) -> list[Traced]:
        """Evaluate one equation."""
        if not eqn.outvars:  # a log
            _compat.bind_equation(eqn, [x.value for x in operands])
            return []
        if all(x.state.place is None for x in operands):
            return self._without_examples(eqn, operands)
        if eqn.primitive.name in _EACH_BY_ITSELF and len(operands) > 1:
            parts = zip(_compat.equations_of_each(eqn), operands, strict=True)
            return [self.equation(part, [x])[0] for part, x in parts]
        structure = _structures.get(eqn.primitive.name)
        if has_cuts(operands) and eqn.primitive.name not in _in_place:
            return equation_of_cuts(self, eqn, operands)
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
        states = [x.state for x in operands]
        if eqn.primitive.name == "select_n" and index_outputs(eqn, states) is not None:
            return Followed((states[1].place,))
        followed = follow(
            eqn,
            FollowedOperands(
                tuple(_place(eqn, i, states) for i in range(len(states))),
                tuple(state.known for state in states),
                self.examples,
                tuple(state.index for state in states),
                self.mesh,
                tuple(state.uniform for state in states),
            ),
        )
        return as_summed(followed) if self.sums else followed

    def _without_examples(self, eqn: Any, operands: list[Traced]) -> list[Traced]:
        """Bind an equation of constants."""
        if self.mesh and eqn.primitive.name in ("jit", "pjit"):  # it may have casts or collectives
            return _structures[eqn.primitive.name](self, eqn, operands)
        values = _compat.bind_equation(eqn, [x.value for x in operands])
        constants: list[Constant | None] = [None] * len(values)
        if any(x.constant is not None for x in operands) and not _stops(eqn):
            if self.mesh & _compat.collective_axes(eqn):
                why = "combines parameters over the devices that have different examples"
                return [Traced(value, State(Mixed(why, where(eqn)), True)) for value in values]
            constants = computed(eqn, operands)
        states = [x.state for x in operands]
        uniform = uniform_dimensions(eqn, states)
        return [
            Traced(value, State(None, constant is not None, integers, None, uniform), constant)
            for value, constant, integers in zip(
                values, constants, known_outputs(eqn, states), strict=True
            )
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
        used = [i for i, x in enumerate(operands) if x.constant is not None]
        if used and any(isinstance(place, Summed) for place in followed.outs):
            mixed = Mixed("combines a sum over examples with a parameter", where(eqn))
            followed = Followed((mixed,) * len(values))
        if used and any(isinstance(place, CutBatch) for place in followed.outs):
            mixed = Mixed("uses a parameter and selects some of the examples", where(eqn))
            followed = Followed((mixed,) * len(values))
        states = self._states(eqn, operands, followed, known)
        if used:
            states = _all_or_none(states, eqn)
        origin = None
        if used and any(state.param for state in states) and _separate(states):
            sliceable = followed.sliceable if sliceable is None else sliceable
            sliceable = is_sliceable(eqn) if sliceable is None else sliceable
            values, origin = self.attached(eqn, operands, used, values, followed, sliceable)
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

    # -- inner programs -----------------------------------------------------------------------

    @contextlib.contextmanager
    def some_examples(
        self, examples: int, mesh: frozenset[str] = frozenset(), *, sharded: bool = False
    ) -> Iterator[None]:
        """Evaluate a program that sees some of the examples at a time.

        Args:
            examples: How many it sees.
            mesh: The axes of a mesh over which the examples are spread.
            sharded: Whether it is the function of a ``shard_map``, where arrays have no sharding.
        """
        before = self.examples, self.mesh, self.sharded
        self.examples, self.mesh = examples, self.mesh | mesh
        self.sharded = self.sharded or sharded
        try:
            yield
        finally:
            self.examples, self.mesh, self.sharded = before

    def adopt(self, records: Sequence[Recorded], first: int) -> None:
        """Add the records of an inner program whose zeros begin at ``first``."""
        for record in records:
            zeros = record.zeros and (first + record.zeros[0], first + record.zeros[1])
            key = len(self.records)
            bias = None if record.bias is None else record.bias - record.key + key
            self.records.append(dataclasses.replace(record, zeros=zeros, key=key, bias=bias))

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Evaluate without a trace in the records, to find out states."""
        records, zeros = self.records, self.zeros
        self.records, self.zeros = list(records), None
        try:
            yield
        finally:
            self.records, self.zeros = records, zeros

    @contextlib.contextmanager
    def not_differentiated(self) -> Iterator[None]:
        """Evaluate a function that has a custom derivative: JAX does not differentiate it."""
        before, self.differentiated = self.differentiated, False
        try:
            yield
        finally:
            self.differentiated = before

    def full(self, traced: Traced) -> Constant | None:
        """Return the constant of a value with its whole core."""
        if traced.constant is None:
            return None
        return full(traced.constant, traced.value.shape)


def _jax_array(value: Any) -> Any:
    """Return a numpy array of a program as an array of JAX, which functions of users expect."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def _place(eqn: Any, i: int, states: Sequence[State]) -> Place:
    """Return where an operand has its examples; a permutation that is used as numbers is mixed."""
    place = states[i].place
    if states[i].index is None or place is None or stays_index(eqn, i, states):
        return place
    return Mixed("uses the rank of an example among the others as a number", where(eqn))


def _indexed(eqn: Any, states: Sequence[State], outs: Sequence[Traced]) -> list[Traced]:
    """Follow a permutation through the arithmetic of indices."""
    index, sign = index_outputs(eqn, states), is_negative(eqn, states)
    if index is None and sign is None:
        return list(outs)
    (out,) = outs
    state = dataclasses.replace(out.state, index=index, known=sign or out.state.known)
    return [dataclasses.replace(out, state=state)]


def _stops(eqn: Any) -> bool:
    return bool(eqn.primitive.name == "stop_gradient")


def _all_or_none(states: Sequence[State], eqn: Any) -> list[State]:
    """Return the outputs of a use: gradients are attached to all of them, or all are mixed."""
    mixed = next((state.place for state in states if isinstance(state.place, Mixed)), None)
    if mixed is None and any(state.place is None and state.param for state in states):
        why = "returns a value of parameters alone together with values of examples"
        mixed = Mixed(why, where(eqn))
    if mixed is None:
        return list(states)
    return [dataclasses.replace(s, place=mixed) if s.param else s for s in states]


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
