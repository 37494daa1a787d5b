"""What cannot be separated by example is refused, with the equation and its line."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import sawlog
from sawlog.errors import ArgumentError, CaptureError

W = {"w": jnp.ones((3, 3))}
X = jnp.arange(12.0).reshape(4, 3) / 10


def output(p, x):
    return x @ p["w"]


@jax.custom_vjp
def normalised(y):
    return y


normalised.defvjp(lambda y: (y, None), lambda _, g: (g / jnp.linalg.norm(g),))


@jax.custom_vjp
def two_outputs(y, w):
    return y @ w, (y @ w).mean(), w * 2


def _two_outputs_backward(kept, cotangents):
    (y, w), (first, _, third) = kept, cotangents
    return first @ w.T, y.T @ first + 2 * third


two_outputs.defvjp(lambda y, w: (two_outputs(y, w), (y, w)), _two_outputs_backward)


def sorted_rows(x):
    order = jnp.argsort(x[:, 0])
    return order, jnp.argsort(order)


RANK = "rank of an example among the others"
MIXED = {
    "batch norm": (lambda p, x: ((y := output(p, x)) - y.mean(0)).sum(1), "reduce_sum"),
    "batch norm of the data": (lambda p, x: output(p, x / x.std(0)).sum(1), "reduce_sum"),
    "every pair": (lambda p, x: (output(p, x) @ output(p, x).T).sum(1), "dot_general"),
    "softmax over the batch": (lambda p, x: jax.nn.softmax(output(p, x), 0).sum(1), "reduce_max"),
    "neighbours": (lambda p, x: jnp.roll(output(p, x), 1, 0).sum(1), "order of the batch"),
    "reversed": (lambda p, x: (output(p, x)[::-1]).sum(1), "order of the batch"),
    "shuffled": (lambda p, x: output(p, x)[jnp.argsort(x[:, 0])].sum(1), "order of the batch"),
    "sorted": (lambda p, x: jnp.sort(output(p, x), axis=0).sum(1), "sort"),
    "solved along the examples": (
        lambda p, x: lax.linalg.triangular_solve(jnp.eye(len(x)), output(p, x), left_side=True).sum(
            1
        ),
        "triangular_solve",
    ),
    "found among the others": (
        lambda p, x: (output(p, x) * jnp.searchsorted(x[:, 0], x)).sum(1),
        "gather",
    ),
    "cumulative": (lambda p, x: jnp.cumsum(output(p, x), axis=0).sum(1), "cumsum"),
    "tokens of all examples": (
        lambda p, x: (
            lax.map(lambda one: one * p["w"].sum(), jnp.tile(x, (1, 8)).reshape(-1))
            .reshape(4, 24)
            .sum(1)
        ),
        "loops over the examples",
    ),
    "some examples": (
        lambda p, x: output(p, x).sum(1) * output(p, x)[0].sum(),
        "combines different examples",
    ),
    "the hardest examples": (
        lambda p, x: jnp.where(
            jnp.argsort(jnp.argsort(output(p, x).sum(1))) < 2, output(p, x).sum(1), 0.0
        ),
        RANK,
    ),
    "the rank as a number": (lambda p, x: output(p, x).sum(1) * (1 + sorted_rows(x)[1]), RANK),
    "a row of a table for the rank": (
        lambda p, x: output(p, x + jnp.concatenate([p["w"], p["w"]])[sorted_rows(x)[1]]).sum(1),
        RANK,
    ),
    "an inverse permutation by scatter": (
        lambda p, x: (
            output(p, x).sum(1) * jnp.zeros(4, int).at[sorted_rows(x)[0]].set(jnp.arange(4))
        ),
        RANK,
    ),
    "positions of sorted rows": (
        lambda p, x: (output(p, x)[sorted_rows(x)[0]] * jnp.arange(4)[:, None])[
            sorted_rows(x)[1]
        ].sum(1),
        "depend on their position",
    ),
    "parameters by the position of sorted rows": (
        lambda p, x: (
            (x[(order := sorted_rows(x))[0]] + p["w"].sum() * jnp.arange(4)[:, None]) @ p["w"]
        )[order[1]].sum(1),
        "position",
    ),
    "groups by the position of sorted rows": (
        lambda p, x: lax.ragged_dot(
            x[(order := sorted_rows(x))[0]], jnp.stack([p["w"], p["w"]]), jnp.array([1, 3])
        )[order[1]].sum(1),
        "position of sorted rows",
    ),
    "own derivative": (lambda p, x: normalised(output(p, x)).sum(1), "custom derivative"),
    "an output that mixes beside one that does not": (
        lambda p, x: two_outputs(x, p["w"])[0].sum(1),
        "reduce_sum",
    ),
    "groups of unsorted rows": (
        lambda p, x: lax.ragged_dot(
            x, jnp.stack([p["w"], p["w"]]), jnp.bincount((x[:, 0] > 0).astype(int), length=2)
        ).sum(1),
        "unsorted rows",
    ),
    "a loop until all examples are large": (
        lambda p, x: output(
            p, lax.while_loop(lambda x: jnp.abs(x).max() < 5, lambda x: 2 * x, x + 1)
        ).sum(1),
        "reduce_max",
    ),
    "a loop that combines examples late": (
        lambda p, x: output(
            p,
            lax.while_loop(
                lambda c: c[0] < 17,
                lambda c: (c[0] + 1, x + c[-1][::-1], *c[1:-1]),
                (0, x, *[jnp.zeros_like(x)] * 7),
            )[-1],
        ).sum(1),
        "combines different examples",
    ),
    "all examples in a loop of each": (
        lambda p, x: (
            output(p, x)
            + jax.vmap(
                lambda one: lax.while_loop(
                    lambda c: c[0] < 5, lambda c: (c[0] + 1, 2 * c[1]), (one, x)
                )[1]
            )(x[:, 0]).sum(1)
        ).sum(1),
        "another dimension than the condition of the loop",
    ),
    "callback": (
        lambda p, x: (
            output(p, x).sum(1)
            * jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((4,), x.dtype), x[:, 0])
        ),
        "without a rule",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_examples_that_interact(name: str):
    loss, word = MIXED[name]
    with pytest.raises(CaptureError, match=re.escape(word)) as caught:
        sawlog.jax.capture(loss).plan(W, X)
    assert "Hint:" in str(caught.value)


def test_the_line_is_that_of_the_user():
    def loss(p, x):
        return jnp.roll(output(p, x), 1, 0).sum(1)

    line = loss.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=rf"test_refusals\.py:{line}"):
        sawlog.jax.capture(loss).plan(W, X)


def test_metrics_of_the_batch_may_be_auxiliary():
    def loss(p, x):
        y = output(p, x)
        return y.sum(1), {"mean": y.mean()}

    captured = sawlog.jax.capture(loss, has_aux=True)(W, X)
    np.testing.assert_allclose(captured.aux["mean"], output(W, X).mean(), rtol=1e-6)
    np.testing.assert_allclose(captured.grads["w"], jnp.repeat(X[:, :, None], 3, 2), rtol=1e-6)


SCALARS = {
    "sum": (lambda p, x: (output(p, x) ** 2).sum(), 1.0),
    "mean": (lambda p, x: (output(p, x) ** 2).mean() * 3, 1.0),
}


@pytest.mark.parametrize("reduction", SCALARS)
def test_declared_sums_and_means(reduction: str):
    loss, _ = SCALARS[reduction]
    wanted = sawlog.jax.capture(lambda p, x: (output(p, x) ** 2).sum(1))(W, X).grads["w"]
    captured = sawlog.jax.capture(loss, reduction=reduction)(W, X)
    assert captured.losses.shape == ()
    np.testing.assert_allclose(captured.grads["w"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, x: jnp.sqrt((output(p, x) ** 2).mean()),
        lambda p, x: (output(p, x) ** 2).sum() / jnp.abs(x).sum(),
        lambda p, x: (output(p, x) ** 2).sum() + (p["w"] ** 2).sum(),
        lambda p, x: (output(p, x) ** 2).sum() * p["w"][0, 0],
    ],
)
def test_other_scalars_are_refused(loss):
    with pytest.raises(CaptureError, match=r"constant factor|with a parameter"):
        sawlog.jax.capture(loss, reduction="mean").plan(W, X)


def test_loops_of_unknown_length():
    def loss(p, x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ p["w"]), (0, x))[1][
            :, 0
        ]

    words = "inside of a loop of unknown length, 'while' at .*JAX cannot differentiate"
    with pytest.raises(CaptureError, match=f"^The parameters w are used {words}"):
        sawlog.jax.capture(loss).plan(W, X)
    with pytest.raises(CaptureError, match=f"^Parameters are used {words}"):
        sawlog.jax.capture(lambda p, x: lax.cond(True, loss, loss, p, x)).plan(W, X)


def test_arguments():
    with pytest.raises(ArgumentError, match="one loss for each example"):
        sawlog.jax.capture(lambda p, x: output(p, x).sum()).plan(W, X)
    with pytest.raises(ArgumentError, match="different numbers of examples"):
        sawlog.jax.capture(lambda p, b: output(p, b[0])[:, 0]).plan(W, (X, jnp.zeros(2)))
    with pytest.raises(ArgumentError, match="The names are: w"):
        sawlog.jax.capture(lambda p, x: output(p, x)[:, 0], names="v").plan(W, X)
    with pytest.raises(ArgumentError, match="`what` must be"):
        sawlog.jax.capture(output, what=("loss",))
    with pytest.raises(ArgumentError, match="reduction"):
        sawlog.jax.capture(output, reduction="average")
    with pytest.raises(ArgumentError, match="has_aux=True"):
        sawlog.jax.capture(lambda p, x: (output(p, x)[:, 0], 1)).plan(W, X)
    with pytest.raises(ArgumentError, match="has its examples along axis 2, and it has 2 axes"):
        sawlog.jax.capture(lambda p, x: output(p, x)[:, 0], batch_axes=2).plan(W, X)
    for sides, words in (
        ((jnp.ones((2, 3)), None), r"left projection of 'w' must have the shape \[3, rank\]"),
        ((None, jnp.ones(3)), r"right .* got \[3\]"),
        ((None,), r"must be \(left, right\)"),
        (3, r"must be \(left, right\)"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sawlog.jax.capture(lambda p, x: output(p, x)[:, 0], projection={"w": sides})(W, X)
    with pytest.raises(ArgumentError, match="the blocks are w"):
        sawlog.jax.capture(lambda p, x: output(p, x)[:, 0], projection={"v": (None, None)})(W, X)


def test_a_key_that_all_examples_share():
    def loss(p, batch):
        kept = jax.random.bernoulli(batch["key"], 0.5, batch["x"].shape)
        return output(p, batch["x"] * kept).sum(1)

    capture = sawlog.jax.capture(loss, batch_axes={"x": 0, "key": None})
    rows = capture(W, {"x": X, "key": jax.random.PRNGKey(0)}).grads["w"]
    kept = jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, X.shape)
    np.testing.assert_allclose(rows, jnp.repeat((X * kept)[:, :, None], 3, 2), rtol=1e-6)


@jax.custom_vjp
def logging_product(w, x):
    sawlog.log({"primal": x.sum(1)})
    return x @ w


def _logging_forward(w, x):
    sawlog.log({"forward": x.sum(1)})
    return x @ w, (w, x)


def _logging_backward(kept, cotangent):
    sawlog.log({"backward": cotangent.sum(1)})
    return kept[1].T @ cotangent, cotangent @ kept[0].T


logging_product.defvjp(_logging_forward, _logging_backward)


@jax.jit
def logging_norm(w):
    sawlog.log({"norm": jnp.abs(w).sum()})
    return w / jnp.abs(w).sum()


def logs_everything(p, x):
    y = x @ logging_norm(p["w"])
    sawlog.log({"mean": y.mean(), "each": y.sum(1), "w": p["w"]}, where=y.sum() > 0)
    y = sawlog.log_cotangent("cotangent", y)
    return (logging_product(p["w"], y) ** 2).sum(1)


@pytest.mark.filterwarnings("ignore:The parameter 'w' is used by")
@pytest.mark.parametrize("options", [{}, {"prove": True}, {"projection": 2}], ids=str)
def test_logs_inside_are_those_of_the_loss_and_its_gradient(options):
    """Each once: neither rows nor the proof, which evaluate parts again, log anything."""
    capture = sawlog.jax.capture(logs_everything, **options)
    rows, logs = sawlog.spool(lambda p, x: capture(p, x).grads["w"])(W, X)
    total = jax.grad(lambda p, x: logs_everything(p, x).sum())
    _, expected = sawlog.spool(total)(W, X)
    assert {*expected} == {"norm", "mean", "each", "w", "cotangent", "forward", "backward"}
    assert {*logs} == {*expected}
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(rows, capture(W, X).grads["w"], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_is_proven_to_its_rounding(dtype):
    params = {"w": jnp.linspace(-1.0, 1.0, 9).reshape(3, 3), "v": jnp.linspace(0.1, 1.3, 9)}

    def loss(p, x):
        p = jax.tree.map(lambda a: a.astype(dtype), p)
        hidden = jnp.tanh(x.astype(dtype) @ p["w"]) @ p["v"].reshape(3, 3)
        return (hidden.astype(jnp.float32) ** 2).sum(1)

    captured = sawlog.jax.capture(loss, prove=True)(params, X)
    assert captured.coarsest == dtype
    captured.check()
    wrong = {**captured.grads, "w": captured.grads["w"] * 1.1}
    with pytest.raises(CaptureError, match="do not add up"):
        dataclasses.replace(captured, grads=wrong).check()


def test_names_and_a_batch_of_one():
    params = {"w": W["w"], "b": jnp.zeros(3)}
    capture = sawlog.jax.capture(
        lambda p, x: (output(p, x) + p["b"]).reshape(-1, 3).sum(1), names=["w*"], prove=True
    )
    captured = capture(params, X[:1])
    assert {*captured.grads} == {"w"}
    captured.check()


def test_the_proof_can_fail():
    captured = sawlog.jax.capture(lambda p, x: output(p, x).sum(1), prove=True)(W, X)
    captured.check()
    captured.grads["w"] = captured.grads["w"] * 1.1
    with pytest.raises(CaptureError, match="do not add up"):
        captured.check()


def test_a_clipped_gradient_of_a_parameter_is_not_a_sum():
    clipped = jax.custom_vjp(lambda w: w)
    clipped.defvjp(lambda w: (w, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    captured = sawlog.jax.capture(lambda p, x: (x @ clipped(p["w"])).sum(1), prove=True)(W, X)
    np.testing.assert_allclose(captured.grads["w"], jnp.clip(jnp.stack([X] * 3, 2), -0.1, 0.1))
    with pytest.raises(CaptureError, match=r"w .*custom derivative that clips"):
        captured.check()


def test_a_gradient_that_cancels_is_not_compared_with_itself():
    """A softmax does not depend on a shift: the gradient of the shift is rounding errors."""
    params = {**W, "shift": jnp.ones(())}

    def loss(p, x):
        scores = output(p, x) * 7.3 + p["shift"]
        return (jax.nn.softmax(scores) * jnp.arange(3.0)).sum(1)

    captured = sawlog.jax.capture(loss, prove=True)(params, X)
    captured.check()
    noise = {**captured.grads, "shift": 1e-8 * jnp.array([1.0, 2.0, -1.0, 5.0])}
    dataclasses.replace(captured, grads=noise).check()
    wrong = {**captured.grads, "shift": jnp.ones(4)}
    with pytest.raises(CaptureError, match="shift"):
        dataclasses.replace(captured, grads=wrong).check()


def test_a_rule_of_the_user():
    double_p = Primitive("double_of_a_test")
    double_p.def_impl(lambda x: 2 * x)
    double_p.def_abstract_eval(lambda x: x)

    def loss(p, x):
        return output(p, double_p.bind(x)).sum(1)

    with pytest.raises(CaptureError, match=r"'double_of_a_test' at .*without a rule"):
        sawlog.jax.capture(loss).plan(W, X)
    sawlog.jax.register_capture_rule(double_p)(lambda eqn, dims: dims)
    assert sawlog.jax.capture(loss).plan(W, X).blocks[0].shape == (3, 3)
    sawlog.jax.register_capture_rule(double_p)(lambda eqn, dims: [None])
    with pytest.raises(CaptureError, match="as its rule says"):
        sawlog.jax.capture(loss).plan(W, X)
