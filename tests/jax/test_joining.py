"""``sawlog.concat`` and ``logs + more``: put together when looked at, nothing compiled."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sawlog
from sawlog import errors
from tests.jax.same import same_logs_as


@jax.jit
@sawlog.spool
def step(x):
    sawlog.log({"loss": x, "pair": (x, -x)}, step=2 * x)
    sawlog.log({"high": x}, where=x > 2)


def test_concat_is_the_sum() -> None:
    logs = [step(float(i))[1] for i in range(5)]
    added = logs[0] + logs[1] + logs[2] + logs[3] + logs[4]
    joined = sawlog.concat(logs)
    for both in (added, joined):
        assert np.asarray(both["loss"]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert np.asarray(both.step["loss"]).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
        assert np.asarray(both["high"]).tolist() == [3.0, 4.0]
        assert isinstance(both["loss"], jax.Array)


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
def test_any_way_of_adding_gives_the_same(sizes, data) -> None:
    logs = [
        sawlog.logdict({"x": np.arange(n) + 10 * i}, step={"x": np.arange(n)})
        for i, n in enumerate(sizes)
    ]
    expected = np.concatenate([np.asarray(each["x"]) for each in logs] or [np.zeros(0, int)])
    left = list(logs)
    while len(left) > 1:
        at = data.draw(st.integers(0, len(left) - 2))
        left[at : at + 2] = [left[at] + left[at + 1]]
    found = left[0] if left else sawlog.concat([])
    assert np.asarray(found.get("x", np.zeros(0, int))).tolist() == expected.tolist()
    assert np.asarray(sawlog.concat(logs).get("x", [])).tolist() == expected.tolist()


def test_nothing_is_put_together_before_it_is_looked_at(monkeypatch) -> None:
    from sawlog.jax._logdict import joining

    calls: list = []
    real = joining.concatenate
    monkeypatch.setattr(joining, "concatenate", lambda parts: calls.append(1) or real(parts))
    total = sawlog.logdict()
    for i in range(20):
        total = total + step(float(i))[1]
    assert calls == []
    assert total["loss"].shape == (20,)
    assert len(calls) == 3  # once a key, whatever the number of steps


def test_nothing_is_compiled_for_each_length() -> None:
    logs = [step(float(i))[1] for i in range(40)]
    _ = (logs[0] + logs[1])["loss"]
    with jax.log_compiles(True), pytest.MonkeyPatch.context() as patch:
        import logging

        seen: list = []
        patch.setattr(logging.Logger, "warning", lambda self, text, *a: seen.append(text))
        total = logs[0]
        for each in logs[1:]:
            total = total + each
            assert total["loss"].ndim == 1
    assert not [text for text in seen if "ompiling" in str(text)]


def test_what_was_added_does_not_change_later() -> None:
    one, two = sawlog.logdict({"x": np.arange(2)}), sawlog.logdict({"x": np.arange(3)})
    both = one + two
    one["x"] = np.arange(7)
    del two["x"]
    assert both["x"].tolist() == [0, 1, 0, 1, 2]


def test_arrays_of_the_host_may_be_used_again() -> None:
    buffer = np.zeros(2)
    logs = []
    for i in range(3):
        buffer[:] = i
        logs.append(sawlog.log({"x": buffer}, step=i))
    assert sawlog.concat(logs)["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    one = sawlog.logdict({"x": buffer})
    both = one + one
    buffer[:] = 7
    assert both["x"].tolist() == [2, 2, 2, 2]


def test_in_a_program() -> None:
    @jax.jit
    def f(x):
        _, one = sawlog.spool(lambda x: sawlog.log({"x": x}) and None)(x)
        return one + one + one

    assert np.asarray(f(2.0)["x"]).tolist() == [2.0, 2.0, 2.0]


def test_pytrees_and_pickles_of_sums() -> None:
    total = step(1.0)[1] + step(5.0)[1]
    same_logs_as(pickle.loads(pickle.dumps(total)), step(1.0)[1] + step(5.0)[1])
    doubled = jax.tree.map(lambda x: x, step(1.0)[1] + step(5.0)[1])
    assert np.asarray(doubled["loss"]).tolist() == [1.0, 5.0]
    assert np.asarray(jax.jit(lambda logs: logs["loss"] * 2)(total)).tolist() == [2.0, 10.0]


@pytest.mark.parametrize("lazy", [True, False])
def test_what_does_not_fit_is_refused_where_it_is_added(lazy) -> None:
    one = sawlog.logdict({"x": jnp.arange(2)})
    other = sawlog.logdict({"x": jnp.arange(2.0)})
    with pytest.raises(errors.LogMismatchError, match="'x'"):
        _ = (one + one if lazy else one) + other


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 4), (3,), (1, 2, 3)])
def test_single_entries_of_other_shapes_are_refused_where_they_are_added(lazy, shape) -> None:
    def logs(*shape: int) -> sawlog.logdict:
        return sawlog.spool(lambda x: sawlog.log({"x": x}))(np.zeros(shape, np.float32))[1]

    one = logs(2, 3)
    assert (one + one)["x"].shape == (2, 2, 3)
    with pytest.raises(errors.LogMismatchError, match="'x'"):
        _ = (one + one if lazy else one) + logs(*shape)


def test_keys_of_a_random_generator() -> None:
    one = sawlog.logdict({"key": jax.random.split(jax.random.key(0), 2)})
    assert (one + one)["key"].shape == (4,)


def test_only_logs_can_be_joined() -> None:
    with pytest.raises(errors.ArgumentError, match="concat"):
        sawlog.concat([sawlog.logdict(), {"x": 1}])


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("how", [lambda a, b: a + b, lambda a, b: sawlog.concat([a, b])])
def test_a_key_that_was_never_logged_is_still_known_afterwards(settled, how) -> None:
    def f(x):
        sawlog.log({"x": x}, where=x > 0)

    nothing, more = sawlog.spool(f)(-1.0)[1], sawlog.spool(f)(-2.0)[1]
    some, other = sawlog.spool(f)(3.0)[1], sawlog.logdict({"y": np.arange(2)})
    if settled:
        assert [len(nothing), len(more), len(some)] == [0, 0, 1]
    for joined in (how(nothing, more), how(nothing, other), how(other, nothing)):
        assert "x" not in joined
        assert joined["x"].shape == (0,)
    for joined in (how(nothing, some), how(some, nothing)):
        assert np.ravel(joined["x"]).tolist() == [3.0]


def lanes_of(start: float) -> Any:
    """Three entries of each of two lanes, of a ``vmap`` around ``spool``."""

    def f(x: Any) -> None:
        for i in range(3):
            sawlog.log({"x": x + i}, step=i)

    return jax.vmap(sawlog.spool(f))(jnp.array([start, start + 10]))[1]


@pytest.mark.parametrize("on_host", [False, True])
def test_logs_of_lanes_are_joined_lane_by_lane(on_host: bool) -> None:
    both = lanes_of(0.0), lanes_of(100.0)
    one, two = (jax.device_get(each) if on_host else each for each in both)
    joined = one + two
    wanted = [[0, 1, 2, 100, 101, 102], [10, 11, 12, 110, 111, 112]]
    np.testing.assert_array_equal(joined["x"], wanted)
    np.testing.assert_array_equal(joined.steps["step"]["x"], [[0, 1, 2] * 2] * 2)


def test_steps_of_other_names_do_not_fit() -> None:
    one = sawlog.spool(lambda x: sawlog.log("x", x, step=0))(1.0)[1]
    two = sawlog.spool(lambda x: sawlog.log("x", x, epoch=0))(1.0)[1]
    with pytest.raises(errors.LogMismatchError, match=r"steps is \['step'\].*\['epoch'\]"):
        (one + two)["x"]


def test_steps_are_joined_by_their_names() -> None:
    one = sawlog.spool(lambda x: sawlog.log("x", x, step=1, epoch=2))(1.0)[1]
    two = sawlog.spool(lambda x: sawlog.log("x", x, epoch=4, step=3))(1.0)[1]
    joined = one + two
    np.testing.assert_array_equal(joined.steps["step"]["x"], [1, 3])
    np.testing.assert_array_equal(joined.steps["epoch"]["x"], [2, 4])


@pytest.mark.parametrize("first", [True, False])
def test_logs_without_a_mask_were_all_logged(first: bool) -> None:
    def masked(xs: Any) -> None:
        sawlog.log("x", xs, where=xs > 1)

    def plain(xs: Any) -> None:
        sawlog.log("x", xs)

    xs = jnp.array([0.0, 2.0])
    own, other = (sawlog.spool(jax.vmap(f))(xs)[1] for f in (masked, plain))
    joined = own + other if first else other + own
    rows = [[False, True], [True, True]]
    np.testing.assert_array_equal(joined.mask["x"], rows if first else rows[::-1])


@pytest.mark.parametrize("mode", ["mean", "last", "max"])
def test_entries_of_lanes_in_lanes_are_reduced_one_by_one(mode: str) -> None:
    def f(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"x": x * i}, step=i)
            return c, None

        return jax.lax.scan(body, 0, jnp.arange(1.0, 5.0))[0]

    xs = jnp.arange(6.0).reshape(2, 3)
    _, logs = sawlog.spool(jax.vmap(jax.vmap(f)))(xs)
    times = {"mean": 2.5, "last": 4.0, "max": 4.0}[mode]
    np.testing.assert_allclose(logs.reduce(mode)["x"], times * xs)
    _, logs = jax.vmap(sawlog.spool(jax.vmap(f)))(xs)
    np.testing.assert_allclose(logs.reduce(mode)["x"], times * xs)
