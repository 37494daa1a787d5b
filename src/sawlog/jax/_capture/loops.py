"""The rule for ``scan``: parameters that are the same in all iterations, stacked, or carried.

body: [consts, carry, x] -> [carry, y] becomes

[consts, carry and zeros of carried constants, x and what its constants need, zeros for factors]
-> [carry and zeros, y and zeros]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax import _compat
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.axes import Mixed, State
from sawlog.jax._capture.axis_rules.table import where
from sawlog.jax._capture.constants import Constant, Traced
from sawlog.jax._capture.example_loops import loop_over_examples
from sawlog.jax._capture.interpreter import CaptureInterpreter, structure_rule
from sawlog.jax._capture.slots import BlockSlot, Zeros
from sawlog.jax._capture.structures import (
    agree,
    merged_state,
    received,
    states_of,
    zeros_of,
)
from sawlog.jax._capture.sub_batches import in_step, shifted, step_digit
from sawlog.jax._capture.unrolled import unrolled_steps
from sawlog.jax._capture.views import ParameterView
from sawlog.jax._core import arrays


@structure_rule("scan")
def scan(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate the body with zeros for what it uses as further inputs."""
    loop = _compat.Scan.read(eqn.params)
    consts, carry, xs = loop.split(operands)
    digit = step_digit([x.state.place for x in xs], interpreter.examples)
    if digit is not None:
        return loop_over_examples(interpreter, eqn, loop, operands, digit)
    stepped = [_step_state(interpreter, x.state, eqn) for x in xs]
    states, outs = _fixed_point(interpreter, eqn, loop, consts, carry, stepped)
    if any(isinstance(state.place, Mixed) for state in (*states, *outs)):
        written_out = unrolled_steps(interpreter, eqn, loop, operands)
        if written_out is not None:
            return written_out
    body = _Body(interpreter, eqn, loop, consts, carry, xs, stepped, states, outs)
    return body.bind()


def _step_state(interpreter: CaptureInterpreter, state: State, eqn: Any) -> State:
    """Return the state of one step of a stacked value."""
    return State(in_step(state.place, interpreter.examples, where(eqn)), state.param)


def _stacked_state(interpreter: CaptureInterpreter, state: State) -> State:
    return State(shifted(state.place, interpreter.examples, 1), state.param)


def _fixed_point(
    interpreter: CaptureInterpreter,
    eqn: Any,
    loop: Any,
    consts: Sequence[Traced],
    carry: Sequence[Traced],
    stepped: Sequence[State],
) -> tuple[list[State], list[State]]:
    """Return the states of the carry in all iterations, and those of the outputs of the body."""
    states = [State(x.state.place, x.state.param) for x in carry]
    while True:
        given = [*(x.state for x in consts), *states, *stepped]
        outs = states_of(interpreter, loop.body, given)
        new = [merged_state(pair, eqn) for pair in zip(states, outs[: len(states)], strict=True)]
        if new == states:
            return states, outs
        states = new


@dataclasses.dataclass
class _Body:
    """A ``scan`` that is being rebuilt."""

    interpreter: CaptureInterpreter
    eqn: Any
    loop: Any
    consts: list[Traced]
    carry: list[Traced]
    xs: list[Traced]
    stepped: list[State]
    states: list[State]
    outs: list[State]

    def __post_init__(self) -> None:
        self.at = where(self.eqn)
        self.names = frozenset().union(
            *(x.constant.names for x in (*self.consts, *self.carry, *self.xs) if x.constant)
        )
        self.carried = [s.place is None and s.param for s in self.states]
        self.ys = [s.place is None and s.param for s in self.outs[len(self.carry) :]]
        self.stacked = [_Stacked.of(self.interpreter, x) for x in self.xs]
        self.found: list[Recorded] = []

    def bind(self) -> list[Traced]:
        """Run the loop, and return its outputs."""
        interpreter, loop, length = self.interpreter, self.loop, self.loop.length
        init = [
            agree(interpreter, x, state, self.at)
            for x, state in zip(self.carry, self.states, strict=True)
        ]
        start = [x.value for x in init]
        start_zeros = [
            zeros_of(interpreter, x) for x, c in zip(init, self.carried, strict=True) if c
        ]
        xs = [x.value for x in self.xs]
        extra = [each.arrays for each in self.stacked]
        types = self._types(start, start_zeros, xs, extra)
        first = 0 if interpreter.zeros is None else len(interpreter.zeros.types)
        taken = interpreter.zeros or Zeros()
        zeros = [taken.take(arrays.rows(length, kind), axis + 1) for kind, axis in types]
        (carry, carry_zeros), (ys, ys_zeros) = jax.lax.scan(
            self._step,
            (start, start_zeros),
            (xs, extra, zeros),
            length=length,
            reverse=loop.reverse,
            unroll=_compat.scan_unroll(self.eqn),
        )
        interpreter.adopt(self.found, first)
        moved = [jnp.moveaxis(each, 0, 1) for each in ys_zeros]
        stacked = [_stacked_state(interpreter, state) for state in self.outs[len(carry) :]]
        return [
            *self._results(carry, self.states, self.carried, carry_zeros),
            *self._results(ys, stacked, self.ys, moved),
        ]

    def _results(
        self, values: Sequence[Any], states: Sequence[State], flags: Sequence[bool], zeros: Any
    ) -> list[Traced]:
        rest = iter(zeros)
        return [
            Traced(v, s, received(v, next(rest), self.names) if flag else None)
            for v, s, flag in zip(values, states, flags, strict=True)
        ]

    def _types(self, start: Any, start_zeros: Any, xs: Any, extra: Any) -> list[tuple[Any, int]]:
        """Return the types of the zeros for factors that the body takes, and their axes."""
        if self.interpreter.zeros is None:
            return []
        collected: list[Any] = []

        def body(carry: Any, x: Any) -> Any:
            out = self._step(carry, (*x, None))
            collected[:] = self.types
            return out

        loop = self.loop
        jax.eval_shape(
            lambda: jax.lax.scan(body, (start, start_zeros), (xs, extra), length=loop.length)
        )
        return collected

    def _step(self, carry: Any, x: Any) -> Any:
        """Evaluate one iteration."""
        interpreter = self.interpreter
        (values, carry_zeros), (xs, extra, zeros) = carry, x
        rest = iter(carry_zeros)
        given = [
            *self.consts,
            *(
                Traced(v, s, received(v, next(rest), self.names) if flag else None)
                for v, s, flag in zip(values, self.states, self.carried, strict=True)
            ),
            *(
                Traced(v, s, each.constant(v, arrays, interpreter.depth))
                for v, s, each, arrays in zip(xs, self.stepped, self.stacked, extra, strict=True)
            ),
        ]
        outer = interpreter.records, interpreter.zeros
        interpreter.records = []
        interpreter.zeros = None if outer[1] is None else Zeros(zeros)
        interpreter.depth += 1
        try:
            outs = interpreter.run(self.loop.body.jaxpr, self.loop.body.consts, given)
            count = len(values)
            new = [
                agree(interpreter, out, state, self.at)
                for out, state in zip(outs[:count], self.states, strict=True)
            ]
            ys = outs[count:]
            new_zeros = [
                zeros_of(interpreter, o) for o, c in zip(new, self.carried, strict=True) if c
            ]
            ys_zeros = [zeros_of(interpreter, o) for o, c in zip(ys, self.ys, strict=True) if c]
            self.found = interpreter.records
            made = interpreter.zeros
            self.types = [] if made is None else [*zip(made.types, made.axes, strict=True)]
        finally:
            interpreter.depth -= 1
            interpreter.records, interpreter.zeros = outer
        return ([o.value for o in new], new_zeros), ([o.value for o in ys], ys_zeros)


@dataclasses.dataclass(frozen=True)
class _Stacked:
    """How the iterations of a loop get at a stacked constant.

    Args:
        arrays: What is passed to them besides the value: zeros, or the arrays of a slot.
        view: The view of the whole.
        slot: The slot of the whole; None if the zeros are those of whole gradients.
        names: The parameters; None if the value is not a constant of parameters.
    """

    arrays: Any
    view: ParameterView | None = None
    slot: BlockSlot | None = None
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, interpreter: CaptureInterpreter, traced: Traced) -> _Stacked:
        """Return what the iterations need of an operand."""
        constant = traced.constant
        if constant is None:
            return cls([])
        slot, view = constant.slot, constant.view
        if slot is not None and view is not None and _is_group(slot, view):
            moved = [jnp.moveaxis(slot.zeros, 1, 0), slot.left, slot.right]
            return cls(moved, view, slot, constant.names)
        whole = interpreter.full(traced)
        assert whole is not None
        return cls([jnp.moveaxis(whole.make_zeros(), 1, 0)], whole.view, None, constant.names)

    def constant(self, value: Any, arrays: Any, depth: int) -> Constant | None:
        """Return the constant of one iteration."""
        if self.names is None:
            return None
        view = self.view and self.view.iterated(depth)
        if self.slot is None:
            (zeros,) = arrays
            return Constant(value, frozenset(), lambda: zeros, self.names, view)
        own = dataclasses.replace(
            self.slot,
            zeros=arrays[0],
            left=arrays[1],
            right=arrays[2],
            groups=self.slot.groups[1:],
        )
        shape, dtype = tuple(value.shape), value.dtype
        return Constant(value, frozenset(), lambda: own.whole(shape, dtype), self.names, view, own)


def _is_group(slot: BlockSlot, view: ParameterView) -> bool:
    """Return whether a loop over the first dimension is one over the first group of a block."""
    return bool(slot.groups) and view.dims[0] == slot.groups[:1]
