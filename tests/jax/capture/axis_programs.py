"""Check where rules say that examples are: an element changes with its example alone.

Programs are followed without compiling what captures them, so every operation is tried by default.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import jit_p

from sawlog.jax import _compat
from sawlog.jax._capture.axes import ONE, Axis, CutBatch, Mixed, State
from sawlog.jax._capture.axis_rules.table import FollowedOperands, follow
from sawlog.jax._capture.known_integers import known_literal, known_outputs, known_value

EXAMPLES = 3
FOLLOWED, CUT, MIXED = Axis, CutBatch, Mixed


def places(fun, operands, axes):
    """Where the outputs have the examples, equation by equation."""
    closed = jax.make_jaxpr(fun)(*operands)
    states = {
        var: State(known=known_value(c))
        for var, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)
    }
    states |= {
        var: State(place=None if axis is None else Axis(axis))
        for var, axis in zip(closed.jaxpr.invars, axes, strict=True)
    }

    def read(atom):
        if isinstance(atom, _compat.Literal):
            return State(known=known_literal(atom))
        return states[atom]

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            own = [read(atom) for atom in eqn.invars]
            if eqn.primitive is jit_p:  # of jax.numpy
                inside = _compat.inner_jaxpr(eqn)
                states.update(zip(inside.jaxpr.invars, own, strict=True))
                walk(inside.jaxpr)
                outs = [read(atom) for atom in inside.jaxpr.outvars]
                states.update(zip(eqn.outvars, outs, strict=True))
                continue
            known = tuple(each.known for each in own)
            nothing = (None,) * len(own)
            given = FollowedOperands(tuple(e.place for e in own), known, EXAMPLES, nothing)
            found, numbers = follow(eqn, given), known_outputs(eqn, own)
            for var, place, number in zip(eqn.outvars, found.outs, numbers, strict=True):
                states[var] = State(place=place, known=number)

    walk(closed.jaxpr)
    return [read(atom).place for atom in closed.jaxpr.outvars]


def owners(place, shape):
    """The example of each element; None for a place that says nothing."""
    chosen = np.arange(EXAMPLES)
    if isinstance(place, CutBatch):
        place, chosen = place.place, np.asarray(place.chosen)
    if place == ONE:
        return np.broadcast_to(chosen, shape)
    assert isinstance(place, Axis)
    size = shape[place.dim]
    assert size == place.width * len(chosen)
    along = chosen[np.arange(size) // place.inner % len(chosen)]
    return np.broadcast_to(
        along.reshape([-1 if d == place.dim else 1 for d in range(len(shape))]), shape
    )


def check(fun, shapes, axes, wanted, integers=0):
    """Compare where the rules say that examples are with what changes if one is replaced."""
    rng = np.random.default_rng(0)

    def drawn(shape):
        if integers:
            return rng.integers(0, integers, shape).astype(np.int32)
        return rng.normal(size=shape).astype(np.float32)

    operands = [jnp.asarray(drawn(shape)) for shape in shapes]
    found = places(fun, operands, axes)
    assert [type(place) for place in found] == [wanted] * len(found), found
    if wanted is MIXED:
        return
    before = [np.asarray(out) for out in jax.tree.leaves(fun(*operands))]
    for example in range(EXAMPLES):
        changed = []
        for array, axis in zip(operands, axes, strict=True):
            other = np.array(array)
            if axis is not None:
                place = (slice(None),) * axis + (example,)
                other[place] = drawn(other[place].shape)
            changed.append(jnp.asarray(other))
        after = [np.asarray(out) for out in jax.tree.leaves(fun(*changed))]
        for place, one, two in zip(found, before, after, strict=True):
            own = owners(place, one.shape) == example
            assert not ((one != two) & ~own).any()
            assert integers or (one != two).any() == own.any()


def batched(fun, *axes):
    return jax.vmap(fun, axes)
