"""Fragments of models: programs inside, and what may happen to examples."""

import jax
import jax.numpy as jnp
from jax import lax

from .cases_base import _NHWC, case, conv, total


@case({"w": (3, 4), "b": (4,)})
def jitted(p, x):
    inner = jax.jit(lambda w, b, x: jax.jit(lambda y: jnp.tanh(y + b))(x @ w))
    return total(inner(p["w"], p["b"], x))


@case({"w": (3, 3), "b": (3,)})
def checkpointed(p, x):
    layer = jax.checkpoint(
        lambda x: jnp.sin(x @ p["w"] + p["b"]), policy=jax.checkpoint_policies.dots_saveable
    )
    return total(layer(layer(x)))


@case({"w": (2, 3, 3), "b": (2, 3), "s": (2, 3)}, (4, 3))
def scanned_layers(p, x):
    def body(x, layer):
        return x + jnp.tanh(x @ layer["w"] + layer["b"]) * layer["s"], None

    return total(lax.scan(jax.checkpoint(body), x, p)[0])


@case({"w": (2, 2, 3, 3)})
def nested_scans(p, x):
    def outer(x, layers):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)

    return total(lax.scan(outer, x, p["w"])[0])


@case({"w": (3, 4), "u": (4, 4), "b": (4,), "h": (4,)}, (5, 3))
def recurrent(p, x):
    def body(h, x):
        h = jnp.tanh(x @ p["w"] + h @ p["u"] + p["b"])
        return h, h

    h = jnp.broadcast_to(p["h"], (x.shape[0], 4))
    h, hs = lax.scan(body, h, jnp.swapaxes(x, 0, 1), reverse=True)
    return total(jnp.swapaxes(hs, 0, 1)) + h.sum(-1)


@case({"w": (2, 3, 3)})
def carried_constant(p, x):
    def body(carry, w):
        x, size = carry
        return (jnp.tanh(x @ w) * size, size + (w**2).sum()), (w[0], x)

    (x, size), (rows, xs) = lax.scan(body, (x, jnp.zeros(())), p["w"], unroll=2)
    return total(x) * size + total(xs.swapaxes(0, 1)) + (x @ rows.T).sum(-1)


@case({"w": (3, 3)})
def counted_loop(p, x):
    return total(lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ p["w"]) + i, x))


@case({"w": (3, 3), "s": (3,)})
def branches(p, x):
    y = lax.cond(p["s"].sum() > 0, lambda x: x @ p["w"], lambda x: x * p["s"], x)
    return total(lax.switch(1, [lambda y: y, lambda y: y * p["s"], lambda y: y @ p["w"]], y))


@case({"w": (3, 4)})
def own_derivative(p, x):
    @jax.custom_vjp
    def double(y):
        return 2 * y

    double.defvjp(lambda y: (2 * y, None), lambda _, g: (3 * g,))
    return total(double(jax.nn.silu(x @ p["w"])))


@case({"w": (3, 4)}, slow=True)
def own_derivative_of_a_parameter(p, x):
    @jax.custom_vjp
    def product(w, x):
        return x @ w

    product.defvjp(lambda w, x: (x @ w, (w, x)), lambda r, g: (r[1].T @ g, g @ r[0].T))
    return total(product(p["w"], x))


@case({"w": (3, 4), "b": (4,)})
def root(p, x):
    """The root of y**3 + y - a, with the derivative of an implicit function."""
    a = jnp.tanh(x @ p["w"] + p["b"])

    def solve(f, y):
        return lax.fori_loop(0, 30, lambda _, y: y - f(y) / (3 * y**2 + 1), y)

    def solve_tangent(g, t):
        return t / g(jnp.ones_like(t))

    return total(lax.custom_root(lambda y: y**3 + y - a, a, solve, solve_tangent))


@case({"w": (3, 4)})
def traced_call(p, x):
    """A call of what `jax.jit` has traced."""
    layer = jax.jit(lambda w, x: jnp.tanh(x @ w))
    if "__call__" in vars(jax.stages.Traced):
        return total(layer.trace(p["w"], x)(p["w"], x))
    return total(layer(p["w"], x))


@case({"w": (3, 3), "u": (3, 3)}, slow=True)
def fixed_point(p, x):
    """An implicit layer: a loop of unknown length, and its derivative by the implicit function."""

    def step(p, x, z):
        return jnp.tanh(0.1 * z @ p["w"] + x @ p["u"])

    @jax.custom_vjp
    def solve(p, x):
        once = lambda carry: (step(p, x, carry[0]), carry[1] + 1)
        return lax.while_loop(lambda carry: carry[1] < 40, once, (x, 0))[0]

    def forward(p, x):
        z = solve(p, x)
        return z, (p, x, z)

    def backward(kept, cotangent):
        p, x, z = kept
        pull = jax.vjp(lambda z: step(p, x, z), z)[1]
        adjoint = lax.fori_loop(0, 40, lambda _, u: cotangent + pull(u)[0], cotangent)
        return jax.vjp(lambda p, x: step(p, x, z), p, x)[1](adjoint)

    solve.defvjp(forward, backward)
    return total(solve(p, x))


# -- what may happen to examples --------------------------------------------------------------


@case({"w": (3, 4)}, (5, 3))
def along_tokens(p, x):
    y = jnp.cumsum(x @ p["w"], axis=1)
    y = lax.associative_scan(jnp.add, y, axis=1) + jnp.flip(y, 1) + jnp.roll(y, 2, 1)
    return total(jnp.sort(y, axis=1) + lax.cummax(y, axis=2))


@case({"w": (3, 6)})
def top_values(p, x):
    values, places = lax.top_k(x @ p["w"], 2)
    return total(values * places) + total(jnp.median(x @ p["w"], axis=-1)[:, None])


@case({"k": (2, 2, 1, 3)}, (5, 4, 1))
def pooled(p, x):
    y = conv(x, p["k"], _NHWC)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "VALID")
    return total(lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"))


@case({"w": (3, 4)}, (4, 3))
def matrices(p, x):
    y = x @ p["w"]
    square = y @ jnp.swapaxes(y, 1, 2) + 2 * jnp.eye(4)
    return total(jnp.linalg.cholesky(square) + jnp.linalg.solve(square, y))


@case({"w": (3, 4)}, (4, 3))
def frequencies(p, x):
    return total(jnp.abs(jnp.fft.rfft(x @ p["w"], axis=1)))


@case({"w": (3, 4), "v": (2,)}, (5, 3))
def updated_places(p, x):
    y = (x @ p["w"]).at[:, 1].set(0.5).at[:, 2, 0].add(p["v"][0])
    y = lax.dynamic_update_slice(y, y[:, :2] * p["v"][1], (0, 3, 0))
    return total(lax.dynamic_slice_in_dim(y, 1, 3, axis=1))


@case({"w": (3, 4)}, (5, 3))
def indexed_by_example(p, x):
    y, rows = x @ p["w"], jnp.arange(x.shape[0])
    last = y[rows, jnp.abs(x[:, 0, 0]).astype(int) % 5]
    grid = y[rows[:, None], jnp.arange(5)[None]]
    return total(last) + total(grid) + total(jnp.zeros_like(last).at[rows, 1].set(last[:, 0]))


@case({"w": (3, 4)}, (5, 3))
def masked_mean(p, x):
    mask = jnp.arange(5) < 2 + (x[:, 0, :1] > 0)
    y = jnp.where(mask[..., None], x @ p["w"], 0.0)
    return total(y.sum(1) / mask.sum(1, keepdims=True))


@case({"w": (3, 4)})
def repeated_batch(p, x):
    y = jnp.concatenate([x, -x, 2 * x]) @ p["w"]
    first, rest = y[: x.shape[0]], y[x.shape[0] :]
    return total(first) + total(jnp.split(rest.reshape(2, -1, 4).swapaxes(0, 1), 2, axis=1)[1])


@case({"w": (3, 4), "v": (4, 2)})
def stopped(p, x):
    y = x @ p["w"]
    return total(lax.stop_gradient(y) @ p["v"]) + total(y * (y > 0) + jnp.argmax(y, -1)[:, None])


@case({"w": (3, 2), "r": (4, 3)})
def regularised(p, x):
    return total(x @ p["w"]) + 0.1 * (p["w"] ** 2).sum() + jnp.abs(p["r"]).sum()


@case({"w": (3, 4), "a": (4,)}, (2, 3))
def stacked_and_unpacked(p, x):
    first, second = jnp.moveaxis(x @ p["w"], 1, 0)
    token = jnp.broadcast_to(p["a"], first.shape)
    return total(jnp.stack([first, token, second], axis=1)) + total(jnp.stack([second, first], -1))


@case({"w": (2, 3, 3)}, (3,))
def loop_over_indices(p, x):
    return total(lax.fori_loop(0, 2, lambda i, x: jnp.tanh(x @ p["w"][i]), x))


@case({"w": (3, 3)})
def behind_a_barrier(p, x):
    y, w = lax.optimization_barrier((x @ p["w"], p["w"]))
    return total(y @ w)


@case({"w": (3, 3)})
def tangents_inside(p, x):
    return total(jax.jvp(lambda x: jnp.tanh(x @ p["w"]), (x,), (jnp.ones_like(x),))[1])


@case({"w": (3, 3)})
def gradients_inside(p, x):
    return total(jax.vmap(jax.grad(lambda x: (jnp.tanh(x @ p["w"]) ** 2).sum()))(x))


@case({"w": (3, 1)})
def interpolated(p, x):  # in newer JAX an object with a derivative of its own, as those below
    return total(
        jax.vmap(lambda x: jnp.interp(x @ p["w"], jnp.arange(5.0), jnp.arange(5.0) ** 2))(x)
    )


@case({"w": (3, 3)})
def found_in_a_table(p, x):
    return total((x @ p["w"]) * jnp.searchsorted(jnp.arange(-2.0, 2.0), x))


@case({"w": (3, 3)})
def scaled_by_powers_of_two(p, x):
    mantissa, exponent = jnp.frexp(x @ p["w"])
    return total(jnp.ldexp(mantissa, exponent) * exponent)


@case({"w": (3, 3)})
def a_kernel_for_each_example(p, x):
    return total(jax.vmap(lambda x: jnp.convolve(x @ p["w"], x[:2], mode="same"))(x))


@case({"w": (3, 3)})
def iterated_until_each_is_large(p, x):
    """A loop under `vmap` whose condition has a value for each example, and nothing to train."""
    grown = jax.vmap(
        lambda x: lax.while_loop(
            lambda c: jnp.abs(c[1]).max() < 5, lambda c: (c[0] + 1, 2 * c[1]), (0, x)
        )
    )(x)
    return total(grown[1] @ p["w"] * grown[0][:, None])


@case({"w": (3, 3)}, slow=True)
def solved_by_iteration(p, x):
    """A solver whose starting point is moved to a device together with the right-hand sides."""
    a = 0.1 * p["w"] @ p["w"].T + jnp.eye(3)
    solve = jax.scipy.sparse.linalg.cg
    return total(jax.vmap(lambda b: solve(lambda v: a @ v, b, tol=1e-12)[0])(x))


@case({"w": (3, 3), "b": (3,)})
def moved_to_a_device(p, x):
    x, w, b = jax.device_put((x, p["w"], p["b"]))
    return total(x @ w + b)


@jax.custom_vjp
def _by_table(x, w, table):
    return x * w * table


def _by_table_backward(kept, cotangent):
    x, w, table = kept
    of_w = lax.map(lambda i: table[i] * (x * cotangent).sum(0)[i], jnp.arange(3))
    return cotangent * w * table, of_w, None


_by_table.defvjp(lambda x, w, table: (x * w * table, (x, w, table)), _by_table_backward)


@case({"w": (3,)}, slow=True)
def a_constant_table(p, x):
    """JAX holds constants as arrays of numpy, and gives functions of users its own."""
    return total(_by_table(x, p["w"], jnp.array([1.0, 2.0, 3.0])))
