"""Random dimension numbers of products and convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import sawlog.jax
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients
from tests.thorough import seeded_examples

EXAMPLES = 2


def per_example(y, dim):
    flat = jnp.moveaxis(y, dim, 0).reshape(EXAMPLES, -1)
    return (jnp.sin(flat) * jnp.arange(1, 1 + flat.shape[1])).sum(-1)


@st.composite
def products(draw):
    """Draw kinds of dimensions and their order in both operands, and which operand is first."""
    kinds = draw(st.lists(st.sampled_from("bcfo"), min_size=1, max_size=4))
    x = ["e", *(f"{kind}{i}" for i, kind in enumerate(kinds) if kind in "bcf")]
    w = [f"{kind}{i}" for i, kind in enumerate(kinds) if kind in "bco"]
    sizes = {name: draw(st.integers(1, 3)) for name in {*x, *w}} | {"e": EXAMPLES}
    return draw(st.permutations(x)), draw(st.permutations(w)), sizes, draw(st.booleans())


@seeded_examples(5, 200)
@given(products())
def test_any_product(drawn):
    x, w, sizes, first = drawn
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batch, weight = (jnp.asarray(rng.normal(size=[sizes[n] for n in each])) for each in (x, w))
        shared = [n for n in x if n in w]
        pairs = {kind: [(x.index(n), w.index(n)) for n in shared if n[0] == kind] for kind in "bc"}
        numbers = tuple(
            tuple([p[0 if side else 1] for p in pairs[kind]] for side in (first, not first))
            for kind in "cb"
        )
        free = [n for n in x if n not in shared], [n for n in w if n not in shared]
        order = [x[p[0]] for p in pairs["b"]] + [*free[not first], *free[first]]

        def loss(weight, batch):
            operands = (batch, weight) if first else (weight, batch)
            return per_example(lax.dot_general(*operands, numbers), order.index("e"))

        capture = sawlog.jax.capture(
            lambda p, b: loss(p["w"], b), batch_axes=x.index("e"), what=("grad", "pairs")
        )
        got = capture({"w": weight}, batch)
        one = jax.grad(lambda w, i: loss(w, batch)[i])
        assert_equal(got.grads, {"w": jnp.stack([one(weight, i) for i in range(EXAMPLES)])})
        assert_pairs(got, capture.plan({"w": weight}, batch), None, None)


@st.composite
def convolutions(draw):
    """Draw the layout, the geometry and the groups of a convolution."""
    spatial = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2]))
    layouts = tuple(tuple(draw(st.permutations(range(spatial + 2)))) for _ in range(3))
    several = st.lists(st.integers(1, 2), min_size=spatial, max_size=spatial)
    pads = st.lists(
        st.tuples(st.integers(-1, 2), st.integers(0, 2)), min_size=spatial, max_size=spatial
    )
    return spatial, groups, layouts, draw(several), draw(several), draw(several), draw(pads)


@seeded_examples(4, 100)
@given(convolutions())
def test_any_convolution(drawn):
    spatial, groups, layouts, strides, wide, spread, padding = drawn
    rng = np.random.default_rng(0)
    numbers = lax.ConvDimensionNumbers(*layouts)
    image = _placed([EXAMPLES, 2 * groups, *[5] * spatial], layouts[0])
    kernel = _placed([3 * groups, 2, *[2] * spatial], layouts[1])
    with jax.enable_x64(True):
        batch, weight = (jnp.asarray(rng.normal(size=shape)) for shape in (image, kernel))

        def loss(weight, batch):
            y = lax.conv_general_dilated(
                batch, weight, strides, padding, wide, spread, numbers, groups
            )
            return per_example(y, layouts[2][0])

        capture = sawlog.jax.capture(
            lambda p, b: loss(p["w"], b), batch_axes=layouts[0][0], what=("grad", "pairs")
        )
        got = capture({"w": weight}, batch)
        one = jax.grad(lambda w, i: loss(w, batch)[i])
        assert_equal(got.grads, {"w": jnp.stack([one(weight, i) for i in range(EXAMPLES)])})
        assert_pairs(got, capture.plan({"w": weight}, batch), None, None)


def _placed(sizes, layout):
    shape = [0] * len(sizes)
    for size, dim in zip(sizes, layout, strict=True):
        shape[dim] = size
    return shape


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_a_bias_is_the_last_input_whichever_side_is_projected(sides):
    def loss(p, x):
        return jnp.tanh(x @ p["w"] + p["b"]).sum(-1) ** 2

    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4), "b": (4,)}
    with jax.enable_x64(True):
        params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
        batch = jnp.asarray(rng.normal(size=(5, 3)))
        (block,) = sawlog.jax.capture(loss, projection={}).plan(params, batch).blocks
        matrices = [rng.normal(size=(n, 2)) for n in block.shape]
        pair = tuple(m if side else None for m, side in zip(matrices, sides, strict=True))
        small = sawlog.jax.capture(loss, projection={block.name: pair})
        found, own = jax.jit(lambda p, x: (gradients(loss, p, x), small(p, x).grads))(params, batch)
    rows = np.concatenate([found["w"], found["b"][:, None]], 1)  # inputs, and the constant 1
    rows = rows if block.inputs == "left" else rows.swapaxes(1, 2)
    assert rows.shape[1:] == block.shape
    left, right = (np.eye(n) if m is None else m for n, m in zip(block.shape, pair, strict=True))
    np.testing.assert_allclose(own[block.name], left.T @ rows @ right, atol=1e-9)
