"""Programs of equinox and haiku."""

from __future__ import annotations

import equinox as eqx
import equinox.internal as eqxi
import haiku as hk
import jax
import numpy as np
from jax import numpy as jnp

import sawlog

from .base import M23, X3, Program, absent, case, f32, many, once
from .flax_linen import FEW, K322, ONE_WAY, X2
from .libraries import B2, W32, by_hand
from .libraries_equinox import EqxNet

# --- equinox: layers and filtered transformations ---------------------------------------------


class EqxLayer(eqx.Module):
    """One of several layers, with its activation logged."""

    kernel: jax.Array

    def __call__(self, x):
        h = x @ self.kernel
        sawlog.log("h", h)
        return h


@case("equinox", "vmap", args=(K322, X2), ways=(*FEW, "grad"))
def equinox_filter_vmap_ensemble() -> Program:
    """`eqx.filter_vmap` over the arrays of an ensemble."""

    def fun(kernels, x):
        members = eqx.filter_vmap(EqxLayer)(kernels)
        run = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))
        return run(members, x)

    def answer(kernels, x):
        h = np.einsum("i,mij->mj", x, kernels)
        return h, {"h": once(h)}

    return fun, answer


@case("equinox", "grad", "checkpoint", "scan", args=(K322, X2), ways=ONE_WAY)
def equinox_checkpointed_layers_grad() -> Program:
    """`eqx.filter_checkpoint` in a scan over layers under `eqx.filter_grad`: once each."""

    def fun(kernels, x):
        layers, static = eqx.partition(EqxLayer(kernels), eqx.is_array)

        @eqx.filter_grad
        def loss(x):
            def step(x, layer):
                return eqx.filter_checkpoint(eqx.combine(layer, static))(x), None

            return jax.lax.scan(step, x, layers)[0].sum()

        return loss(x)

    def answer(kernels, x):
        seen, gradient = [], np.ones(2, np.float32)
        for kernel in kernels:
            x = x @ kernel
            seen.append(x)
        for kernel in kernels[::-1]:
            gradient = gradient @ kernel.T
        return gradient, {"h": many(seen)}

    return fun, answer


@case("equinox", "prng", args=(X3,), ways=ONE_WAY)
def equinox_dropout() -> Program:
    """Dropout, then the same in inference mode."""

    def fun(x):
        dropout = eqx.nn.Dropout(0.5)
        sawlog.log("dropped", dropout(x, key=jax.random.key(0)))
        still = eqx.nn.inference_mode(dropout)(x)
        sawlog.log("still", still)
        return still

    def answer(x):
        kept = np.asarray(jax.random.bernoulli(jax.random.key(0), 0.5, (3,)))
        return x, {"dropped": once(np.where(kept, 2 * x, 0)), "still": once(x)}

    return fun, answer


@case("equinox", "vmap", args=(M23,), ways=ONE_WAY, rtol=1e-4)
def equinox_batch_norm() -> Program:
    """Batch norm over a mapped axis, whose state comes out with the output."""

    def fun(x):
        layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
            3, axis_name="batch", momentum=0.5, eps=0.0, mode="ema"
        )

        def one(x, state):
            h, state = layer(x, state)
            sawlog.log("normed", h)
            return h, state

        h, state = jax.vmap(one, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
        mean, _ = state.get(layer.ema_state_index)
        return h, mean

    def answer(x):
        h = (x - x.mean(0)) / np.sqrt(x.var(0))
        return (h, x.mean(0)), {"normed": once(h)}

    return fun, answer


@case("equinox", "vmap", args=(M23,), ways=ONE_WAY, rtol=1e-4)
def equinox_attention() -> Program:
    """A log in the function that attention calls for each head."""

    def fun(x):
        key = jax.random.key(0)
        attention = eqx.nn.MultiheadAttention(1, 3, key=key)
        identity = jnp.eye(3)
        where = lambda a: [
            getattr(a, f"{name}_proj").weight for name in ("query", "key", "value", "output")
        ]
        attention = eqx.tree_at(where, attention, [identity] * 4)

        def process(query, key, value):
            sawlog.log("query", query)
            return query, key, value

        return attention(x, x, x, process_heads=process)

    def answer(x):
        scores = x @ x.T / np.sqrt(np.float32(3))
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights = weights / weights.sum(1, keepdims=True)
        return weights @ x, {"query": once(x[:, None, :])}

    return fun, answer


@case("equinox", args=(X3,), ways=("spool", "tap"))
def equinox_error_if() -> Program:
    """`eqx.error_if` beside a log."""

    def fun(x):
        sawlog.log("x", x)
        x = eqx.error_if(x, jnp.any(x < 0), "negative")
        sawlog.log("checked", x)
        return x * 2

    def answer(x):
        return 2 * x, {"x": once(x), "checked": once(x)}

    return fun, answer


@case("equinox", "jit", "grad", args=lambda: (EqxNet(jnp.asarray(W32), jnp.asarray(B2)), M23),
      ways=("spool", "tap"), vmap=False)  # fmt: skip
def equinox_training_step() -> Program:
    """`eqx.filter_jit` around `eqx.filter_value_and_grad`, with a model of arrays."""

    @eqx.filter_jit
    def step(model, x):
        loss, grads = eqx.filter_value_and_grad(lambda m, x: m(x))(model, x)
        sawlog.log("loss", loss)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.5 * g, grads)).bias

    def answer(model, x):
        h, loss = by_hand(x)
        return B2 - 0.5 * np.sum(2 * h, axis=0), {"net/h": once(h), "loss": once(loss)}

    return step, answer


# --- equinox: its own loops -------------------------------------------------------------------


def powers(kind, x, count):
    """x ** (count + 1), with every factor logged; lanes may differ in `count`."""

    def body(state):
        i, value = state
        sawlog.log("value", value, step=i)
        return i + 1, value * x

    init = (jnp.int32(0), x)
    return eqxi.while_loop(lambda s: s[0] < count, body, init, max_steps=5, kind=kind)[1]


def powers_by_hand(x, count):
    """The values that are logged, and the result."""
    seen = [np.float32(x) ** (i + 1) for i in range(count)]
    return np.float32(x) ** (count + 1), seen


XS, COUNTS = f32(2.0, 3.0), np.array([1, 3], np.int32)


def of_lanes(by_lane):
    """Entries and masks of lanes that log different numbers of values."""
    rows = max(map(len, by_lane))
    values = [np.array([lane[i] if i < len(lane) else 0 for lane in by_lane]) for i in range(rows)]
    mask = [np.array([i < len(lane) for lane in by_lane]) for i in range(rows)]
    return [np.float32(v) for v in values], mask


def lanes_answer(xs, counts, gradient):
    """The answer for `powers` of each lane, or of its gradient."""
    found = [powers_by_hand(x, n) for x, n in zip(xs, counts, strict=True)]
    values, mask = of_lanes([seen for _, seen in found])
    steps = [np.where(m, i, 0).astype(np.int32) for i, m in enumerate(mask)]
    out = np.array([y for y, _ in found], np.float32)
    if gradient:
        out = np.float32((counts + 1) * xs**counts)
    return out, {"value": many(values, mask=mask, step=steps)}


@case("equinox", "while", "vmap", args=(XS, COUNTS), ways=("plain", "tap"))
def equinox_while_loop_lanes() -> Program:
    """The loop of equinox under vmap: only lanes that are still running."""

    def fun(xs, counts):
        return jax.vmap(lambda x, n: powers("lax", x, n))(xs, counts)

    return fun, lambda xs, counts: lanes_answer(xs, counts, gradient=False)


@case("equinox", "while", "vmap", "grad", args=(XS, COUNTS), ways=("tap",))
def equinox_checkpointed_loop_lanes_grad() -> Program:
    """The checkpointed loop under vmap of grad: forwards once, only lanes that are running."""

    def fun(xs, counts):
        return jax.vmap(jax.grad(lambda x, n: powers("checkpointed", x, n)))(xs, counts)

    return fun, lambda xs, counts: lanes_answer(xs, counts, gradient=True)


@case("equinox", "while", "scan", "vmap", "grad", args=(XS, COUNTS), ways=(*FEW, "spool"))
def equinox_bounded_loop_lanes_grad() -> Program:
    """The bounded loop under grad of vmap: a scan of branches that all lanes take together."""

    def fun(xs, counts):
        run = jax.vmap(lambda x, n: powers("bounded", x, n))
        return jax.grad(lambda xs: run(xs, counts).sum())(xs)

    return fun, lambda xs, counts: lanes_answer(xs, counts, gradient=True)


@case("equinox", "scan", "grad", args=(X3,), ways=("tap",))
def equinox_checkpointed_scan_grad() -> Program:
    """`eqxi.scan` of the kind "checkpointed" under grad: once an iteration."""

    def fun(xs):
        def step(total, x):
            total = total * x
            sawlog.log("total", total)
            return total, None

        return jax.grad(lambda xs: eqxi.scan(step, 1.0, xs, kind="checkpointed")[0])(xs)

    def answer(xs):
        return np.prod(xs) / xs, {"total": many(list(np.cumprod(xs)))}

    return fun, answer


# --- haiku ------------------------------------------------------------------------------------


def haiku_layer(x):
    """One layer of haiku, with its activation logged."""
    h = hk.Linear(2, name="linear")(x)
    sawlog.log("h", h)
    return h


HAIKU = {"linear": {"w": K322[0], "b": B2}}


@case("haiku", "grad", "checkpoint", args=(HAIKU, X2), ways=(*FEW, "vmap"))
def haiku_remat_grad() -> Program:
    """`hk.transform` of a network with `hk.remat`, under grad: once."""
    net = hk.without_apply_rng(hk.transform(lambda x: hk.remat(haiku_layer)(x).sum()))

    def fun(params, x):
        return jax.grad(lambda v: net.apply(params, v))(x)

    def answer(params, x):
        layer = params["linear"]
        h = x @ layer["w"] + layer["b"]
        return layer["w"] @ np.ones(2, np.float32), {"h": once(h)}

    return fun, answer


@case("haiku", "scan", "cond", args=(HAIKU, X2), ways=ONE_WAY)
def haiku_scan_and_cond() -> Program:
    """`hk.scan` around a layer, then `hk.cond`."""

    def network(x):
        layer = hk.Linear(2, name="linear")

        def step(x, _):
            x = layer(x)
            sawlog.log("h", x)
            return x, None

        x, _ = hk.scan(step, x, jnp.arange(2))

        def other(x):
            sawlog.log("other", x)
            return -x

        return hk.cond(jnp.bool_(x[0] == x[0]), layer, other, x)

    net = hk.without_apply_rng(hk.transform(network))

    def fun(params, x):
        return net.apply(params, x)

    def answer(params, x):
        layer, seen = params["linear"], []
        for _ in range(2):
            x = x @ layer["w"] + layer["b"]
            seen.append(x)
        return x @ layer["w"] + layer["b"], {"h": many(seen), "other": absent(x)}

    return fun, answer


@case("haiku", "vmap", args=(HAIKU, K322[1]), ways=ONE_WAY)
def haiku_vmap_with_state() -> Program:
    """`hk.vmap` of a layer, in a network that counts its calls."""

    def network(x):
        calls = hk.get_state("calls", (), jnp.int32, init=jnp.zeros)
        sawlog.log("calls", calls)
        hk.set_state("calls", calls + 1)
        return hk.vmap(haiku_layer, split_rng=False)(x)

    net = hk.without_apply_rng(hk.transform_with_state(network))

    def fun(params, x):
        out, state = net.apply(params, {"~": {"calls": jnp.int32(4)}}, x)
        return out, state["~"]["calls"]

    def answer(params, x):
        h = x @ params["linear"]["w"] + params["linear"]["b"]
        return (h, np.int32(5)), {"h": once(h), "calls": once(np.int32(4))}

    return fun, answer
