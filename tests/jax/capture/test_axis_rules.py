"""Where rules say that examples are: an element changes with the example it belongs to alone.

Programs are followed without compiling what captures them, so every operation is tried by default.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
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


E = EXAMPLES
REDUCE = {
    "sum of the others": (lambda x: lax.reduce_sum_p.bind(x, axes=(0, 2), out_sharding=None), 1),
    "max before": (lambda x: jnp.max(x, 0), 1),
    "max behind": (lambda x: jnp.max(x, 2), 1),
    "max on both sides": (lambda x: jnp.max(x, (0, 2)), 1),
    "max behind the last": (lambda x: jnp.max(x, (0, 1)), 2),
    "argmax before": (lambda x: lax.argmax(x, 0, np.int32), 1),
    "sums along another": (lambda x: jnp.cumsum(x, 2), 1),
    "sorted along another": (lambda x: lax.sort(x, dimension=0), 1),
    "pairs sorted along another": (lambda x: lax.sort((x, -x), dimension=2, num_keys=1), 0),
    "best along the last": (lambda x: lax.top_k(x, 2)[0], 1),
    "pools": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 1, 1), (1, 1, 1), "VALID"),
        1,
    ),
    "padded pools": (
        lambda x: lax.reduce_window(
            x, -np.inf, lax.max, (1, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (1, 1))
        ),
        1,
    ),
    "waves": (lambda x: jnp.abs(lax.fft(x, "RFFT", (4,))), 1),
    "waves of the last": (lambda x: jnp.abs(lax.fft(x, "FFT", (4,))), 0),
}
REDUCES_EXAMPLES = {
    "max": (lambda x: jnp.max(x, 1), 1),
    "max with others": (lambda x: jnp.max(x, (0, 1)), 1),
    "argmax": (lambda x: lax.argmax(x, 1, np.int32), 1),
    "sums": (lambda x: jnp.cumsum(x, 1), 1),
    "sorted": (lambda x: lax.sort(x, dimension=1), 1),
    "the best": (lambda x: lax.top_k(x, 2)[0], 2),
    "all of them in order": (lambda x: lax.top_k(x, E)[0], 2),
    "pools": (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 1), (1, 1, 1), "SAME"), 1),
    "strides": (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1,) * 3, (1, 2, 1), "VALID"), 1),
    "edges": (
        lambda x: lax.reduce_window(
            x, -np.inf, lax.max, (1,) * 3, (1,) * 3, ((0, 0), (1, 0), (0, 0))
        ),
        1,
    ),
    "waves": (lambda x: jnp.abs(lax.fft(x, "FFT", (E,))), 2),
    "waves of the last two": (lambda x: jnp.abs(lax.fft(x, "FFT", (E, 4))), 1),
}


def shape_of(axis):
    shape = [2, 4]
    shape.insert(axis, E)
    return shape


@pytest.mark.parametrize("name", REDUCE)
def test_reductions_of_others(name):
    fun, axis = REDUCE[name]
    check(fun, [shape_of(axis)], [axis], FOLLOWED)


@pytest.mark.parametrize("name", REDUCES_EXAMPLES)
def test_reductions_of_examples(name):
    fun, axis = REDUCES_EXAMPLES[name]
    check(fun, [shape_of(axis)], [axis], MIXED)


MOVE = {
    "squeezed before": ([1, E, 4], 1, lambda x: lax.squeeze(x, (0,)), FOLLOWED),
    "squeezed behind": ([2, E, 1], 1, lambda x: lax.squeeze(x, (2,)), FOLLOWED),
    "squeezed on both sides": ([1, 1, E, 1, 4], 2, lambda x: lax.squeeze(x, (1, 3)), FOLLOWED),
    "transposed": ([2, E, 4], 1, lambda x: lax.transpose(x, (2, 0, 1)), FOLLOWED),
    "broadcast": ([E, 4], 0, lambda x: lax.broadcast_in_dim(x, (2, E, 5, 4), (1, 3)), FOLLOWED),
    "merged": ([2, E, 4], 1, lambda x: lax.reshape(x, (6, 4)), FOLLOWED),
    "merged behind": ([2, E, 4], 1, lambda x: lax.reshape(x, (2, 12)), FOLLOWED),
    "merged in another order": (
        [2, E, 4],
        1,
        lambda x: lax.reshape_p.bind(x, new_sizes=(12, 2), dimensions=(1, 2, 0), sharding=None),
        FOLLOWED,
    ),
    "others reversed": ([E, 4], 0, lambda x: lax.rev(x, (1,)), FOLLOWED),
    "reversed": ([E, 4], 0, lambda x: lax.rev(x, (0,)), CUT),
    "others sliced": ([2, E, 4], 1, lambda x: x[1:, :, 1:3], FOLLOWED),
    "sliced": ([4, E], 1, lambda x: x[:, 1:], CUT),
    "every second": ([4, E], 1, lambda x: lax.slice(x, (0, 0), (4, 3), (1, 2)), CUT),
    "others sliced at a number": (
        [E, 4],
        0,
        lambda x: lax.dynamic_slice(x, (0, x.shape[1] // 2), (E, 2)),
        FOLLOWED,
    ),
    "sliced at a number": ([E, 4], 0, lambda x: lax.dynamic_slice(x, (1, 0), (2, 4)), CUT),
    "sliced beyond the end": ([E, 4], 0, lambda x: lax.dynamic_slice(x, (2, 0), (2, 4)), CUT),
    "sliced behind the end": ([E, 4], 0, lambda x: lax.dynamic_slice(x, (7, 0), (2, 4)), CUT),
    "padded": (
        [2, E, 4],
        1,
        lambda x: lax.pad(x, 0.0, ((1, 0, 1), (0, 0, 0), (0, 2, 0))),
        FOLLOWED,
    ),
    "edges of examples": ([E, 4], 0, lambda x: lax.pad(x, 0.0, ((1, 0, 0), (0, 0, 0))), MIXED),
    "gaps between examples": ([E, 4], 0, lambda x: lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0))), MIXED),
    "fewer examples": ([E, 4], 0, lambda x: lax.pad(x, 0.0, ((-1, 0, 0), (0, 0, 0))), MIXED),
    "others repeated": ([E, 4], 0, lambda x: jnp.tile(x, (1, 2)), FOLLOWED),
    "repeated": ([2, E], 1, lambda x: jnp.tile(x, (1, 2)), FOLLOWED),
    "each repeated": ([2, E], 1, lambda x: jnp.repeat(x, 2, 1), FOLLOWED),
    "others split": ([E, 5], 0, lambda x: lax.split(x, (1, 2, 2), 1), FOLLOWED),
    "split": ([4, E], 1, lambda x: lax.split(x, (1, 2), 1), CUT),
    "bits": ([E, 4], 0, lambda x: lax.bitcast_convert_type(x, np.uint8), FOLLOWED),
    "bits of the last": ([4, E], 1, lambda x: lax.bitcast_convert_type(x, np.uint8), FOLLOWED),
    "others picked": ([E, 4], 0, lambda x: x[:, np.array([2, 0])], FOLLOWED),
    "picked": ([2, E], 1, lambda x: x[:, np.array([2, 0])], CUT),
    "in another order": ([E, 4], 0, lambda x: x[np.array([2, 0, 1])], CUT),
    "in their order": ([E, 4], 0, lambda x: x[np.arange(E)], FOLLOWED),
    "each twice": ([E, 4], 0, lambda x: x[np.arange(2 * E) // 2], FOLLOWED),
    "all twice": ([E, 4], 0, lambda x: x[np.arange(2 * E) % E], FOLLOWED),
    "some twice": ([E, 4], 0, lambda x: x[np.array([0, 1, 2, 1])], MIXED),
}


@pytest.mark.parametrize("name", MOVE)
def test_moves(name):
    shape, axis, fun, wanted = MOVE[name]
    check(fun, [shape], [axis], wanted)


def batched(fun, *axes):
    return jax.vmap(fun, axes)


def grouped(images, kernels):
    """Convolve every feature with a kernel of its own."""
    return lax.conv_general_dilated(
        images,
        kernels,
        (1,),
        "VALID",
        feature_group_count=len(kernels),
        dimension_numbers=("NCH", "OIH", "NCH"),
    )


TOGETHER = {
    "joined": ([[E, 4], [E, 2]], [0, 0], lambda x, y: lax.concatenate([x, y], 1), FOLLOWED),
    "joined with a constant": (
        [[E, 4], [E, 2]],
        [0, None],
        lambda x, y: lax.concatenate([y, x], 1),
        FOLLOWED,
    ),
    "one batch behind the other": (
        [[4, E], [4, E]],
        [1, 1],
        lambda x, y: lax.concatenate([x, y], 1),
        FOLLOWED,
    ),
    "more rows than examples": (
        [[E, 4], [2, 4]],
        [0, None],
        lambda x, y: lax.concatenate([x, y], 0),
        MIXED,
    ),
    "every one with every other": ([[E, 1], [1, E]], [0, 1], lambda x, y: x + y, MIXED),
    "stacked before": ([[E, 4], [E, 4]], [0, 0], lambda x, y: jnp.stack([x, y], 0), FOLLOWED),
    "stacked between": ([[E, 4], [E, 4]], [0, 0], lambda x, y: jnp.stack([x, y], 1), FOLLOWED),
    "stacked at the examples": (
        [[4, E], [4, E]],
        [1, 1],
        lambda x, y: jnp.stack([x, y], 1),
        FOLLOWED,
    ),
    "a part replaced": (
        [[E, 4], [E, 2]],
        [0, 0],
        lambda x, y: lax.dynamic_update_slice(x, y, (0, 1)),
        FOLLOWED,
    ),
    "a part replaced by constants": (
        [[E, 4], [E, 2]],
        [0, None],
        lambda x, y: lax.dynamic_update_slice(x, y, (0, 1)),
        FOLLOWED,
    ),
    "some replaced": (
        [[E, 4], [2, 4]],
        [0, None],
        lambda x, y: lax.dynamic_update_slice(x, y, (1, 0)),
        MIXED,
    ),
    "products": ([[2, E, 4], [4, 5]], [1, None], lambda x, w: x @ w, FOLLOWED),
    "products from the left": ([[2, 4, E], [5, 4]], [2, None], lambda x, w: w @ x, FOLLOWED),
    "products of pairs": (
        [[4, E, 2], [2, E, 5]],
        [1, 1],
        lambda x, y: jnp.einsum("kbi,ibo->kbo", x, y),
        FOLLOWED,
    ),
    "products of all pairs": ([[E, 4], [E, 4]], [0, 0], lambda x, y: x @ y.T, MIXED),
    "sums of products": ([[E, 4], [E, 2]], [0, None], lambda x, y: x.T @ y, MIXED),
    "solved": (
        [[4, 4], [4, E]],
        [None, 1],
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        FOLLOWED,
    ),
    "solved from the right": (
        [[4, 4], [E, 4]],
        [None, 0],
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False),
        FOLLOWED,
    ),
    "solved along examples": (
        [[E, E], [E, 4]],
        [None, 0],
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        MIXED,
    ),
    "a matrix each": (
        [[E, 4, 4], [E, 4, 2]],
        [0, 0],
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        FOLLOWED,
    ),
    "rows of a matrix": ([[E, E]], [0], lambda a: lax.linalg.qr(a)[1], MIXED),
    "own entries": (
        [[E, 4], [E, 2]],
        [0, 0],
        batched(lambda x, y: x.at[jnp.array([1, 3])].set(y), 0, 0),
        FOLLOWED,
    ),
    "own entries behind": (
        [[4, E], [2, E]],
        [1, 1],
        batched(lambda x, y: x.at[jnp.array([1, 3])].add(y), 1, 1),
        FOLLOWED,
    ),
    "entries for all": (
        [[E, 4], [E]],
        [0, None],
        lambda x, y: x.at[:, 2].set(y),
        FOLLOWED,
    ),
    "entries of some": ([[E, 4], [2, 4]], [0, None], lambda x, y: x.at[:2].set(y), MIXED),
    "a window of some": (
        [[4, E], [2]],
        [1, None],
        lambda x, y: lax.scatter(
            x,
            jnp.array([1]),
            y,
            lax.ScatterDimensionNumbers((0,), (0,), (0,)),
        ),
        MIXED,
    ),
    "entries of one": ([[E, 4], [4]], [0, None], lambda x, y: x.at[1].set(y), MIXED),
    "entries by number": (
        [[E, 4]],
        [0],
        lambda y: jnp.zeros((E, 5)).at[np.arange(E), 2].add(y[:, 1]),
        FOLLOWED,
    ),
    "a kernel each": (
        [[E, 2, 6], [E, 2, 3]],
        [0, 0],
        lambda x, w: grouped(x.reshape(1, -1, 6), w.reshape(-1, 1, 3)),
        FOLLOWED,
    ),
    "a kernel each, examples inside": (
        [[2, E, 6], [2, E, 3]],
        [1, 1],
        lambda x, w: grouped(x.reshape(1, -1, 6), w.reshape(-1, 1, 3)),
        MIXED,
    ),
    "a kernel each, other kernels inside": (
        [[E, 2, 6], [2, E, 3]],
        [0, 1],
        lambda x, w: grouped(x.reshape(1, -1, 6), w.reshape(-1, 1, 3)),
        MIXED,
    ),
    "entries by another number": (
        [[E, 4]],
        [0],
        lambda y: jnp.zeros((E, 4)).at[np.array([1, 2, 0])].add(y),
        MIXED,
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_several_operands(name):
    shapes, axes, fun, wanted = TOGETHER[name]
    check(fun, shapes, axes, wanted)
