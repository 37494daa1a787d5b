"""A loop that selects examples by the number of its step, evaluated step by step.

The body of such a loop sees all examples, and a position that depends on the step. Written out,
each step has a position that is known when the program is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, CutBatch, Mixed, Split, State
from sawlog.jax._capture.constants import Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter
from sawlog.jax._capture.without_logs import has_logs

#: Loops of more steps are not written out: the compiled program would grow with them.
MOST_STEPS = 64


def unrolled_steps(
    interpreter: CaptureInterpreter, eqn: Any, loop: Any, operands: Sequence[Traced]
) -> list[Traced] | None:
    """Return the outputs of a loop whose steps are written out; None if that does not help."""
    places = [x.state.place for x in operands]
    if loop.length > MOST_STEPS or not any(isinstance(p, (Axis, Split, CutBatch)) for p in places):
        return None
    if any(isinstance(place, Mixed) for place in places) or has_logs(eqn):
        return None
    program, given = _written_out(eqn, loop, operands)
    with interpreter.trying():
        tried = _states(interpreter, program, given)
    if any(isinstance(state.place, Mixed) for state in tried):
        return None
    return interpreter.run(program.jaxpr, program.consts, given)


def _states(interpreter: CaptureInterpreter, program: Any, given: Sequence[Traced]) -> list[State]:
    """Return the states of the outputs of a program."""
    found: list[State] = []

    def body() -> Any:
        outs = interpreter.run(program.jaxpr, program.consts, given)
        found[:] = [out.state for out in outs]
        return [out.value for out in outs]

    jax.eval_shape(body)
    return found


def _written_out(eqn: Any, loop: Any, operands: Sequence[Traced]) -> tuple[Any, list[Traced]]:
    """Return the steps of a loop as one program, and its operands; integers are part of it."""
    step = jaxpr_as_fun(loop.body)
    literal = [isinstance(atom, _compat.Literal) for atom in eqn.invars]
    given = [x for x, fixed in zip(operands, literal, strict=True) if not fixed]

    def steps(*values: Any) -> list[Any]:
        rest = iter(values)
        own = [
            atom.val if fixed else next(rest)
            for atom, fixed in zip(eqn.invars, literal, strict=True)
        ]
        consts, carry, xs = loop.split(own)
        stacked: list[list[Any]] = [[] for _ in range(len(eqn.outvars) - len(carry))]
        order = range(loop.length)
        for i in reversed(order) if loop.reverse else order:
            slices = [jax.lax.index_in_dim(x, i, keepdims=False) for x in xs]
            outs = step(*consts, *carry, *slices)
            carry = list(outs[: len(carry)])
            for column, y in zip(stacked, outs[len(carry) :], strict=True):
                column.append(y)
        columns = [column[::-1] if loop.reverse else column for column in stacked]
        return [*carry, *(jnp.stack(column) for column in columns)]

    avals = [a.aval for a, fixed in zip(eqn.invars, literal, strict=True) if not fixed]
    return _compat.trace_flat(steps, avals, "the steps of a loop"), given
