"""``log(..., where=condition)`` is what ``lax.cond`` around the log would be."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog
from sawlog import errors
from tests.jax.same import same_logs_as


def with_where(x, keep):
    def body(x, i):
        sawlog.log({"x": x, "pair": (x, i)}, where=(i + keep) % 3 == 0, late=i, early=x)
        return x + 2.0, None

    return lax.scan(body, x, jnp.arange(7))[0]


def with_cond(x, keep):
    def body(x, i):
        lax.cond(
            (i + keep) % 3 == 0,
            lambda: sawlog.log({"x": x, "pair": (x, i)}, late=i, early=x),
            lambda: None,
        )
        return x + 2.0, None

    return lax.scan(body, x, jnp.arange(7))[0]


def mapped(f):
    return lambda x, keep: jax.vmap(f)(x + jnp.arange(3.0), keep + jnp.arange(3))


OPTIONS = [{}, {"reduce": "mean"}, {"interval": 2}, {"window": 2}, {"capacity": {"x": 1}}]
AROUND = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "vmap": mapped,
    "grad": lambda f: jax.grad(lambda x, keep: jnp.sum(f(x, keep))),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda x, keep: jnp.sum(f(x, keep)))),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("around", AROUND)
def test_spool_as_if_by_cond(around, options) -> None:
    ours = sawlog.spool(AROUND[around](with_where), **options)(1.0, 0)[1]
    theirs = sawlog.spool(AROUND[around](with_cond), **options)(1.0, 0)[1]
    assert set(theirs) == {"x", "pair"}
    same_logs_as(ours, theirs)


@pytest.mark.parametrize(
    "options", [{}, {"buffer": 2}, {"interval": 2}, {"reduce": "max"}], ids=str
)
@pytest.mark.parametrize("around", ["plain", "vmap"])
def test_tap_as_if_by_cond(around, options) -> None:
    seen: dict = {with_where: [], with_cond: []}
    for fun, calls in seen.items():
        sawlog.tap(AROUND[around](fun), calls.append, **options)(1.0, 0)
    assert len(seen[with_cond]) > 0
    assert len(seen[with_where]) == len(seen[with_cond])
    for ours, theirs in zip(seen[with_where], seen[with_cond], strict=True):
        same_logs_as(ours, theirs)


def test_nothing_where_false() -> None:
    _, logs = sawlog.spool(lambda x: sawlog.log({"x": x}, where=x < 0) and None)(1.0)
    assert list(logs) == []
    assert logs["x"].shape == (0,)
    calls: list = []
    sawlog.tap(lambda x: sawlog.log({"x": x}, where=x < 0) and None, calls.append)(1.0)
    assert calls == []


def test_outside_of_a_program() -> None:
    assert list(sawlog.log({"x": 1.0}, where=False)) == []
    assert list(sawlog.log({"x": 1.0}, where=True)) == ["x"]


def test_masks_in_memory() -> None:
    with sawlog.loggers.MemoryLogger() as logger:
        where = jnp.array([True, False, True])
        logger.log(logger.init(0), {"x": jnp.array([1.0, 50.0, 3.0])}, where=where)
    assert np.mean(logger.runs["seed-0"].logs["x"]) == 2.0


def test_one_key_twice_is_refused() -> None:
    with (
        sawlog.loggers.MemoryLogger() as logger,
        pytest.raises(errors.ArgumentError, match="seed-1"),
    ):
        logger.run(lambda key: f_of_one(1.0, True))(jnp.array([1, 2, 1]))


def test_a_condition_for_each_lane() -> None:
    """As under vmap, also for programs that are written over arrays."""

    def f(r, done):
        sawlog.log({"return": r, "both": jnp.stack([r, -r], 1)}, where=done, update=7)

    r, done = jnp.arange(4.0), jnp.array([True, False, True, False])
    _, logs = sawlog.spool(f)(r, done)
    _, lanes = sawlog.spool(jax.vmap(f_of_one))(r, done)
    assert logs.mask["return"].tolist() == done.tolist()
    np.testing.assert_array_equal(logs["both"][2], [2.0, -2.0])
    assert logs.steps["update"]["return"][done].tolist() == [7, 7]
    same_logs_as(logs.filter(lambda k, _: k == "return"), lanes)


def f_of_one(r, done):
    sawlog.log({"return": r}, where=done, update=7)


@pytest.mark.parametrize("kind", [np.float32, np.int32, bool, np.complex64])
def test_what_a_lane_did_not_log_is_zero_its_step_too(kind) -> None:
    """Not what the lane computed: that may be anything."""

    def f(x, keep):
        sawlog.log({"x": x.astype(kind)}, where=keep, step=x + 5)

    keep = jnp.array([True, False, True])
    _, logs = sawlog.spool(jax.vmap(f))(jnp.array([3.0, 4.0, 5.0]), keep)
    assert logs["x"].tolist() == [kind(3), kind(0), kind(5)]
    assert logs.step["x"].tolist() == [8.0, 0.0, 10.0]
    assert logs.mask["x"].tolist() == keep.tolist()
    sent = []
    sawlog.tap(jax.vmap(f), sent.append)(jnp.array([3.0, 4.0, 5.0]), keep)
    assert [each["x"].tolist() for each in sent] == [[kind(3), kind(0), kind(5)]]
    assert [each.step["x"].tolist() for each in sent] == [[8.0, 0.0, 10.0]]


def test_cotangents_where() -> None:
    def loss(x, keep):
        return 3.0 * sawlog.log_cotangent("d", x, where=keep)

    for keep, expected in [(True, ["d"]), (False, [])]:
        assert list(sawlog.spool(jax.grad(loss))(2.0, keep)[1]) == expected


BAD = {
    "an integer": (lambda: sawlog.log({"x": 1}, where=1), "boolean"),
    "a float array": (lambda: sawlog.log({"x": jnp.ones(2)}, where=jnp.ones(2)), "float32"),
    "another shape": (lambda: sawlog.log({"x": jnp.ones(3)}, where=jnp.ones(2, bool)), "(2,)"),
    "one leaf of two": (
        lambda: sawlog.log({"x": (jnp.ones(2), jnp.ones(3))}, where=jnp.ones(2, bool)),
        "(3,)",
    ),
    "a step": (
        lambda: sawlog.log({"x": jnp.ones(2)}, where=jnp.ones(2, bool), step=jnp.arange(3)),
        "'step'",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("around", [lambda f: f, sawlog.spool], ids=["plain", "spool"])
def test_bad_conditions(case, around) -> None:
    call, word = BAD[case]
    with pytest.raises(errors.LogValueError, match=r"where") as caught:
        around(call)()
    assert word in str(caught.value)
    assert "Hint:" in str(caught.value)


# -- step axes -------------------------------------------------------------------------------------


def logged_in(order):
    def f(x):
        sawlog.log({"x": x}, **{name: i for i, name in enumerate(order)})

    return f


@pytest.mark.parametrize("order", list(itertools.permutations(["minibatch", "update", "z"])))
def test_step_axes_keep_the_order_they_were_written_in(order) -> None:
    for options in ({}, {"reduce": "mean"}, {"window": 1}):
        logs = sawlog.spool(logged_in(order), **options)(1.0)[1]
        assert list(logs.steps) == list(order)
        assert [int(logs.steps[name]["x"]) for name in order] == [0, 1, 2]
    calls: list = []
    for options in ({}, {"buffer": 3}, {"interval": 2}, {"reduce": "last"}):
        sawlog.tap(logged_in(order), calls.append, **options)(1.0)
    assert [list(logs.steps) for logs in calls] == [list(order)] * 4
    assert all(int(logs.steps[order[2]]["x"].reshape(())) == 2 for logs in calls)


def test_logs_of_one_name_may_order_their_steps_differently() -> None:
    def f(x):
        sawlog.log({"x": x}, b=1, a=2)
        sawlog.log({"x": x}, a=20, b=10)
        lax.cond(
            x > 0,
            lambda: sawlog.log({"x": x}, a=200, b=100),
            lambda: sawlog.log({"x": x}, b=-1, a=-2),
        )

    for fun in (f, jax.vmap(f)):
        x = 1.0 if fun is f else jnp.ones(2)
        logs = sawlog.spool(fun)(x)[1]
        assert list(logs.steps) == ["b", "a"]
        assert np.reshape(logs.steps["b"]["x"], (3, -1))[:, 0].tolist() == [1, 10, 100]
        assert np.reshape(logs.steps["a"]["x"], (3, -1))[:, 0].tolist() == [2, 20, 200]


@pytest.mark.parametrize("name", ["update", "keys", "mask", "steps", "slice", "mean", "_private"])
def test_any_name_is_fit_for_a_step_axis(name) -> None:
    logs = sawlog.spool(lambda x: sawlog.log({"x": x}, **{name: 5}) and None)(1.0)[1]
    assert int(logs.steps[name]["x"]) == 5
    assert int((logs + logs).steps[name]["x"][1]) == 5


# -- what log returns ------------------------------------------------------------------------------


def test_log_returns_what_it_was_given() -> None:
    logs = sawlog.log({"x": jnp.ones(2), "y": 3}, step=4)
    assert isinstance(logs, sawlog.logdict)
    assert set(logs) == {"x", "y"}
    assert int(logs.step["y"]) == 4

    @jax.jit
    def f(x):
        return 2 * x, sawlog.log({"x": x}, step=1)

    assert float(f(3.0)[1]["x"]) == 3.0
    gradient, aux = jax.grad(lambda x: (x**2, sawlog.log({"x": x})), has_aux=True)(3.0)
    assert (float(gradient), float(aux["x"])) == (6.0, 3.0)


def test_branches_and_bodies_get_nothing_back() -> None:
    """So that a branch that logs goes with one that does not."""
    seen: list = []

    def logs(x):
        seen.append(sawlog.log({"x": x}))

    def f(x):
        lax.cond(x > 0, lambda: sawlog.log({"x": x}), lambda: None)
        lax.switch(jnp.int32(0), [lambda: sawlog.log({"x": x}), lambda: None])
        lax.map(lambda y: logs(y), jnp.arange(2.0))
        lax.fori_loop(0, 2, lambda i, c: (logs(c), c)[1], x)
        return x

    f(1.0)
    jax.jit(f)(1.0)
    jax.vmap(f)(jnp.ones(2))
    assert seen
    assert all(one is None for one in seen)
    assert sawlog.spool(f)(1.0)[1]["x"].shape == (6,)
