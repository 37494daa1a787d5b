"""Modules of flax nnx and of equinox as arguments of spool and tap."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sawlog
from sawlog.loggers import MemoryLogger

# --- nnx: a training step changes the model and the optimizer -------------------------------------


class Line(nnx.Module):
    """y = w * x."""

    def __init__(self) -> None:
        self.w = nnx.Param(jnp.float32(0))
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.w[...] * x


def step(model, optimizer, x):
    """One step towards w = 1."""
    loss, grads = nnx.value_and_grad(lambda m: (m(x) - x) ** 2)(model)
    optimizer.update(model, grads)
    sawlog.log({"loss": loss})
    return loss


def wrapped_ways(seen):
    """Ways to run a step, all of which return the loss."""
    spooled, tapped = sawlog.spool(step), sawlog.tap(step, seen.append)
    return {
        "spool": lambda *args: spooled(*args)[0],
        "nnx.jit(spool)": lambda *args: nnx.jit(spooled)(*args)[0],
        "spool(nnx.jit)": lambda *args: sawlog.spool(nnx.jit(step))(*args)[0],
        "tap": tapped,
        "nnx.jit(tap)": nnx.jit(tapped),
        "tap(nnx.jit)": sawlog.tap(nnx.jit(step), seen.append),
    }


@pytest.mark.parametrize("name", list(wrapped_ways([])))
def test_nnx_trains(name: str) -> None:
    model = Line()
    optimizer = nnx.Optimizer(model, optax.sgd(0.25), wrt=nnx.Param)
    run = wrapped_ways([])[name]
    losses = [float(run(model, optimizer, jnp.float32(1))) for _ in range(3)]
    jax.effects_barrier()
    assert losses == [1, 0.25, 0.0625]
    assert float(model.w[...]) == 0.875
    assert int(model.calls[...]) == 3
    assert int(optimizer.step[...]) == 3


# --- equinox: models with numbers and functions among their leaves --------------------------------


class Rectifier(eqx.Module):
    """A number and a function that are leaves, not static fields."""

    weight: jax.Array
    slope: float
    activation: object
    bias: bool

    def __call__(self, x):
        h = self.activation(self.weight * x) * self.slope
        if self.bias:
            h = h + 1
        sawlog.log("h", h)
        return h


def rectifier():
    """A small model."""
    return Rectifier(jnp.float32(2), 0.5, jax.nn.relu, True)


EQUINOX = {
    "spool(filter_jit)": lambda f: sawlog.spool(eqx.filter_jit(f)),
    "filter_jit(spool)": lambda f: eqx.filter_jit(sawlog.spool(f)),
    "spool": sawlog.spool,
}


@pytest.mark.parametrize("name", list(EQUINOX))
def test_equinox_python_leaves(name: str) -> None:
    out, logs = EQUINOX[name](lambda model, x: model(x))(rectifier(), jnp.float32(3))
    assert out == 4
    assert logs["h"] == 4


@pytest.mark.parametrize("name", list(EQUINOX))
def test_equinox_mlp_grad(name: str) -> None:
    def fun(model, x):
        loss, grads = eqx.filter_value_and_grad(lambda m: m(x).sum())(model)
        sawlog.log("loss", loss)
        return grads.layers[0].bias

    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    x = jnp.ones(2)
    out, logs = EQUINOX[name](fun)(model, x)
    np.testing.assert_allclose(out, fun(model, x), rtol=1e-5)
    np.testing.assert_allclose(logs["loss"], model(x).sum(), rtol=1e-5)


# --- nnx: everything that changes while training --------------------------------------------------


class Net(nnx.Module):
    """Tied weights, running statistics, random masks, a counter that appears at the first call."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.again = self.first
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        if not hasattr(self, "calls"):
            self.calls = nnx.Variable(jnp.int32(0))
        self.calls[...] += 1
        h = self.drop(self.norm(self.again(jnp.tanh(self.first(x)))))
        sawlog.log({"h": h})
        return h


def train(parts, x, *, scale):
    """One step; the modules come in a dict, and are changed in place."""
    model, optimizer, metrics = parts["model"], parts["optimizer"], parts["metrics"]
    loss, grads = nnx.value_and_grad(lambda m: scale * (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    metrics.update(values=loss)
    sawlog.log({"loss": loss}, tags="scalar")
    return loss


def fresh():
    """The same parts every time."""
    model = Net(nnx.Rngs(0))
    return {
        "model": model,
        "optimizer": nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param),
        "metrics": nnx.metrics.Average(),
    }


def trained(run):
    """The losses of three steps, and all state after them."""
    parts, x = fresh(), jax.random.normal(jax.random.key(1), (4, 3))
    losses = [run(parts, x, scale=2.0) for _ in range(3)]
    jax.effects_barrier()
    assert parts["model"].first is parts["model"].again
    return np.asarray(losses), jax.tree.leaves(nnx.state(parts, ...))


TRAINERS = {
    "spool": lambda seen: lambda *a, **k: sawlog.spool(train)(*a, **k)[0],
    "nnx.jit(spool)": lambda seen: lambda *a, **k: nnx.jit(sawlog.spool(train))(*a, **k)[0],
    "tap": lambda seen: sawlog.tap(train, seen.append),
    "nnx.jit(tap)": lambda seen: nnx.jit(sawlog.tap(train, seen.append)),
    "spool(nnx.jit)": lambda seen: lambda *a, **k: sawlog.spool(nnx.jit(train))(*a, **k)[0],
    "tap(nnx.jit)": lambda seen: sawlog.tap(nnx.jit(train), seen.append),
    "buffer": lambda seen: sawlog.tap(train, seen.append, buffer=4),
}


@functools.cache
def trained_by_nnx():
    """What training gives without sawlog."""
    return trained(nnx.jit(train))


@pytest.mark.parametrize("name", TRAINERS)
def test_nnx_state_arrives(name: str) -> None:
    losses, state = trained_by_nnx()
    assert len(set(losses.tolist())) == 3
    seen: list = []
    found, after = trained(TRAINERS[name](seen))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert len(after) == len(state)
    for one, two in zip(after, state, strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    logged = [np.ravel(logs["loss"]) for logs in seen if "loss" in logs]
    if logged:
        np.testing.assert_allclose(np.concatenate(logged), losses, rtol=1e-5)


def test_nnx_state_arrives_through_a_logger() -> None:
    losses, _ = trained_by_nnx()
    with MemoryLogger() as logger:
        state = logger.init(0)
        trained(logger.spool(train, state, argnames="loss"))
        trained(logger.tap(train, state, argnames="loss"))
        (run,) = logger.runs.values()
    np.testing.assert_allclose(np.ravel(run.logs["loss"]), np.tile(losses, 2), rtol=1e-5)


def test_nnx_is_traced_once() -> None:
    traced: list = []

    def counted(parts, x, *, scale):
        traced.append(None)
        return train(parts, x, scale=scale)

    spooled = sawlog.spool(counted)
    parts, x = fresh(), jnp.ones((4, 3))
    for _ in range(4):
        spooled(parts, x, scale=1.0)
    assert len(traced) == 2  # the first call adds a variable


# --- equinox: static leaves, state, errors --------------------------------------------------------


class Block(eqx.Module):
    """Layers whose settings are Python numbers among the leaves."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    attention: eqx.nn.MultiheadAttention
    drop: eqx.nn.Dropout

    def __init__(self, key) -> None:
        self.linear = eqx.nn.Linear(4, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, key=key)
        self.drop = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, key):
        one, two = jax.random.split(key)
        h, state = self.norm(self.linear(x), state)
        h = self.drop(self.attention(h[None], h[None], h[None], key=one)[0], key=two)
        sawlog.log({"h": h})
        return h, state


def forward(model, state, x, key):
    """A batch."""
    run = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    h, state = run(x, state, jax.random.split(key, len(x)))
    sawlog.log({"mean": h.mean()})
    return h, state


@pytest.mark.parametrize("name", list(EQUINOX))
def test_equinox_layers(name: str) -> None:
    model, state = eqx.nn.make_with_state(Block)(jax.random.key(0))
    x, key = jax.random.normal(jax.random.key(1), (3, 4)), jax.random.key(2)
    wrapped = EQUINOX[name](forward)
    for mode in (False, True, False):  # a static leaf that changes
        now = eqx.nn.inference_mode(model, value=mode)
        (h, after), logs = wrapped(now, state, x, key)
        expected, later = eqx.filter_jit(forward)(now, state, x, key)
        np.testing.assert_allclose(h, expected, rtol=1e-5)
        np.testing.assert_allclose(logs["h"], expected, rtol=1e-5)
        np.testing.assert_allclose(logs["mean"], expected.mean(), rtol=1e-5)
        for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(later), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize("name", [*EQUINOX, "tap"])
def test_equinox_modules_come_back_as_they_were(name: str) -> None:
    def step(model, x):
        sawlog.log({"x": x.sum()})
        return model, model(x, key=jax.random.key(0))

    wrapped = sawlog.tap(step, lambda logs: None) if name == "tap" else EQUINOX[name](step)
    first = model = eqx.nn.Dropout(0.5)
    for _ in range(3):
        result = wrapped(model, jnp.ones(4))
        model, _ = result if name == "tap" else result[0]
        assert model == first
        assert (type(model.p), type(model.inference)) == (float, bool)


def test_equinox_numbers_given_to_filter_jit_are_static() -> None:
    def f(x, n):
        for i in range(n):
            sawlog.log({"x": x * i})
        return x

    for wrapped in (sawlog.spool(eqx.filter_jit(f)), eqx.filter_jit(sawlog.spool(f))):
        np.testing.assert_array_equal(wrapped(jnp.float32(2), 3)[1]["x"], [0, 2, 4])


def test_equinox_lower_and_shapes() -> None:
    fun = sawlog.spool(lambda model, x: model(x))
    assert fun.eval_shape(rectifier(), jnp.float32(3))[1]["h"].shape == ()
    compiled = fun.lower(rectifier(), jnp.float32(3)).compile()
    assert compiled(rectifier(), jnp.float32(3))[1]["h"] == 4
    assert fun.trace(rectifier(), jnp.float32(3)).jaxpr is not None


@pytest.mark.parametrize("name", [*EQUINOX, "tap"])
def test_equinox_errors_are_equinox_errors(name: str) -> None:
    def f(x):
        x = eqx.error_if(x, x > 2, "too large")
        sawlog.log({"x": x})
        return x

    wrapped = sawlog.tap(f, lambda logs: None) if name == "tap" else EQUINOX[name](f)
    jax.block_until_ready(wrapped(jnp.float32(1)))
    with pytest.raises(eqx.EquinoxRuntimeError, match="too large"):
        jax.block_until_ready(wrapped(jnp.float32(3)))


# --- a function that was called without any module before -----------------------------------------


@pytest.mark.parametrize("wrap", [sawlog.spool, lambda f: sawlog.tap(f, lambda logs: None)])
def test_other_arguments_after_plain_ones(wrap) -> None:
    """Calls leave out the look at plain arguments; what comes later is still seen."""

    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.float32(0))

    def f(x):
        if isinstance(x, Counter):
            x.count[...] += 1
            x = x.count[...]
        elif isinstance(x, eqx.Module):
            x = x(jnp.float32(3))
        elif isinstance(x, str):
            x = float(x)
        sawlog.log({"x": x})
        return x

    wrapped, counter = wrap(f), Counter()
    for _ in range(2):
        for given, expected in (
            (jnp.float32(5), 5),
            (jnp.float32(6), 6),
            (rectifier(), 4),
            (eqx.tree_at(lambda m: m.bias, rectifier(), False), 3),
            ("7", 7),
            (counter, None),
            (8.0, 8),
        ):
            result = wrapped(given)
            if isinstance(result, tuple):
                out, logs = result
                assert logs["x"] == out
            else:
                out = result
            assert out == (counter.count[...] if expected is None else expected)
    assert counter.count[...] == 2


def test_equinox_errors_after_plain_calls() -> None:
    def f(x):
        if x.shape:
            x = eqx.error_if(x, x > 2, "too large")
        sawlog.log({"x": x})
        return x

    wrapped = sawlog.spool(f)
    for _ in range(3):
        assert wrapped(jnp.float32(5))[1]["x"] == 5
    for _ in range(2):
        with pytest.raises(eqx.EquinoxRuntimeError, match="too large"):
            wrapped(jnp.full(1, 3.0))
        assert wrapped(jnp.ones(1))[1]["x"] == 1
