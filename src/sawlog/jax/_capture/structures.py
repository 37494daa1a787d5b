"""Rules for equations that hold programs: calls, checkpoints, branches, custom derivatives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sawlog.errors import CaptureError
from sawlog.jax import _compat
from sawlog.jax._capture.axes import ONE, Axis, CutBatch, Mixed, Place, Split, State, merge
from sawlog.jax._capture.axis_rules.table import Followed, where
from sawlog.jax._capture.constants import Constant, Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter, structure_rule
from sawlog.jax._capture.links import for_examples
from sawlog.jax._capture.permutations import index_outputs
from sawlog.jax._core import arrays


@structure_rule(
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "eval_jaxpr",
    "remat_opt",
    "composite",
    "custom_lin",
    in_place=True,
)
def call(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate the function in place."""
    inner = _compat.inner_jaxpr(eqn)
    outs = [_located(out, eqn) for out in interpreter.run(inner.jaxpr, inner.consts, operands)]
    index = index_outputs(eqn, [x.state for x in operands])
    if index is not None:  # whatever it computes in between
        state = dataclasses.replace(operands[0].state, index=index)
        outs = [Traced(x.value, state) for x in outs]
    return outs


def _located(traced: Traced, eqn: Any) -> Traced:
    """Name the line of a call where that of the equation inside of it is unknown."""
    place = traced.state.place
    if not isinstance(place, (Mixed, CutBatch)) or _compat.UNKNOWN_LINE not in place.where:
        return traced
    at = place.where.replace(_compat.UNKNOWN_LINE, _compat.source_line(eqn))
    named = dataclasses.replace(place, where=at)
    return dataclasses.replace(traced, state=dataclasses.replace(traced.state, place=named))


@structure_rule("optimization_barrier", in_place=True)
def barrier(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Return every operand unchanged."""
    del interpreter
    values = _compat.bind_equation(eqn, [x.value for x in operands])
    return [dataclasses.replace(x, value=v) for x, v in zip(operands, values, strict=True)]


@structure_rule("checkpoint", "remat", "remat2", in_place=True)
def checkpoint(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate the function inside of a checkpoint with the same policy."""
    inner = _compat.inner_jaxpr(eqn)
    packing = Packing(interpreter)

    def body(*values: Any) -> list[Any]:
        given = [Traced(v, x.state, x.constant) for v, x in zip(values, operands, strict=True)]
        return packing.pack(lambda: interpreter.run(inner, (), given))

    made = _compat.checkpointed(eqn, body)
    return packing.unpack(made(*(x.value for x in operands)))


class Packing:
    """Passes traced values out of a function that JAX traces, as flat arrays.

    A constant is passed with its zeros. JAX may trace the function more than once; the last
    trace counts.
    """

    def __init__(self, interpreter: CaptureInterpreter) -> None:
        self._interpreter = interpreter
        self._start = len(interpreter.records)
        self._outs: list[Traced] = []

    def pack(self, run: Callable[[], list[Traced]]) -> list[Any]:
        """Evaluate, and return values and zeros of constants."""
        del self._interpreter.records[self._start :]
        known = len(self._interpreter.orders)
        self._outs = [dataclasses.replace(x, state=outside(x.state, known)) for x in run()]
        return flatten(self._interpreter, self._outs)

    def unpack(self, arrays: Sequence[Any]) -> list[Traced]:
        """Return the traced values."""
        return unflatten(self._outs, arrays)


def flatten(interpreter: CaptureInterpreter, outs: Sequence[Traced]) -> list[Any]:
    """Return the values, and the zeros of those that are constants of parameters."""
    constants = [interpreter.full(out) for out in outs]
    return [*(out.value for out in outs), *(c.make_zeros() for c in constants if c is not None)]


def unflatten(outs: Sequence[Traced], arrays: Sequence[Any]) -> list[Traced]:
    """Return traced values with other arrays, as :func:`flatten` returned them."""
    zeros = iter(arrays[len(outs) :])
    found = []
    for out, value in zip(outs, arrays, strict=False):
        constant = None
        if out.constant is not None:
            constant = received(value, next(zeros), out.constant.names)
        found.append(Traced(value, out.state, constant))
    return found


def received(value: Any, zeros: Any, names: frozenset[str]) -> Constant:
    """Return a constant whose gradients ``zeros`` receive."""
    return Constant(value, frozenset(), lambda: zeros, names)


def states_of(
    interpreter: CaptureInterpreter,
    inner: Any,
    states: Sequence[State],
    trace: Callable[[Callable[..., Any]], Any] | None = None,
) -> list[State]:
    """Return the states of the outputs of an inner program.

    Args:
        interpreter: Evaluates it.
        inner: The program, open or closed.
        states: The states of its inputs.
        trace: Traces a function of its inputs; by default, as it would trace any function.
    """
    found: list[State] = []
    known = len(interpreter.orders)
    jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())

    def body(*values: Any) -> list[Any]:
        given = [_stand_in(interpreter, v, s) for v, s in zip(values, states, strict=True)]
        outs = interpreter.run(jaxpr, consts, given)
        found[:] = [outside(out.state, known) for out in outs]
        return [out.value for out in outs]

    with interpreter.trying():
        if trace is None:
            _compat.trace_flat(body, [var.aval for var in jaxpr.invars], "a part of the program")
        else:
            trace(body)
    return found


def outside(state: State, known: int) -> State:
    """Return the state of a value that leaves a program, with ``known`` permutations outside."""
    place = state.place
    if isinstance(place, Axis) and place.order is not None and place.order >= known:
        place = Mixed("returns rows that are sorted across examples", "a program inside")
    return State(place, state.param, state.known)


def _stand_in(interpreter: CaptureInterpreter, value: Any, state: State) -> Traced:
    """Return a value in a state, with zeros that receive nothing if it is a constant."""
    if state.place is not None or not state.param:
        return Traced(value, state)
    zeros = arrays.zeros(for_examples(interpreter.examples_type, value))
    return Traced(value, state, received(value, zeros, frozenset()))


@structure_rule(
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
    "custom_linear_solve",
    "call_hi_primitive",
)
def own_derivative(
    interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]
) -> list[Traced]:
    """Bind the equation, whose derivative is the user's, or that of an operation of newer JAX."""
    if eqn.primitive.name == "custom_linear_solve":
        inner, given = _compat.linear_solver(eqn, operands)
    elif eqn.primitive is _compat.call_hi_primitive_p:
        fun, types = _compat.hi_primitive_function(eqn.params), [var.aval for var in eqn.invars]
        inner, given = _compat.trace_flat(fun, types, "an operation"), operands
    else:
        inner, given = _compat.inner_jaxpr(eqn), operands
    with interpreter.not_differentiated():
        states = states_of(interpreter, inner, [x.state for x in given])
    places: tuple[Place, ...] = tuple(_whole(state.place, eqn) for state in states)
    if not any(isinstance(place, Mixed) for place in places):
        places = _separate_backwards(interpreter, eqn, operands, places)
    return interpreter.bind(eqn, operands, Followed(places), sliceable=False)


def _whole(place: Place, eqn: Any) -> Place:
    """Return a place with all examples, as the user's derivative must have them."""
    if not isinstance(place, CutBatch):
        return place
    why = "selects some of the examples, in a function with a custom derivative"
    return Mixed(why, where(eqn))


def _separate_backwards(
    interpreter: CaptureInterpreter, eqn: Any, operands: Sequence[Traced], places: tuple[Place, ...]
) -> tuple[Place, ...]:
    """Return the places of the outputs; mixed if the user's derivative combines examples."""
    floats = [i for i, x in enumerate(operands) if _compat.has_gradient(eqn.invars[i].aval)]
    wanted = [i for i in floats if isinstance(operands[i].state.place, (Axis, Split))]
    if not wanted or not any(x.state.param for x in operands):
        return places
    count = len(operands)
    outs = [i for i, var in enumerate(eqn.outvars) if _compat.has_gradient(var.aval)]

    def pulled(*given: Any) -> list[Any]:
        def bind(*values: Any) -> list[Any]:
            own = list(given[:count])
            for i, value in zip(wanted, values, strict=True):
                own[i] = value
            made = _compat.bind_equation(eqn, own)
            return [made[i] for i in outs]

        pull = jax.vjp(bind, *(given[i] for i in wanted))[1]
        return list(pull(list(given[count:])))

    avals = [*(v.aval for v in eqn.invars), *(eqn.outvars[i].aval for i in outs)]
    closed = _compat.trace_flat(pulled, avals, "a derivative")
    states = [State(x.state.place, False, x.state.known) for x in operands]
    found = states_of(interpreter, closed, [*states, *(State(places[i]) for i in outs)])
    for i, state in zip(wanted, found, strict=True):
        if state.place is not None and state.place != operands[i].state.place:
            inside = state.place.where if isinstance(state.place, Mixed) else ""
            why = f"has a custom derivative that combines examples ({inside})"
            return (Mixed(why, where(eqn)),) * len(places)
    return places


@structure_rule("cond")
def cond(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate every branch; what they return must have the examples at the same place."""
    index, *given = operands
    branches = _compat.branches_of(eqn)
    if index.state.place not in (None, ONE):
        place = index.state.place
        why = "selects a branch by a value of one example"
        mixed = place if isinstance(place, Mixed) else Mixed(why, where(eqn))
        return interpreter.bind(eqn, operands, Followed((mixed,) * len(eqn.outvars)))
    found = [states_of(interpreter, branch, [x.state for x in given]) for branch in branches]
    merged = [merged_state(states, eqn) for states in zip(*found, strict=True)]
    if index.state.place == ONE:  # which branch it is depends on the example
        merged = [dataclasses.replace(s, place=s.place or ONE, known=None) for s in merged]
    constant = [state.place is None and state.param for state in merged]
    names = frozenset().union(*(x.constant.names for x in given if x.constant is not None))
    start = len(interpreter.records)
    kept: list[list[Any]] = [[] for _ in branches]

    def evaluate(i: int, *values: Any) -> list[Any]:
        del interpreter.records[start + sum(map(len, kept[:i])) :]
        own = [Traced(v, x.state, x.constant) for v, x in zip(values, given, strict=True)]
        outs = interpreter.run(branches[i].jaxpr, branches[i].consts, own)
        outs = [
            agree(interpreter, out, state, where(eqn))
            for out, state in zip(outs, merged, strict=True)
        ]
        kept[i] = interpreter.records[start + sum(map(len, kept[:i])) :]
        zeros = [zeros_of(interpreter, out) for out, c in zip(outs, constant, strict=True) if c]
        return [*(out.value for out in outs), *zeros]

    functions = [functools.partial(evaluate, i) for i in range(len(branches))]
    arrays = jax.lax.switch(index.value, functions, *(x.value for x in given))
    zeros = iter(arrays[len(merged) :])
    return [
        Traced(value, state, received(value, next(zeros), names) if c else None)
        for value, state, c in zip(arrays, merged, constant, strict=False)
    ]


def merged_state(states: Sequence[State], eqn: Any) -> State:
    """Return the state of a value that is one of several."""
    place = merge(states)
    if isinstance(place, Mixed) and not place.where:
        place = Mixed(place.why, where(eqn))
    return State(place, any(state.param for state in states))


def agree(interpreter: CaptureInterpreter, traced: Traced, state: State, at: str) -> Traced:
    """Return a value in the state that all steps or branches share."""
    if isinstance(state.place, (Axis, Split)) and traced.state.place is None:
        return interpreter.promoted(traced, state.place, at)
    return traced


def zeros_of(interpreter: CaptureInterpreter, traced: Traced) -> Any:
    """Return the zeros of a constant; new ones, which receive nothing, without a parameter."""
    constant = interpreter.full(traced)
    if constant is not None:
        return constant.make_zeros()
    return arrays.zeros(for_examples(interpreter.examples_type, traced.value))


@structure_rule("while")
def while_loop(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Bind a loop of unknown length, through which no gradient can flow backwards."""
    loop = _compat.While.read(eqn.params)
    of_cond, of_body, carry = loop.split(operands)
    if (
        interpreter.differentiated
        and any(x.constant is not None for x in (*of_body, *carry))
        and any(_compat.has_gradient(var.aval) for var in eqn.outvars)
    ):
        raise _endless(eqn, operands)
    states = [x.state for x in carry]
    while True:  # no state ever returns to an earlier one
        again = states_of(interpreter, loop.cond, [*(x.state for x in of_cond), *states])[0]
        outs = states_of(interpreter, loop.body, [*(x.state for x in of_body), *states])
        new = [merged_state(pair, eqn) for pair in zip(states, outs, strict=True)]
        new = [_while_again(state, again.place, loop, eqn) for state in new]
        if new == states:
            break
        states = new
    return interpreter.bind(eqn, operands, Followed(tuple(state.place for state in states)))


def _while_again(state: State, again: Place, loop: _compat.While, eqn: Any) -> State:
    """Return the state of a carried value, given where the condition of the loop has examples.

    Under ``vmap`` the condition has a value for each lane, and a lane stays as it is once its own
    value is false. Its dimensions are the first ones of all carried values.
    """
    if again is None or isinstance(state.place, Mixed):
        return state
    if again == ONE or (isinstance(again, (Axis, Split)) and loop.lanes):
        if state.place in (None, again):
            return dataclasses.replace(state, place=again)
        why = "has the examples along another dimension than the condition of the loop"
    elif isinstance(again, Mixed):
        return dataclasses.replace(state, place=again)
    else:
        why = "runs until a condition on the examples holds"
    return dataclasses.replace(state, place=Mixed(why, where(eqn)))


def _endless(eqn: Any, operands: Sequence[Traced]) -> CaptureError:
    names = sorted({n for x in operands if x.constant is not None for n in x.constant.names})
    used = f"The parameters {', '.join(names)} are" if names else "Parameters are"
    return CaptureError(
        f"{used} used inside of a loop of unknown length, {where(eqn)}, and JAX cannot "
        "differentiate such a loop backwards. Hint: use jax.lax.scan, or fori_loop with a static "
        "number of steps."
    )
