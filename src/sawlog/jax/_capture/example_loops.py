"""A ``scan`` over examples: ``lax.map``, or the micro-batches of gradient accumulation.

Each step sees some of the examples, and has the zeros of these. The carry between steps must not
depend on examples, except for a sum that is declared as the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from sawlog.jax import _compat
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.axes import (
    Axis,
    CutBatch,
    Mixed,
    Place,
    Split,
    State,
    Summed,
    digits_of,
    joined,
)
from sawlog.jax._capture.axis_rules.table import where
from sawlog.jax._capture.constants import Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter
from sawlog.jax._capture.slots import Zeros
from sawlog.jax._capture.structures import merged_state, states_of
from sawlog.jax._capture.sub_batches import Digit, of_all_steps, passed, rebuilt, shifted
from sawlog.jax._core import arrays

_HANDED_ON = "passes a value of some examples to others, in a loop over the examples"


def loop_over_examples(
    interpreter: CaptureInterpreter, eqn: Any, loop: Any, operands: Sequence[Traced], digit: Digit
) -> list[Traced]:
    """Evaluate a loop whose steps run over a digit of the examples."""
    return _ExampleLoop(interpreter, eqn, loop, operands, digit).bind()


class _ExampleLoop:
    """A ``scan`` over examples that is being rebuilt."""

    def __init__(
        self,
        interpreter: CaptureInterpreter,
        eqn: Any,
        loop: Any,
        operands: Sequence[Traced],
        digit: Digit,
    ) -> None:
        self.interpreter, self.eqn, self.loop, self.digit = interpreter, eqn, loop, digit
        self.at = where(eqn)
        consts, carry, xs = loop.split(operands)
        self.consts = [self._const(x) for x in consts]
        self.carry = [Traced(x.value, self._handed_on(x.state)) for x in carry]
        self.xs = [Traced(x.value, self._step_state(x.state)) for x in xs]
        self.constants = [x.constant for x in self.consts if x.constant is not None]
        self.found: list[Recorded] = []
        with interpreter.some_examples(digit.rest):
            self.states, self.outs = self._fixed_point()

    # -- states -------------------------------------------------------------------------------

    def _const(self, traced: Traced) -> Traced:
        place = traced.state.place
        if isinstance(place, (Axis, Split)):
            why = Mixed("uses all examples in each step of a loop over the examples", self.at)
            return Traced(traced.value, State(why, traced.state.param))
        return dataclasses.replace(traced, origin=None)

    def _handed_on(self, state: State) -> State:
        """Return the state of a value in the carry."""
        place = state.place
        if isinstance(place, (Axis, Split, CutBatch)):
            place = Summed() if self.interpreter.sums else Mixed(_HANDED_ON, self.at)
        elif place is None and state.param:
            place = Mixed("passes parameters to later steps, in a loop over the examples", self.at)
        return State(place, state.param)

    def _step_state(self, state: State) -> State:
        place = state.place
        if isinstance(place, (Axis, Split)):
            return State(self._in_step(place), state.param)
        if place is None and state.param:
            why = "uses different slices of a parameter for different examples of a loop"
            return State(Mixed(why, self.at), True)
        return State(place, state.param)

    def _in_step(self, place: Axis | Split) -> Place:
        digits = digits_of(place, self.interpreter.examples)
        if tuple(size for _, size in digits) == self.digit.sizes:
            own, _ = digits.pop(self.digit.index)
            if own.dim == 0 and own.width == 1 and own.order is None:
                return shifted(joined(digits), self.digit.rest, -1)
        return Mixed("loops over the examples of two values in different ways", self.at)

    def _fixed_point(self) -> tuple[list[State], list[State]]:
        """Return the states of the carry in all steps, and those of the outputs of a step."""
        states = [x.state for x in self.carry]
        while True:
            given = [*(x.state for x in self.consts), *states, *(x.state for x in self.xs)]
            outs = states_of(self.interpreter, self.loop.body, given)
            handed_on = map(self._handed_on, outs[: len(states)])
            pairs = zip(states, handed_on, strict=True)
            new = [merged_state(pair, self.eqn) for pair in pairs]
            if new == states:
                return states, outs
            states = new

    def _stacked(self, state: State) -> State:
        """Return the state of an output of all steps."""
        place = state.place
        if isinstance(place, (Axis, Split)):
            inner = shifted(place, self.digit.rest, 1)
            assert isinstance(inner, (Axis, Split))
            place = self.digit.inserted(inner, Axis(0))
        elif isinstance(place, CutBatch):
            place = Mixed("returns some of the examples of a step, in a loop over the examples")
        elif place is None and state.param:
            place = Mixed("returns a value of parameters alone from a loop over the examples")
        if isinstance(place, Mixed) and not place.where:
            place = Mixed(place.why, self.at)
        return State(place, state.param)

    # -- evaluating ---------------------------------------------------------------------------

    def bind(self) -> list[Traced]:
        """Run the loop, and return its outputs."""
        interpreter, digit = self.interpreter, self.digit
        start, xs = [x.value for x in self.carry], [x.value for x in self.xs]
        zeros = [digit.front(passed(constant)) for constant in self.constants]
        first = 0 if interpreter.zeros is None else len(interpreter.zeros.types)
        factors = [digit.front(zeros, axis) for zeros, axis in self._factor_zeros(start, xs, zeros)]
        carry, ys = jax.lax.scan(
            self._step,
            start,
            (xs, zeros, factors),
            length=self.loop.length,
            reverse=self.loop.reverse,
            unroll=_compat.scan_unroll(self.eqn),
        )
        interpreter.adopt([of_all_steps(record) for record in self.found], first)
        stacked = map(self._stacked, self.outs[len(carry) :])
        return [
            *(Traced(v, s) for v, s in zip(carry, self.states, strict=True)),
            *(Traced(v, s) for v, s in zip(ys, stacked, strict=True)),
        ]

    def _factor_zeros(self, start: Any, xs: Any, zeros: Any) -> list[tuple[Any, int]]:
        """Return the zeros for factors that a step takes, and where they have the examples."""
        if self.interpreter.zeros is None:
            return []
        taken = self.interpreter.zeros
        collected: list[Any] = []

        def body(carry: Any, x: Any) -> Any:
            out = self._step(carry, (*x, None))
            collected[:] = self.types
            return out

        jax.eval_shape(lambda: jax.lax.scan(body, start, (xs, zeros), length=self.loop.length))
        found = []
        for kind, axis in collected:
            whole = arrays.resized(kind, axis, kind.shape[axis] * self.digit.count)
            found.append((taken.take(whole, axis), axis))
        return found

    def _step(self, carry: Any, x: Any) -> Any:
        """Evaluate one step."""
        interpreter, (xs, zeros, factors) = self.interpreter, x
        rest = iter(zeros)
        given = [
            *(
                x
                if x.constant is None
                else dataclasses.replace(
                    x, constant=rebuilt(x.constant, x.constant.core, next(rest))
                )
                for x in self.consts
            ),
            *(Traced(v, s) for v, s in zip(carry, self.states, strict=True)),
            *(Traced(v, x.state) for v, x in zip(xs, self.xs, strict=True)),
        ]
        outer = interpreter.records, interpreter.zeros
        interpreter.records = []
        interpreter.zeros = None if outer[1] is None else Zeros(factors)
        try:
            with interpreter.some_examples(self.digit.rest):
                outs = interpreter.run(self.loop.body.jaxpr, self.loop.body.consts, given)
            self.found = interpreter.records
            made = interpreter.zeros
            self.types = [] if made is None else [*zip(made.types, made.axes, strict=True)]
        finally:
            interpreter.records, interpreter.zeros = outer
        count = len(carry)
        return [o.value for o in outs[:count]], [o.value for o in outs[count:]]
