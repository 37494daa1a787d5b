"""Loggers: one run for each seed, and the state that names it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import logdict, store
from sawlog.errors import (
    ArgumentError,
)
from sawlog.loggers import RunState, SaveLogger
from tests.jax.same import gaps

from .jax.saved import assert_same
from .logger_programs import (
    KEYS,
    SEEDS,
    WAYS,
    by_hand,
    folders,
    of_tap,
    seed_names,
    start_of,
    train,
)


def assert_by_hand(found: logdict, seed: int) -> None:
    want = by_hand(seed)
    assert np.ravel(found["start"]).tolist() == want["start"]
    assert np.ravel(found["x"]).tolist() == want["x"]
    assert np.ravel(found["big"] if want["big"] else []).tolist() == want["big"]
    assert ("big" in found) == bool(want["big"])
    assert "never" not in found
    assert np.ravel(found.step["x"]).tolist() == [0, 1, 2]


# -- one run for each seed -------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_init_and_spool_inside(way: str, tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path, interval=None) as logger:

        def run(key: Any) -> Any:
            state = logger.init(key, way=way)
            return logger.spool(train, state)(key)

        WAYS[way](run)
    names = seed_names(2 if way == "jit" else SEEDS)
    assert folders(tmp_path) == names
    for seed, name in enumerate(names):
        found = sawlog.load(tmp_path / name)
        assert_same(found, sawlog.spool(train)(KEYS[seed])[1])
        assert_by_hand(found, seed)
        assert store.open(tmp_path / name).meta == {"key": [0, seed], "config": {"way": way}}


@pytest.mark.parametrize("buffer", [None, 2])
@pytest.mark.parametrize("way", ["one by one", "jit of vmap", "nested vmap", "grad"])
def test_init_and_tap_inside(way: str, buffer: int | None, tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path, interval=None) as logger:

        def run(key: Any) -> Any:
            return logger.tap(train, logger.init(key), buffer=buffer)(key)

        WAYS[way](run)
    assert folders(tmp_path) == seed_names()
    for seed, name in enumerate(seed_names()):
        found = sawlog.load(tmp_path / name)
        assert_by_hand(found, seed)
        assert_same(found, of_tap(train, KEYS[seed], buffer=buffer))


@pytest.mark.parametrize("method", ["spool", "tap"])
def test_init_outside(method: str, tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(KEYS)
        assert states.run.shape == (SEEDS,)
        assert len(set(states.run.tolist())) == SEEDS

        @jax.jit
        @jax.vmap
        def run(state: RunState, key: Any) -> Any:
            return getattr(logger, method)(train, state)(key)

        out = run(states, KEYS)
        run(states, KEYS)
    assert out.tolist() == [seed + 3 for seed in range(SEEDS)]
    assert folders(tmp_path) == seed_names()
    for seed, name in enumerate(seed_names()):
        found = sawlog.load(tmp_path / name)
        assert found["x"].tolist() == 2 * by_hand(seed)["x"]
        if method == "spool":
            once = sawlog.spool(train)(KEYS[seed])[1]
            assert_same(found, once + once)


def test_the_output_is_that_of_the_function(tmp_path: pathlib.Path) -> None:
    def f(x: Any, *, tree: Any) -> Any:
        sawlog.log({"x": x})
        return {"a": (x, tree), "b": None}

    with SaveLogger(tmp_path) as logger:
        state = logger.init(0)
        for wrapped in (logger.spool(f, state), logger.tap(f, state)):
            assert wrapped.__name__ == "f"
            out = wrapped(jnp.ones(2), tree=[3])
            assert jax.tree.structure(out) == jax.tree.structure(f(0, tree=[0]))
            assert out["a"][0].tolist() == [1, 1]


def test_lanes_of_a_mapped_cond(tmp_path: pathlib.Path) -> None:
    """Only lanes that come there write, though vmap makes a select of the cond."""

    def run(key: Any) -> Any:
        state, x = logger.init(key), start_of(key)

        def quiet(x: Any) -> Any:
            return -x

        def loud(x: Any) -> Any:
            logger.log(state, {"logged": x}, at=x)
            logger.tap(lambda x: sawlog.log({"tapped": x}), state)(x)
            logger.tap(lambda x: sawlog.log({"buffered": x}), state, buffer=3)(x)
            return logger.spool(lambda x: (sawlog.log({"spooled": x}), x)[1], state)(x)

        return lax.cond(x % 2 == 0, loud, quiet, x)

    with SaveLogger(tmp_path) as logger:
        out = jax.jit(jax.vmap(run))(KEYS)
    assert out.tolist() == [0, -1, 2, -3, 4, -5, 6, -7]
    for seed, name in enumerate(seed_names()):
        found = sawlog.load(tmp_path / name)
        keys = ["logged", "tapped", "buffered", "spooled"] if seed % 2 == 0 else []
        assert list(found) == keys
        assert all(np.ravel(found[key]).tolist() == [seed] for key in keys)


@pytest.mark.parametrize("buffer", [None, 2])
def test_lanes_inside_and_outside(buffer: int | None, tmp_path: pathlib.Path) -> None:
    """A mapped cond inside of the tapped function, and one around it."""

    def f(xs: Any) -> Any:
        log = lambda x: lax.cond(x > 3, lambda: sawlog.log({"x": x}, at=x), lambda: None)
        return jax.vmap(log)(xs)

    def run(key: Any) -> Any:
        state, x = logger.init(key), start_of(key)
        tapped = logger.tap(f, state, buffer=buffer)
        lax.cond(x < 6, tapped, lambda xs: None, x + jnp.arange(2.0))

    with SaveLogger(tmp_path) as logger:
        jax.jit(jax.vmap(run))(KEYS)
    for seed, name in enumerate(seed_names()):
        found = sawlog.load(tmp_path / name)
        assert list(found) == (["x"] if 3 <= seed < 6 else [])
        if found:
            assert_same(found, of_tap(f, seed + jnp.arange(2.0), buffer=buffer))
            assert np.ravel(found["x"])[-1] == seed + 1
            assert ("x" in gaps(found)) == (seed == 3)


def test_a_loop_that_lanes_leave_at_different_times(tmp_path: pathlib.Path) -> None:
    def run(key: Any) -> Any:
        state, n = logger.init(key), start_of(key)

        def body(i: Any) -> Any:
            logger.log(state, {"i": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0.0)

    with SaveLogger(tmp_path) as logger:
        jax.jit(jax.vmap(run))(KEYS)
    for seed, name in enumerate(seed_names()):
        found = sawlog.load(tmp_path / name)
        assert np.ravel(found["i"] if seed else []).tolist() == list(range(seed))


# -- the state -------------------------------------------------------------------------------------


def test_the_state_goes_through_everything(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        assert len(jax.tree.leaves(state)) == 1
        assert np.asarray(state.run).dtype == np.int32

        def step(carry: Any, i: Any) -> Any:
            state, x = carry
            logger.log(state, {"x": x}, step=i)
            state = lax.cond(i % 2 == 0, lambda s: s, lambda s: jax.jit(lambda s: s)(s), state)
            return (state, x + 1), None

        (state, _), _ = jax.jit(lambda s: lax.scan(step, (s, 0), jnp.arange(4)))(state)

        def loss(w: Any) -> Any:
            sawlog.log({"w": w})
            return w * w

        assert jax.grad(logger.spool(loss, state))(3.0) == 6
        assert jax.grad(jax.jit(logger.tap(loss, state)))(4.0) == 8
        jvp = jax.jvp(logger.spool(loss, state), (5.0,), (1.0,))
        assert jvp[1] == 10
        assert jax.vmap(logger.spool(loss, state))(jnp.arange(2.0)).tolist() == [0, 1]
    found = sawlog.load(tmp_path / "seed-0")
    assert found["x"].tolist() == [0, 1, 2, 3]
    assert found.step["x"].tolist() == [0, 1, 2, 3]
    assert found["w"].tolist() == [3, 4, 5, 0, 1]


def test_init_happens_when_the_program_runs(tmp_path: pathlib.Path) -> None:
    opened = []

    class Counting(SaveLogger):
        def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Any:
            opened.append(name)
            return super().open_run(name, about, exists)

    with Counting(tmp_path, exists="replace") as logger:
        init = jax.jit(lambda key: (logger.init(key), 0)[1])
        lowered = init.lower(KEYS[3])
        assert opened == []
        assert not list(tmp_path.iterdir())
        compiled = lowered.compile()
        for expected in (1, 1, 2):
            if expected == 2:
                logger.finish()
            compiled(KEYS[3])
            jax.effects_barrier()
            assert opened == ["seed-3"] * expected


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (jax.random.key(7), "seed-7"),
        (jax.random.PRNGKey(7), "seed-7"),
        (7, "seed-7"),
        (np.int64(7), "seed-7"),
        (jnp.int32(7), "seed-7"),
        (2**40 + 3, "key-00000100-00000003"),
        (jax.random.split(jax.random.key(0))[0], "key-6b200159-99ba4efe"),
        (jax.random.key(7, impl="rbg"), "key-00000000-00000007-00000000-00000007"),
        (jax.random.key_data(jax.random.key(7, impl="rbg")), "key-" + "00000000-00000007-" * 2),
    ],
)
@pytest.mark.parametrize("jit", [False, True])
def test_names(key: Any, name: str, jit: bool, tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        assert logger.name_of(key) == name.rstrip("-")
        # What jit is given becomes an array, and a Python number means a seed.
        (jax.jit(logger.init) if jit and not isinstance(key, int) else logger.init)(key)
    assert folders(tmp_path) == [name.rstrip("-")]


@pytest.mark.parametrize(
    "key",
    [KEYS, jnp.zeros((8, 2), jnp.uint32), jnp.arange(3), 1.5, True, "seed", None, -1, jnp.ones(2)],
)
def test_what_is_no_key(key: Any, tmp_path: pathlib.Path) -> None:
    with (
        SaveLogger(tmp_path) as logger,
        pytest.raises(ArgumentError, match=r"(?s)key|seed.*jax\.vmap\(logger\.init\)"),
    ):
        logger.init(key)
    assert not folders(tmp_path)


def test_config(tmp_path: pathlib.Path) -> None:
    """Noted as JSON; arrays may be traced, and mapped."""

    @jax.jit
    @jax.vmap
    def init(key: Any, lr: Any) -> Any:
        return logger.init(key, lr=lr, sizes=(3, 4), opt={"name": "adam", "w": None}, n=np.int8(2))

    with SaveLogger(tmp_path) as logger:
        init(KEYS, jnp.arange(8.0) / 4)
    for seed, name in enumerate(seed_names()):
        config = {"lr": seed / 4, "sizes": [3, 4], "opt": {"name": "adam", "w": None}, "n": 2}
        assert store.open(tmp_path / name).meta == {"key": [0, seed], "config": config}


def test_config_that_cannot_be_noted(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        for value in (object(), KEYS[0], [print], 1j, np.array(["a"])):
            with pytest.raises(ArgumentError, match=r"setting \['opt'\].*str\(x\)"):
                logger.init(0, opt=value)
