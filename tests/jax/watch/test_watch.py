"""`sawlog.jax.watch` against numbers computed by hand, in every place where a function can be."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.errors import ArgumentError, UnmatchedNameWarning

X = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 2.0]], np.float32)
PARAMS = {
    "first": {
        "kernel": np.array([[1.0, -1.0], [2.0, -2.0], [3.0, 0.5]], np.float32),
        "bias": np.array([0.5, -9.0], np.float32),
    },
    "last": {"kernel": np.array([[2.0], [1.0]], np.float32)},
}
RATE = 0.1

#: The search for NaN takes most of the time to compile; `test_nonfinite.py` is about it.
watch = functools.partial(sawlog.jax.watch, nonfinite=False)


def loss(params: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ params["first"]["kernel"] + params["first"]["bias"])
    return jnp.sum((h @ params["last"]["kernel"]) ** 2)


def step(params: Any, x: Any) -> Any:
    gradient = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradient)


def by_hand() -> dict[str, float]:
    """The norms and the share of dead units, by numpy."""
    before = X @ PARAMS["first"]["kernel"] + PARAMS["first"]["bias"]
    h = np.maximum(before, 0)
    out = h @ PARAMS["last"]["kernel"]
    d_out = 2 * out
    d_before = (d_out @ PARAMS["last"]["kernel"].T) * (before > 0)
    gradients = {
        "first/kernel": X.T @ d_before,
        "first/bias": d_before.sum(0),
        "last/kernel": h.T @ d_out,
    }
    values = {
        "activation/first": before,
        "activation/last": out,
        "cotangent/first": d_before,
        "cotangent/last": d_out,
        **{f"gradient/{name}": g for name, g in gradients.items()},
        **{f"update/{name}": RATE * g for name, g in gradients.items()},
    }
    norms = {
        name: float(np.sqrt((value.astype(float) ** 2).sum())) for name, value in values.items()
    }
    return {**norms, "dead/first": float((h == 0).all(0).mean())}


FORWARD = {"activation/first", "activation/last", "dead/first"}
BACKWARD = {name for name in by_hand() if name.startswith(("cotangent", "gradient"))}
ALL = set(by_hand())

WAYS = {
    "the loss": (watch(loss, PARAMS), FORWARD),
    "jit": (jax.jit(watch(jax.jit(loss), PARAMS)), FORWARD),
    "grad around it": (jax.grad(watch(loss, PARAMS)), FORWARD | BACKWARD),
    "grad of jit": (jax.grad(jax.jit(watch(jax.jit(loss)))), FORWARD | BACKWARD),
    "remat": (jax.grad(watch(jax.checkpoint(loss))), FORWARD | BACKWARD),
    "grad of remat of it": (jax.grad(jax.checkpoint(watch(loss))), FORWARD | BACKWARD),
    "grad inside": (watch(jax.value_and_grad(loss)), FORWARD | BACKWARD),
    "vjp inside": (
        watch(lambda p, x: jax.vjp(lambda p: loss(p, x), p)[1](jnp.float32(1))),
        FORWARD | BACKWARD,
    ),
    "grad of remat inside": (watch(jax.grad(jax.checkpoint(loss))), FORWARD | BACKWARD),
    "a step": (watch(step), ALL),
    "a jitted step": (watch(jax.jit(step), PARAMS), ALL),
    "a step by name": (lambda p, x: watch(step, lambda params, x: params)(x=x, params=p), ALL),
    "in a branch": (lambda p, x: lax.cond(x[0, 0] > 0, watch(step), lambda p, x: p, p, x), ALL),
}


@pytest.mark.parametrize("way", WAYS)
def test_numbers(way: str) -> None:
    fun, names = WAYS[way]
    _, logs = sawlog.spool(fun)(PARAMS, X)
    expected = by_hand()
    assert set(logs) == names
    for name in names:
        np.testing.assert_allclose(logs[name], expected[name], rtol=1e-5, err_msg=name)


def test_nothing_changes_without_a_transformation() -> None:
    plain = jax.jit(step).lower(PARAMS, X).as_text()
    assert jax.jit(watch(step)).lower(PARAMS, X).as_text() == plain


def test_outputs_are_those_of_the_function() -> None:
    got, _ = sawlog.spool(watch(step))(PARAMS, X)
    jax.tree.map(np.testing.assert_array_equal, got, jax.jit(step)(PARAMS, X))


@pytest.mark.parametrize("around", [True, False])
def test_in_a_scan(around: bool) -> None:
    """Around a loop over steps, and inside it: entries of all iterations."""
    xs = np.stack([X, 2 * X])

    def body(step: Any) -> Any:
        return lambda params, xs: lax.scan(lambda p, x: (step(p, x), None), params, xs)[0]

    fun = watch(body(step)) if around else body(watch(step))
    _, logs = sawlog.spool(fun)(PARAMS, xs)
    assert set(logs) == ALL
    first = by_hand()
    second, _ = sawlog.spool(watch(step))(step(PARAMS, X), 2 * X)
    moved = jax.tree.map(lambda a, b: np.linalg.norm(a - b), second, PARAMS)
    for name in ALL:
        if around and name.startswith("update/"):  # of the whole loop
            _, layer, leaf = name.split("/")
            np.testing.assert_allclose(logs[name], moved[layer][leaf], rtol=1e-5)
        else:
            assert logs[name].shape == (2,)
            np.testing.assert_allclose(logs[name][0], first[name], rtol=1e-5, err_msg=name)


def test_layers_in_a_scan() -> None:
    """Stacked parameters: one entry for each layer, backward ones last layer first."""
    stack = {"w": np.array([[[2.0]], [[3.0]], [[4.0]]], np.float32)}

    def model(params: Any, x: Any) -> Any:
        return lax.scan(jax.checkpoint(lambda h, p: (h @ p["w"], None)), x, params)[0].sum()

    _, logs = sawlog.spool(jax.grad(watch(model)))(stack, jnp.ones((1, 1)))
    _, inside = sawlog.spool(watch(jax.grad(model)))(stack, jnp.ones((1, 1)))
    for found in (logs, inside):
        np.testing.assert_allclose(found["activation/w"], [2, 6, 24])
        np.testing.assert_allclose(found["cotangent/w"], [1, 4, 12])
        np.testing.assert_allclose(found["gradient/w"], np.sqrt(12**2 + 8**2 + 6**2), rtol=1e-6)


def test_layer_norm_and_recurrence() -> None:
    """A layer's output is the last one; a layer that is applied twice has two."""

    def norm(params: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True)) * params["scale"]
        return centred * factor + params["bias"]

    def model(params: Any, x: Any) -> Any:
        h = norm(params["norm"], x)
        for _ in range(2):
            h = jnp.tanh(h @ params["cell"]["w"] + params["cell"]["b"])
        return h

    params = {
        "norm": {"scale": np.float32([1, 2, 3]), "bias": np.float32([1, 0, 0])},
        "cell": {"w": np.eye(3, dtype=np.float32), "b": np.float32([0, 1, 0])},
    }
    centred = X - X.mean(-1, keepdims=True)
    h = centred / centred.std(-1, keepdims=True) * [1, 2, 3] + [1, 0, 0]
    bias = params["cell"]["b"]
    first = h + bias
    second = np.tanh(first) + bias
    _, logs = sawlog.spool(watch(model))(params, X)
    assert set(logs) == {"activation/norm", "activation/cell"}
    np.testing.assert_allclose(logs["activation/norm"], np.linalg.norm(h), rtol=1e-5)
    norms = [np.linalg.norm(first), np.linalg.norm(second)]
    np.testing.assert_allclose(logs["activation/cell"], norms, rtol=1e-5)


def test_tangents_are_no_activations() -> None:
    """A derivative of a gradient computes tangents with the same parameters."""

    def product(params: Any, x: Any) -> Any:
        return jax.jvp(lambda p: jax.grad(loss)(p, x), (params,), (params,))

    _, logs = sawlog.spool(watch(product))(PARAMS, X)
    assert not [name for name in logs if not name.startswith("gradient/")]


def test_lanes() -> None:
    """Under vmap each lane has norms of its own."""
    scale = jnp.array([1.0, 2.0])
    many = jax.tree.map(lambda p: scale.reshape(-1, *[1] * p.ndim) * p, PARAMS)
    _, logs = sawlog.spool(jax.vmap(jax.grad(watch(loss)), (0, None)))(many, X)
    assert set(logs) == FORWARD | BACKWARD
    for name in ("activation/first", "gradient/last/kernel"):
        assert logs[name].shape == (2,)
        np.testing.assert_allclose(logs[name][0], by_hand()[name], rtol=1e-5)


def test_examples_of_a_vmap_inside_of_the_derivative() -> None:
    """A gradient that flows back through a function that is mapped has a norm for each lane."""

    def of_all(params: Any) -> Any:
        return jnp.sum(jax.vmap(lambda row: watch(loss)(params, row[None]))(X))

    _, logs = sawlog.spool(jax.grad(of_all))(PARAMS)
    before = X @ PARAMS["first"]["kernel"] + PARAMS["first"]["bias"]
    out = 2 * np.maximum(before, 0) @ PARAMS["last"]["kernel"]
    kernel = out @ PARAMS["last"]["kernel"].T * (before > 0)
    np.testing.assert_allclose(logs["cotangent/last"], np.linalg.norm(out, axis=1), rtol=1e-5)
    np.testing.assert_allclose(logs["cotangent/first"], np.linalg.norm(kernel, axis=1), rtol=1e-5)


def test_logs_of_the_function_stay() -> None:
    def logging(params: Any, x: Any) -> Any:
        sawlog.log({"x": x[0, 0]})
        return loss(params, x)

    _, logs = sawlog.spool(watch(jax.value_and_grad(logging)))(PARAMS, X)
    assert set(logs) == FORWARD | BACKWARD | {"x"}
    assert logs["x"].shape == ()
    _, only = sawlog.spool(watch(logging), tags="watch")(PARAMS, X)
    assert set(only) == FORWARD


def test_tap_and_prefix() -> None:
    seen: dict[str, Any] = {}
    watched = watch(step, prefix="w/", dead=False)
    jax.block_until_ready(sawlog.tap(watched, seen.update)(PARAMS, X))
    jax.effects_barrier()
    assert set(seen) == {f"w/{name}" for name in ALL - {"dead/first"}}


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("activations", {"activation/first", "activation/last"}),
        ("gradients", BACKWARD),
        ("updates", {name for name in ALL if name.startswith("update")}),
        ("dead", {"dead/first"}),
    ],
)
def test_options(option: str, names: set[str]) -> None:
    logs = jax.eval_shape(sawlog.spool(watch(step, **{option: False})), PARAMS, X)[1]
    assert set(logs) == ALL - names


# -- updates ---------------------------------------------------------------------------------------


def test_update_of_an_optimizer() -> None:
    """A state with the parameters and two moments like them: a function says which they are."""
    optimizer = optax.adamw(0.1)
    state = {"params": PARAMS, "optimizer": optimizer.init(PARAMS)}

    def train(state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state["params"], x)
        change, inner = optimizer.update(gradient, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], change), "optimizer": inner}, value

    (new, _), logs = sawlog.spool(watch(train, lambda state, x: state["params"]))(state, X)
    assert set(logs) == ALL
    for layer, leaves in PARAMS.items():
        for leaf, old in leaves.items():
            moved = np.linalg.norm(new["params"][layer][leaf] - old)
            np.testing.assert_allclose(logs[f"update/{layer}/{leaf}"], moved, rtol=1e-5)
    with pytest.raises(ArgumentError, match=r"3 parts .*optimizer/0/mu.*Hint: say which"):
        sawlog.spool(watch(train, PARAMS))(state, X)


def test_a_parameter_that_is_not_trained_moves_by_zero() -> None:
    def train(params: Any, x: Any) -> Any:
        new = step(params, x)
        return {**new, "last": params["last"]}

    _, logs = sawlog.spool(watch(train))(PARAMS, X)
    assert logs["update/last/kernel"] == 0
    np.testing.assert_allclose(logs["update/first/bias"], by_hand()["update/first/bias"], rtol=1e-5)


def test_a_gradient_that_depends_on_parameters_only() -> None:
    def train(params: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.sum(jax.nn.relu(x * p["a"]) * p["b"]))(params)
        return jax.tree.map(jnp.subtract, params, gradient)

    params = {"a": np.array([3.0, 4.0], np.float32), "b": np.array([1.0, 2.0], np.float32)}
    _, logs = sawlog.spool(watch(train))(params, jnp.ones(2))
    assert logs["update/a"] == np.linalg.norm(params["b"])
    assert logs["update/b"] == 5


def test_gradients_are_no_updates() -> None:
    """A gradient has the structure of the parameters; a penalty adds a share of them to it."""

    def penalised(params: Any, x: Any) -> Any:
        return loss(params, x) + sum(jnp.sum(p**2) for p in jax.tree.leaves(params))

    _, logs = sawlog.spool(watch(jax.grad(penalised)))(PARAMS, X)
    assert not [name for name in logs if name.startswith("update")]


def test_gradients_of_other_parameters_are_not_mixed_up() -> None:
    """Two networks of one structure: only that of the watched one is logged."""
    other = jax.tree.map(lambda p: 5 * p, PARAMS)

    def both(params: Any, other: Any, x: Any) -> Any:
        return jax.grad(loss)(other, x), jax.grad(loss)(params, x)

    _, logs = sawlog.spool(watch(jax.jit(both), lambda params, other, x: params))(PARAMS, other, X)
    assert set(logs) == FORWARD | BACKWARD
    for name in BACKWARD:
        np.testing.assert_allclose(logs[name], by_hand()[name], rtol=1e-5, err_msg=name)


# -- what is wrong ---------------------------------------------------------------------------------


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"No argument .* like `params`"):
        sawlog.spool(watch(loss, {"other": X}))(PARAMS, X)
    with pytest.raises(ArgumentError, match="found no parameters"):
        sawlog.spool(watch(lambda i: i + 1))(3)
    with pytest.raises(ArgumentError, match="dead"):
        watch(loss, dead="yes")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="function"):
        watch(PARAMS)  # type: ignore[arg-type]
    other = {"last": {"kernel": PARAMS["last"]["kernel"] * 2}}
    with pytest.raises(ArgumentError, match=r"not among the arguments .*: last/kernel\. Hint"):
        sawlog.spool(watch(loss, lambda params, x: {**params, **other}))(PARAMS, X)


def test_norms_that_are_infinite_and_a_relu_written_the_other_way() -> None:
    def model(params: Any, x: Any) -> Any:
        h = x @ params["w"]
        return jnp.where(jnp.less(0, h), h, 0)

    x = np.array([[1.0], [np.inf]], np.float32)
    _, logs = sawlog.spool(watch(model))({"w": np.array([[1.0, -1.0]], np.float32)}, x)
    assert logs["activation/w"] == np.inf
    assert logs["dead/w"] == 0.5


def _half(params: Any, x: Any) -> Any:
    return step(params, x)["first"]


def _subtracted(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda p, g: g - p, params, jax.grad(loss)(params, x))


@pytest.mark.parametrize("function", [_half, _subtracted])
def test_what_is_no_update(function: Any) -> None:
    """Some of the parameters only, or a difference that a parameter is subtracted from."""
    _, logs = sawlog.spool(watch(function, activations=False, dead=False))(PARAMS, X)
    assert not [name for name in logs if name.startswith("update/")]


def test_what_is_no_unit_and_no_layer() -> None:
    """A maximum over the batch has no units that are known; a sum of a parameter is a number."""

    def model(params: Any, x: Any) -> Any:
        return jax.nn.relu((x @ params["w"]).max(0)) / jnp.sum(params["w"])

    kernel = PARAMS["first"]["kernel"]
    _, logs = sawlog.spool(watch(model))({"w": kernel}, X)
    assert set(logs) == {"activation/w"}
    np.testing.assert_allclose(logs["activation/w"], np.linalg.norm(X @ kernel), rtol=1e-6)


@pytest.mark.parametrize("jitted", [False, True])
def test_parameters_that_are_not_used(jitted: bool) -> None:
    def closed_over(params: Any, x: Any) -> Any:
        return loss(PARAMS, x), params

    function = jax.jit(closed_over) if jitted else closed_over
    with pytest.warns(UnmatchedNameWarning, match="'closed_over' computes nothing from its param"):
        (_, same), logs = sawlog.spool(watch(function, PARAMS))(PARAMS, X)
    assert not logs
    np.testing.assert_array_equal(same["last"]["kernel"], PARAMS["last"]["kernel"])
