"""The rule for ``shard_map``: every device has some of the examples, and the zeros of these.

The batch is split over axes of the mesh, and parameters are whole on each of these devices. They
may be split over other axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from sawlog.jax import _compat
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.axes import Axis, CutBatch, Mixed, Place, Split, State, digits_of, joined
from sawlog.jax._capture.axis_rules.table import where
from sawlog.jax._capture.constants import Constant, Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter, structure_rule
from sawlog.jax._capture.links import spread_over
from sawlog.jax._capture.slots import Zeros
from sawlog.jax._capture.structures import received, states_of, zeros_of
from sawlog.jax._capture.sub_batches import Digit, of_all_steps, passed, rebuilt
from sawlog.jax._core import arrays


@dataclasses.dataclass(frozen=True)
class _Spread:
    """How the examples are spread over devices.

    Args:
        digit: The digit of the examples that is the device.
        axes: The axes of the mesh, as in a partition spec.
    """

    digit: Digit
    axes: tuple[str, ...]


@structure_rule("shard_map")
def shard_map(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate the function on every device, with the zeros of its examples."""
    return _Shards(interpreter, eqn, operands).bind()


class _Shards:
    """A ``shard_map`` that is being rebuilt."""

    def __init__(
        self, interpreter: CaptureInterpreter, eqn: Any, operands: Sequence[Traced]
    ) -> None:
        self.interpreter, self.eqn, self.at = interpreter, eqn, where(eqn)
        self.own, self.lead = _compat.ShardMap.read(eqn), interpreter.examples_type
        self.spread = self._find_spread(operands)
        self.rest = self.spread.digit.rest if self.spread else interpreter.examples
        self.mesh = frozenset(self.spread.axes if self.spread else ())
        self.other = frozenset(n for n in self.own.axes if self._size(n) > 1) - self.mesh
        pairs = zip(operands, self.own.in_specs, strict=True)
        self.operands = [self._inside(x, spec) for x, spec in pairs]
        self.constants = [x.constant for x in self.operands if x.constant is not None]
        self.found: list[Recorded] = []
        self.types: list[Any] = []
        self.names: list[frozenset[str]] = []
        with self._inner():
            states = [x.state for x in self.operands]
            inside = states_of(interpreter, self.own.jaxpr, states, self._trace)
        shapes = [tuple(var.aval.shape) for var in self.own.jaxpr.outvars]
        outs = zip(inside, self.own.out_specs, shapes, strict=True)
        self.states = [self._outside(*each) for each in outs]
        self.returned = [state.place is None and state.param for state in self.states]

    @contextlib.contextmanager
    def _inner(self) -> Iterator[None]:
        """Evaluate the function of one device."""
        typed = self.mesh if self.own.check_vma else frozenset()
        with self.interpreter.some_examples(self.rest, self.mesh, sharded=True), spread_over(typed):
            yield

    def _trace(self, body: Any) -> None:
        """Trace a function of the operands of a device."""
        jax.eval_shape(
            self._sharded(lambda *values: list(body(*values)), self.own.in_specs, None),
            *(x.value for x in self.operands),
        )

    def _sharded(self, fun: Any, in_specs: Any, out_specs: Any) -> Any:
        own = self.own
        return jax.shard_map(
            fun,
            mesh=own.mesh,
            in_specs=in_specs,
            out_specs=list(own.out_specs) if out_specs is None else out_specs,
            axis_names=set(own.axes),
            check_vma=own.check_vma,
        )

    def _size(self, name: str) -> int:
        return int(self.own.mesh.shape[name])

    # -- states -------------------------------------------------------------------------------

    def _find_spread(self, operands: Sequence[Traced]) -> _Spread | None:
        """Return how the first operand that has its examples on several devices has them."""
        for traced, spec in zip(operands, self.own.in_specs, strict=True):
            place = traced.state.place
            if isinstance(place, (Axis, Split)):
                found = self._spread_of(place, spec)
                if isinstance(found, _Spread):
                    return found
        return None

    def _spread_of(self, place: Axis | Split, spec: Any) -> _Spread | Mixed | None:
        digits = digits_of(place, self.interpreter.examples)
        sizes = [size for _, size in digits]
        found: _Spread | Mixed | None = None
        for i, (part, size) in enumerate(digits):
            axes = _names(spec, part.dim)
            count = math.prod(map(self._size, axes))
            if count == 1:
                continue
            if found is not None or part.outer != 1 or size % count or part.order is not None:
                return Mixed("splits the examples over devices in a way that cannot be followed")
            found = _Spread(Digit((*sizes[:i], count, size // count, *sizes[i + 1 :]), i), axes)
        return found

    def _inside(self, traced: Traced, spec: Any) -> Traced:
        """Return an operand as a device sees it."""
        place, param = traced.state.place, traced.state.param
        if isinstance(place, (Axis, Split)):
            return Traced(traced.value, State(self._place_inside(place, spec), param))
        if traced.constant is None:
            return Traced(traced.value, State(place, param))
        if self.mesh & _all_names(spec):
            why = "has a parameter that is split over the devices that the batch is split over"
            return Traced(traced.value, State(Mixed(why, self.at), True))
        constant = self.interpreter.full(traced)
        assert constant is not None
        if self.other:  # inputs of a use may be split over these axes: there are no factors
            zeros = constant.make_zeros()
            constant = Constant(traced.value, frozenset(), lambda: zeros, constant.names)
        return Traced(traced.value, State(None, True), constant)

    def _place_inside(self, place: Axis | Split, spec: Any) -> Place:
        found = self._spread_of(place, spec)
        if isinstance(found, Mixed):
            return Mixed(found.why, self.at)
        if found != self.spread:
            why = "has the examples of two operands on different devices"
            return Mixed(why, self.at)
        if found is None:
            return place
        digits = digits_of(place, self.interpreter.examples)
        part, size = digits[found.digit.index]
        digits[found.digit.index] = (part, size // found.digit.count)
        return joined(digits)

    def _outside(self, state: State, spec: Any, shape: Sequence[int]) -> State:
        """Return the state of an output of all devices."""
        place = state.place
        if isinstance(place, (Axis, Split)) and self.spread is not None:
            place = self._place_outside(place, spec, shape)
        elif isinstance(place, CutBatch):
            place = Mixed("returns some of the examples of a device")
        elif place is None and state.param and self.mesh & _all_names(spec):
            place = Mixed("returns a value of parameters that differs between devices")
        if isinstance(place, Mixed) and not place.where:
            place = Mixed(place.why, self.at)
        return State(place, state.param)

    def _place_outside(self, place: Axis | Split, spec: Any, shape: Sequence[int]) -> Place:
        assert self.spread is not None
        dims = [d for d in range(len(shape)) if self.mesh & frozenset(_names(spec, d))]
        if len(dims) != 1 or _names(spec, dims[0]) != self.spread.axes:
            return Mixed("returns examples that are not put together as they were split")
        (dim,), count = dims, self.spread.digit.count
        digits = [
            (dataclasses.replace(p, outer=p.outer * count) if p.dim == dim else p, size)
            for p, size in digits_of(place, self.rest)
        ]
        inner = Split(tuple(p for p, _ in digits), tuple(size for _, size in digits))
        return self.spread.digit.inserted(inner, Axis(dim, 1, shape[dim]))

    # -- evaluating ---------------------------------------------------------------------------

    def bind(self) -> list[Traced]:
        """Run the function, and return its outputs."""
        interpreter = self.interpreter
        values = [x.value for x in self.operands]
        zeros = [self._split(passed(constant)) for constant in self.constants]
        first = 0 if interpreter.zeros is None else len(interpreter.zeros.types)
        pairs = zip(zeros, self._zeros_specs(), strict=True)
        zeros = [arrays.with_spec(self.lead, array, spec) for array, spec in pairs]
        factors, specs = self._factor_zeros(values, zeros)
        outs, out_zeros = self._mapped(specs)(values, zeros, factors)
        interpreter.adopt([of_all_steps(record) for record in self.found], first)
        rest = iter([*zip(map(self._join, out_zeros), self.names, strict=True)])
        return [
            Traced(value, state, received(value, *next(rest)) if c else None)
            for value, state, c in zip(outs, self.states, self.returned, strict=True)
        ]

    def _mapped(self, factor_specs: Sequence[Any] | None) -> Any:
        """Return the function over all devices."""
        own = self.own
        examples = self.spread.axes if self.spread else None
        zeros_specs = self._zeros_specs()
        returned = zip(own.out_specs, self.returned, strict=True)
        return self._sharded(
            self._body,
            (list(own.in_specs), zeros_specs, factor_specs),
            (list(own.out_specs), [P(examples, *spec) for spec, c in returned if c]),
        )

    def _zeros_specs(self) -> list[Any]:
        """Return how the zeros of constants are split: by examples, and as the parameter is."""
        examples = self.spread.axes if self.spread else None
        pairs = zip(self.operands, self.own.in_specs, strict=True)
        return [P(examples, *spec) for x, spec in pairs if x.constant is not None]

    def _split(self, zeros: Any, axis: int = 0) -> Any:
        """Return zeros whose examples are in the order of the devices."""
        if self.spread is None or not self.spread.digit.index:
            return zeros
        parts = self.spread.digit.front(zeros, axis)
        moved = jax.numpy.moveaxis(parts, 0, axis)
        return jax.numpy.reshape(moved, zeros.shape)

    def _join(self, zeros: Any) -> Any:
        """Return zeros ``[examples, ...]`` in the order of the batch."""
        if self.spread is None or not self.spread.digit.index:
            return zeros
        digit = self.spread.digit
        others = [size for i, size in enumerate(digit.sizes) if i != digit.index]
        parts = jax.numpy.reshape(zeros, (digit.count, *others, *zeros.shape[1:]))
        return jax.numpy.reshape(jax.numpy.moveaxis(parts, 0, digit.index), zeros.shape)

    def _factor_zeros(self, values: Any, zeros: Any) -> tuple[list[Any], list[Any]]:
        """Return the zeros for factors that the function takes, and how they are split."""
        if self.interpreter.zeros is None:
            return [], []
        taken = self.interpreter.zeros
        examples = self.spread.axes if self.spread else None
        jax.eval_shape(self._mapped(None), values, zeros, None)
        count = self.spread.digit.count if self.spread else 1
        found, specs = [], []  # type: tuple[list[Any], list[Any]]
        for kind, axis in [*self.types]:
            shape = list(kind.shape)
            shape[axis] *= count
            specs.append(P(*[None] * axis, examples))
            whole = arrays.on_mesh(self.lead, arrays.Type(tuple(shape), kind.dtype), specs[-1])
            zeros = self._split(taken.take(whole, axis), axis)
            found.append(arrays.with_spec(self.lead, zeros, specs[-1]))
        return found, specs

    def _body(self, values: Any, zeros: Any, factors: Any) -> Any:
        """Evaluate the function on one device."""
        interpreter = self.interpreter
        rest = iter(zeros)
        given = []
        for value, x in zip(values, self.operands, strict=True):
            constant = x.constant
            if constant is not None:
                constant = rebuilt(constant, value, next(rest))
            given.append(Traced(value, x.state, constant))
        outer = interpreter.records, interpreter.zeros
        interpreter.records = []
        interpreter.zeros = None if outer[1] is None else Zeros(factors)
        try:
            with self._inner():
                outs = interpreter.run(self.own.jaxpr, (), given)
                returned = zip(outs, self.returned, strict=True)
                kept = [out for out, c in returned if c]
                out_zeros = [zeros_of(interpreter, out) for out in kept]
                self.names = [out.constant.names for out in kept if out.constant is not None]
            self.found, made = interpreter.records, interpreter.zeros
            self.types = [] if made is None else [*zip(made.types, made.axes, strict=True)]
        finally:
            interpreter.records, interpreter.zeros = outer
        return [out.value for out in outs], out_zeros


def _names(spec: Any, dim: int) -> tuple[str, ...]:
    """Return the axes of a mesh that split a dimension."""
    entry = spec[dim] if dim < len(spec) else None
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def _all_names(spec: Any) -> frozenset[str]:
    return frozenset(name for dim in range(len(spec)) for name in _names(spec, dim))
