"""Every reduction in every place, of every dtype; which reduction counts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog._reductions import REDUCTION_KINDS
from sawlog.errors import LogMismatchError
from sawlog.jax._core.reductions import REDUCTIONS
from tests.jax.same import gaps
from tests.thorough import often

from .place_programs import ROWS, XS, Lane, close, f32, line_of, log_all, spooled
from .places import FOLDS, PLACES, fold_steps, log_each, log_tree, rows_of, spooled_place


@pytest.mark.parametrize(("place", "mode"), rows_of(FOLDS, often(2, 4)))
def test_reduction(place: str, mode: str) -> None:
    row = PLACES[place]
    logs = spooled_place(place, reduce=mode)
    assert logs.asdict().keys() == {"k"}
    assert list(logs.asdict()["k"]) == [mode]
    if isinstance(row.lanes, Lane):
        close(logs["k"], FOLDS[mode](np.asarray(row.lanes.values, np.float64)))
        close(logs.step["k"], fold_steps(mode, row.lanes.steps))
        assert gaps(logs) == set()
        return
    logged = np.array([len(lane.values) > 0 for lane in row.lanes])
    mask = logs.mask.get("k", np.ones(len(row.lanes), bool))
    assert mask.tolist() == logged.tolist()
    values, steps = np.asarray(logs["k"]), np.asarray(logs.step["k"])
    assert values.shape == steps.shape == logged.shape
    for i in np.flatnonzero(logged):
        close(values[i], FOLDS[mode](np.asarray(row.lanes[i].values, np.float64)))
        close(steps[i], fold_steps(mode, row.lanes[i].steps))


def test_every_reduction_is_checked() -> None:
    """A row of the table that device and host share has a streaming form, and an oracle here."""
    assert set(REDUCTIONS) == set(REDUCTION_KINDS) == set(FOLDS)


# --- Dtypes and pytrees ------------------------------------------------------------------------


BF16 = jnp.bfloat16
DTYPES = [
    (np.array([1, 2, 4], np.int32), "mean", np.float32, 7 / 3),
    (np.array([1, 2, 4], np.int32), "sum", np.int32, 7),
    (np.array([1, 2, 4], np.int32), "max", np.int32, 4),
    (np.array([1, 2, 4], np.int32), "std", np.float32, np.std([1, 2, 4])),
    (np.array([-5, 2, -4], np.int32), "max", np.int32, 2),
    (np.array([-5, -2, -4], np.int32), "max", np.int32, -2),
    (np.array([5, 2, 4], np.int32), "min", np.int32, 2),
    (np.array([100, 100, 50], np.int8), "sum", np.int32, 250),
    (np.array([100, 100, 51], np.int8), "mean", np.float32, 251 / 3),
    (np.array([200, 100, 250], np.uint8), "sum", np.uint32, 550),
    (np.array([200, 100, 250], np.uint8), "min", np.uint8, 100),
    (np.array([7, 7, 3], jnp.int4), "sum", np.int32, 17),
    (np.array([15, 15, 3], jnp.uint4), "sum", np.uint32, 33),
    (np.array([2**31 - 1, 2**31 - 1], np.int32), "mean", np.float32, 2**31),
    (np.array([True, False, True, True]), "mean", np.float32, 0.75),
    (np.array([True, False, True, True]), "sum", np.int32, 3),
    (np.array([True, False, True, True]), "min", np.bool_, False),
    (np.array([True, False, True, True]), "max", np.bool_, True),
    (np.array([True, False, True, False]), "last", np.bool_, False),
    (np.array([True, False]), "count", np.int32, 2),
    (np.array([1.5, 2.5, 0.25], BF16), "mean", BF16, BF16(17 / 12)),
    (np.array([1.5, 2.5, 0.25], BF16), "sum", BF16, 4.25),
    (np.ones(300, BF16), "sum", BF16, 300),
    (np.ones(300, BF16), "mean", BF16, 1),
    (np.array([1.5, 2.5, 0.25], BF16), "min", BF16, 0.25),
    (np.array([1.5, 2.5, 0.25], BF16), "last", BF16, 0.25),
    (np.array([1.0, 3.0], BF16), "std", BF16, 1),
    (np.full(3000, 30, np.float16), "mean", np.float16, 30),
    (np.array([6e4, 6e4, -6e4], np.float16), "sum", np.float16, np.float16(6e4)),
    (np.array([1e8, 3, -1e8], f32), "sum", np.float32, 3),
    (np.array([-300, 300], np.float16), "std", np.float16, 300),
    (np.array([-np.inf, 1.0, np.inf], f32), "sum", np.float32, np.nan),
    (np.array([1, 2, 4], np.int32), "var", np.float32, 14 / 9),
    (np.array([1.0, -np.inf, 2.0], f32), "max", np.float32, 2),
    (np.array([1.0, -np.inf, 2.0], f32), "sum", np.float32, -np.inf),
    (np.array([3e38, 3e38, 1.0], f32), "sum", np.float32, np.inf),
    (np.array([3e38, 3e38, 1.0], f32), "mean", np.float32, np.inf),
    (np.array([-5.0, -7.0, -6.0], f32), "max", np.float32, -5),
    (np.array([5, 7, 6], np.int32), "min", np.int32, 5),
    (np.array([1 + 2j, 3 - 1j, -2j], np.complex64), "var", np.float32, 40 / 9),
    (np.array([1, 2], np.int32), "mean", np.float32, 1.5),
    (np.array([1.0, np.nan, 2.0], f32), "last", np.float32, 2),
    (np.array([1.0, np.nan, 2.0], f32), "mean", np.float32, np.nan),
    (np.array([1.0, np.nan, 2.0], f32), "max", np.float32, np.nan),
    (np.array([[1.0, 2.0], [3.0, 6.0]], f32), "mean", np.float32, [2.0, 4.0]),
    (np.array([[1.0, 2.0], [3.0, 6.0]], f32), "first", np.float32, [1.0, 2.0]),
    (np.array([1e7, 1e7 + 1, 1e7 + 1], f32), "var", np.float32, 2 / 9),  # the mean is no float32
    (np.array([-1e7, -1e7 - 1, -1e7 - 1], f32), "std", np.float32, np.sqrt(2) / 3),
]


@pytest.mark.parametrize(("xs", "mode", "dtype", "answer"), DTYPES)
def test_dtypes(xs: Any, mode: str, dtype: Any, answer: Any) -> None:
    _, logs = sawlog.spool(log_each, reduce=mode)(xs)
    assert logs["k"].dtype == dtype
    np.testing.assert_allclose(np.asarray(logs["k"], np.float64), np.asarray(answer, np.float64))


def test_complex_numbers() -> None:
    xs = np.array([1 + 1j, 3 - 1j], np.complex64)
    for mode, answer in {"mean": 2, "sum": 4, "last": 3 - 1j, "first": 1 + 1j}.items():
        found = sawlog.spool(log_each, reduce=mode)(xs)[1]["k"]
        assert found.dtype == np.complex64
        assert complex(found) == answer
    huge = np.array([1e8 + 1e8j, 3 + 6j, -1e8 - 1e8j], np.complex64)
    assert complex(sawlog.spool(log_each, reduce="sum")(huge)[1]["k"]) == 3 + 6j
    assert complex(sawlog.spool(log_each, reduce="mean")(huge)[1]["k"]) == 1 + 2j
    std = sawlog.spool(log_each, reduce="std")(xs)[1]["k"]
    assert std.dtype == np.float32
    np.testing.assert_allclose(std, np.std(xs), rtol=1e-6)


def test_prng_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 5)

    def found(**options: Any) -> Any:
        return sawlog.spool(log_each, **options)(keys)[1]["k"]

    assert jnp.array_equal(found(reduce="first"), keys[0])
    assert jnp.array_equal(found(reduce="last"), keys[4])
    assert jnp.array_equal(found(reduce="replace"), keys[4])
    assert jnp.array_equal(found(interval=2), keys[::2])
    back = lambda keys: lax.scan(lambda c, k: (c, sawlog.log("k", k)), 0, keys, reverse=True)
    assert jnp.array_equal(sawlog.spool(back)(keys)[1]["k"], keys[::-1])
    assert jnp.array_equal(found(window=2), keys[-2:])
    assert jnp.array_equal(found(capacity={"k": 2}), keys[:2])
    assert jnp.array_equal(found(capacity={"k": 2}, keep="last"), keys[-2:])
    assert found(reduce="count") == 5


def test_prng_keys_in_lanes() -> None:
    keys = jax.random.split(jax.random.key(0), (2, 4))
    fun = jax.vmap(log_each)
    assert jnp.array_equal(sawlog.spool(fun, reduce="first")(keys)[1]["k"], keys[:, 0])
    assert jnp.array_equal(sawlog.spool(fun, reduce="last")(keys)[1]["k"], keys[:, 3])
    assert jnp.array_equal(sawlog.spool(fun, window=2)(keys)[1]["k"], keys[:, 2:].T)
    assert jnp.array_equal(sawlog.spool(fun, interval=2)(keys)[1]["k"], keys[:, ::2].T)


def test_prng_keys_that_are_not_always_logged() -> None:
    keys = jax.random.split(jax.random.key(0), 5)

    def f(keys: Any) -> None:
        def body(i: Any, key: Any) -> Any:
            lax.cond(i % 2 == 1, lambda: sawlog.log("k", key), lambda: None)
            return i + 1, None

        lax.scan(body, 0, keys)

    assert jnp.array_equal(sawlog.spool(f, reduce="first")(keys)[1]["k"], keys[1])
    assert jnp.array_equal(sawlog.spool(f, reduce="last")(keys)[1]["k"], keys[3])
    assert jnp.array_equal(sawlog.spool(f, window=3)(keys)[1]["k"], keys[1::2])


def test_prng_keys_have_no_mean() -> None:
    with pytest.raises(TypeError):
        sawlog.spool(log_each, reduce="mean")(jax.random.split(jax.random.key(0), 5))


def test_pytrees() -> None:
    v = np.arange(6)
    over = XS > 2
    expected = {
        "mean": {"u": XS.mean(), "v": (v.mean(), [over.mean()])},
        "sum": {"u": XS.sum(), "v": (15, [4])},
        "last": {"u": XS[5], "v": (5, [True])},
        "first": {"u": XS[0], "v": (0, [True])},
        "max": {"u": 9.0, "v": (5, [True])},
        "min": {"u": 1.0, "v": (0, [False])},
        "var": {"u": XS.var(), "v": (v.var(), [over.var()])},
        "count": {"u": 6, "v": (6, [6])},
    }
    for mode, answer in expected.items():
        close(sawlog.spool(log_tree, reduce=mode)(XS)[1]["k"], answer)
    close(
        sawlog.spool(log_tree, interval=4)(XS)[1]["k"],
        {"u": XS[::4], "v": (v[::4], [over[::4]])},
    )
    close(sawlog.spool(log_tree, window=2)(XS)[1]["k"], {"u": XS[4:], "v": (v[4:], [over[4:]])})


# --- Which reduction counts --------------------------------------------------------------------


def three_names(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        sawlog.log("a", x, reduction="mean")
        sawlog.log("b", x, reduction="max")
        sawlog.log("c", x)
        return total + x, None

    total, _ = lax.scan(body, jnp.float32(0), xs)
    sawlog.log("d", total)
    return total


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by the log": ({}, {"a": XS.mean(), "b": 9.0, "c": XS, "d": 21.0}),
    "one for all": ({"reduce": "last"}, {"a": 2.5, "b": 2.5, "c": 2.5, "d": 21.0}),
    "by key": ({"reduce": {"c": "sum"}}, {"a": XS.mean(), "b": 9.0, "c": 21.0, "d": 21.0}),
    "by key before the log": ({"reduce": {"a": "min"}}, {"a": 1.0, "b": 9.0, "c": XS, "d": 21.0}),
    "append for all": ({"reduce": "append"}, {"a": XS, "b": XS, "c": XS, "d": 21.0}),
    "append by key": ({"reduce": {"a": "append"}}, {"a": XS, "b": 9.0, "c": XS, "d": 21.0}),
    "with interval": (
        {"interval": 2},
        {"a": XS[::2].mean(), "b": XS[::2].max(), "c": XS[::2], "d": 21.0},
    ),
    "chosen names": ({"argnames": ["a", "c"]}, {"a": XS.mean(), "c": XS}),
    "a prefix": (
        {"prefix": "p/", "reduce": {"c": "first"}},
        {"p/a": XS.mean(), "p/b": 9.0, "p/c": 3.0, "p/d": 21.0},
    ),
    "window and reduce": (
        {"window": 2, "reduce": "mean"},
        {"a": 5.75, "b": 5.75, "c": 5.75, "d": 21.0},
    ),
    "window and reduce by key": (
        {"window": 2, "reduce": {"c": "mean"}},
        {"a": 5.75, "b": 9.0, "c": 5.75, "d": 21.0},
    ),
    "window and the log": ({"window": 2}, {"a": 5.75, "b": 9.0, "c": XS[-2:], "d": 21.0}),
    "capacity by key": ({"capacity": {"c": 2}}, {"a": XS.mean(), "b": 9.0, "c": XS[:2], "d": 21.0}),
    "capacity is for loops of unknown length": (
        {"capacity": 2},
        {"a": XS.mean(), "b": 9.0, "c": XS, "d": 21.0},
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_which_reduction_counts(choice: str) -> None:
    options, answer = CHOICES[choice]
    logs = spooled(three_names, XS, **options)
    close(dict(logs.items()), answer)


def test_two_reductions_under_one_name() -> None:
    def f(x: Any) -> None:
        sawlog.log("a", x, reduction="mean")  # one reduction
        sawlog.log("a", x, reduction="sum")  # another reduction

    with pytest.raises(LogMismatchError) as caught:
        sawlog.spool(f)(1.0)
    message = str(caught.value)
    for word in (
        "'a'",
        "reduction",
        line_of(__file__, "one reduction"),
        line_of(__file__, "another reduction"),
    ):
        assert word in message


def test_kept_logs_reduce_anew_outside() -> None:
    inner = sawlog.spool(three_names, reduce="last", keep_logs=True)
    (_, first), second = sawlog.spool(inner, reduce="first")(XS)
    close(dict(first.items()), {"a": 2.5, "b": 2.5, "c": 2.5, "d": 21.0})
    close(dict(second.items()), {"a": 3.0, "b": 3.0, "c": 3.0, "d": 21.0})


def test_a_reduced_key_is_an_entry_of_another_logdict() -> None:
    _, logs = sawlog.spool(three_names, reduce="mean")(XS)
    close((logs + logs)["a"], np.full(2, XS.mean()))
    assert logs.to_numpy().asdict()["a"] == {"mean": logs["a"]}


def test_reduce_per_step_of_a_users_scan() -> None:
    """A scan around spool has one reduced value for each of its steps."""

    def step(c: Any, xs: Any) -> Any:
        return c, sawlog.spool(log_all, reduce="mean")(xs)[1]

    _, logs = lax.scan(step, None, ROWS)
    close(logs["k"], ROWS.mean(axis=1))
