"""Loggers: every log in the run of its seed, whatever is mapped, and nothing lost at the end."""

from __future__ import annotations

import collections
import functools
import operator
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog import logdict, store
from sawlog.errors import (
    AppendWarning,
    ArgumentError,
    CallbackError,
    LogMismatchError,
    LogValueError,
    StoreClosedError,
    StoreExistsError,
)
from sawlog.jax._runs import runs as _runs
from sawlog.loggers import Logger, RunState, SaveLogger
from sawlog.records import Records
from tests.jax.same import gaps

from .jax.saved import assert_same

SEEDS = 8
KEYS = jax.vmap(jax.random.key)(jnp.arange(SEEDS))


def start_of(key: Any) -> Any:
    """The seed itself: whole numbers, so that nothing is rounded differently under vmap."""
    return jax.random.key_data(key)[1].astype(jnp.float32)


def train(key: Any) -> Any:
    """Logs once, in a loop, in a branch of which it depends on the seed whether it runs."""
    x = start_of(key)
    sawlog.log({"start": x, "key": key}, tags="once")

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"x": x, "tree": {"a": (x, 2 * x)}}, step=i)
        lax.cond(x > 5, lambda: sawlog.log({"big": x}, step=i), lambda: None)
        lax.cond(x > 99, lambda: sawlog.log({"never": x}), lambda: None)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(3))[0]


def by_hand(seed: int) -> dict[str, list[float]]:
    xs = [float(seed + i) for i in range(3)]
    return {"start": [seed], "x": xs, "big": [x for x in xs if x > 5]}


def assert_by_hand(found: logdict, seed: int) -> None:
    want = by_hand(seed)
    assert np.ravel(found["start"]).tolist() == want["start"]
    assert np.ravel(found["x"]).tolist() == want["x"]
    assert np.ravel(found["big"] if want["big"] else []).tolist() == want["big"]
    assert ("big" in found) == bool(want["big"])
    assert "never" not in found
    assert np.ravel(found.step["x"]).tolist() == [0, 1, 2]


def folders(path: pathlib.Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def seed_names(count: int = SEEDS) -> list[str]:
    return [f"seed-{i}" for i in range(count)]


# -- one run for each seed -------------------------------------------------------------------------


def sharded_keys(kind: AxisType) -> Any:
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    return mesh, jax.device_put(KEYS, NamedSharding(mesh, P("d")))


def over_devices(run: Callable[..., Any]) -> Any:
    mesh, keys = sharded_keys(AxisType.Explicit)
    local = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return jax.jit(local)(keys)


WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "one by one": lambda run: [run(key) for key in KEYS],
    "jit": lambda run: [jax.jit(run)(key) for key in KEYS[:2]],
    "vmap": lambda run: jax.vmap(run)(KEYS),
    "jit of vmap": lambda run: jax.jit(jax.vmap(run))(KEYS),
    "vmap of jit": lambda run: jax.vmap(jax.jit(run))(KEYS),
    "nested vmap": lambda run: jax.jit(jax.vmap(jax.vmap(run)))(KEYS.reshape(2, 4)),
    "scan": lambda run: lax.scan(lambda c, key: (c, run(key)), 0, KEYS),
    "scan of vmap": lambda run: lax.map(jax.vmap(run), KEYS.reshape(2, 4)),
    "grad": lambda run: jax.vmap(jax.grad(lambda w, key: w * run(key)), (None, 0))(1.0, KEYS),
    "shard_map": over_devices,
    "sharded": lambda run: jax.jit(jax.vmap(run))(sharded_keys(AxisType.Auto)[1]),
}


@pytest.mark.turns(3)
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


def of_tap(fun: Callable[..., Any], *args: Any, **options: Any) -> logdict:
    """All that the callback of ``tap`` is given, put together."""
    seen: list[logdict] = []
    sawlog.tap(fun, seen.append, **options)(*args)
    return functools.reduce(operator.add, seen)


@pytest.mark.turns(3)
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


# -- an existing run -------------------------------------------------------------------------------


def write_one(path: pathlib.Path, value: float, how: str = "eager", **options: Any) -> None:
    def run(key: Any, value: Any) -> None:
        logger.log(logger.init(key), {"x": value})

    with SaveLogger(path, **options) as logger:
        jax.block_until_ready((jax.jit(run) if how == "jit" else run)(KEYS[0], value))
        jax.effects_barrier()


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_exists(how: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs"
    write_one(path, 1.0, how, exists="error")
    with pytest.warns(AppendWarning, match=r"SaveLogger appends to a run .*: seed-0\. Hint"):
        write_one(path, 2.0, how)
    assert sawlog.load(path / "seed-0")["x"].tolist() == [1, 2]
    refused = StoreExistsError if how == "eager" else jax.errors.JaxRuntimeError
    with pytest.raises(refused, match=r"A store exists at .*seed-0 already.*exists='append'"):
        write_one(path, 3.0, how, exists="error")
    assert sawlog.load(path / "seed-0")["x"].tolist() == [1, 2]
    write_one(path, 4.0, how, exists="replace")
    assert sawlog.load(path / "seed-0")["x"] == 4
    with pytest.raises(ArgumentError, match="`exists` must be one of 'append'"):
        SaveLogger(path, exists="ask")


def test_exists_within_one_logger(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path / "a") as logger:
        for x in (1, 2):
            logger.log(logger.init(0), {"x": x})
        logger.finish()
        logger.log(logger.init(0), {"x": 3})
    assert sawlog.load(tmp_path / "a" / "seed-0")["x"].tolist() == [1, 2, 3]
    write_one(tmp_path / "r", 0.0)
    with SaveLogger(tmp_path / "r", exists="replace") as logger:
        old = logger.init(0)
        logger.log(old, {"x": 1})
        logger.log(logger.init(0), {"x": 2})
        logger.log(old, {"x": 3})
        with pytest.raises(StoreExistsError, match="fold_in"):
            logger.init(0, lr=0.1)
        logger.finish()
        logger.log(logger.init(0), {"x": 4})
        with (
            SaveLogger(tmp_path / "r", exists="replace") as other,
            pytest.raises(StoreExistsError, match="another logger of this program"),
        ):
            other.init(0)
    assert sawlog.load(tmp_path / "r" / "seed-0")["x"].tolist() == [1, 2, 3, 4]
    with SaveLogger(tmp_path / "e", exists="error") as logger:
        logger.init(0)
        with pytest.raises(StoreExistsError, match=r"'seed-0' was started before"):
            logger.init(0)


def test_a_run_goes_on_only_with_the_same_config(tmp_path: pathlib.Path) -> None:
    """A store keeps the notes that it was made with; others would be lost."""
    with SaveLogger(tmp_path) as logger:
        logger.init(0, lr=0.1)
        logger.init(0, lr=0.1)
        with pytest.raises(StoreExistsError, match=r"0\.1.*0\.2.*fold_in"):
            logger.init(0, lr=0.2)
        logger.log(logger.init(0, lr=0.1), {"x": 1})
    with SaveLogger(tmp_path) as logger:
        with pytest.raises(StoreExistsError, match=r"(?s)seed-0 .*0\.1.*0\.2.*exists='replace'"):
            logger.init(0, lr=0.2)
        with pytest.warns(AppendWarning):
            logger.log(logger.init(0, lr=0.1), {"x": 1})


# -- log, and the options of spool and tap ---------------------------------------------------------


def test_log(tmp_path: pathlib.Path) -> None:
    """The same from inside and from outside of a program."""
    values = {"f": 1.5, "i": 2, "a": np.arange(3, dtype=np.float32), "t": [True, {"k": KEYS[1]}]}
    with SaveLogger(tmp_path) as logger:
        one, two = logger.init(1), logger.init(2)
        logger.log(one, values, step=7, episode=1)
        jax.jit(lambda: logger.log(two, values, step=7, episode=1))()
        logger.log(one, {})
    found, other = (sawlog.load(tmp_path / f"seed-{i}") for i in (1, 2))
    assert_same(found, other)
    assert found["f"] == 1.5
    assert found["f"].dtype == np.float32
    assert found["a"].tolist() == [0, 1, 2]
    assert found.step["a"] == 7
    assert found.episode["t"] == 1
    assert jnp.array_equal(found["t"][1]["k"], KEYS[1])


@pytest.mark.parametrize("jit", [False, True])
def test_log_of_a_logdict(jit: bool, tmp_path: pathlib.Path) -> None:
    logs = sawlog.spool(train)(KEYS[6])[1]
    with SaveLogger(tmp_path) as logger:
        state = logger.init(0)

        def write(key: Any) -> None:
            logger.log(state, sawlog.spool(train)(key)[1].prefix("p/"))

        (jax.jit(write) if jit else write)(KEYS[6])
        with pytest.raises(ArgumentError, match="a logdict has its own"):
            logger.log(state, logs, step=1)
    assert_same(sawlog.load(tmp_path / "seed-0"), logs.prefix("p/"))


OPTIONS: dict[str, dict[str, Any]] = {
    "argnames": {"argnames": ["x", "big"]},
    "tags": {"tags": "once"},
    "prefix": {"prefix": "train/"},
    "interval": {"interval": 2},
    "reduce": {"reduce": {"x": "mean", "big": "last"}},
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_spool(option: str, tmp_path: pathlib.Path) -> None:
    options, keys = OPTIONS[option], KEYS[5:7]
    with SaveLogger(tmp_path) as logger:
        run = lambda key: logger.spool(train, logger.init(key), **options)(key)
        jax.jit(jax.vmap(run))(keys)
    for seed, key in zip((5, 6), keys, strict=True):
        found = sawlog.load(tmp_path / f"seed-{seed}")
        assert_same(found, sawlog.spool(train, **options)(key)[1])


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("option", "buffer"), [("argnames", None), ("tags", None), ("prefix", None), ("prefix", 2)]
)
def test_options_of_tap(option: str, buffer: int | None, tmp_path: pathlib.Path) -> None:
    options, keys = {**OPTIONS[option], "buffer": buffer}, KEYS[5:7]
    with SaveLogger(tmp_path) as logger:
        run = lambda key: logger.tap(train, logger.init(key), **options)(key)
        jax.jit(jax.vmap(run))(keys)
    for seed, key in zip((5, 6), keys, strict=True):
        assert_same(sawlog.load(tmp_path / f"seed-{seed}"), of_tap(train, key, **options))


def test_calling_twice_does_not_trace_twice(tmp_path: pathlib.Path) -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(x)
        sawlog.log({"x": x})
        return x

    for folder in ("a", "b"):
        with SaveLogger(tmp_path / folder) as logger:
            for seed in range(2):
                logger.tap(f, logger.init(seed))(1.0)
    assert len(traces) == 1


def test_loggers_inside_of_spool_and_of_callbacks(tmp_path: pathlib.Path) -> None:
    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        return logger.spool(lambda x: (sawlog.log({"mine": x}), x)[1], logger.init(0))(x)

    with SaveLogger(tmp_path) as logger:
        assert list(sawlog.spool(f)(1.0)[1]) == ["x"]
        state = logger.init(1)
        sawlog.tap(f, lambda logs: logger.log(state, logs))(2.0)
    assert sawlog.load(tmp_path / "seed-0")["mine"].tolist() == [1, 2]
    assert sawlog.load(tmp_path / "seed-1")["x"] == 2


# -- what a kind of logger brings along ------------------------------------------------------------


class MemorySink:
    def __init__(self) -> None:
        self.records: list[Records] = []
        self.deeds: list[str] = []
        self.broken: Exception | None = None

    def write(self, records: Records) -> None:
        if self.broken is not None:
            raise self.broken
        self.records.append(records)

    def flush(self) -> None:
        self.deeds.append("flush")

    def close(self) -> None:
        self.deeds.append("close")


class MemoryLogger(Logger):
    """All that a new kind of logger needs."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: dict[str, MemorySink] = collections.defaultdict(MemorySink)

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> MemorySink:
        return self.sinks[name]


def test_another_kind_of_logger() -> None:
    with MemoryLogger() as logger:
        jax.jit(jax.vmap(lambda key: logger.tap(train, logger.init(key))(key)))(KEYS)
    assert list(logger.sinks) == seed_names()
    for seed, sink in enumerate(logger.sinks.values()):
        xs = [one["x"].values.tolist() for one in sink.records if "x" in one]
        assert xs == [[x] for x in by_hand(seed)["x"]]
        assert sink.deeds == ["close"]


def test_spool_writes_once() -> None:
    with MemoryLogger() as logger:
        jax.jit(jax.vmap(lambda key: logger.spool(train, logger.init(key))(key)))(KEYS)
    assert [len(sink.records) for sink in logger.sinks.values()] == [1] * SEEDS


def test_finish_and_flush_of_some_runs() -> None:
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(KEYS[:3])
    logger.flush(jax.tree.map(lambda x: x[1], states))
    logger.finish(jax.tree.map(lambda x: x[:2], states))
    assert [sink.deeds for sink in logger.sinks.values()] == [["close"], ["flush", "close"], []]
    logger.finish(states)
    logger.finish()
    logger.close()
    assert [sink.deeds.count("close") for sink in logger.sinks.values()] == [1, 1, 1]
    with pytest.raises(StoreClosedError, match=r"MemoryLogger is closed.*'seed-0'"):
        logger.init(0)


# -- what goes wrong -------------------------------------------------------------------------------


class Boom(Exception):
    pass


@pytest.mark.parametrize("method", ["spool", "tap", "log"])
def test_a_write_that_fails_outside_of_programs(method: str) -> None:
    """What the sink raised is raised, at once or by flush, and the run goes on."""
    with MemoryLogger() as logger:
        state = logger.init(3)
        logger.sinks["seed-3"].broken = Boom("disk on fire")
        calls = {
            "log": lambda: logger.log(state, {"x": 1}),
            "spool": lambda: logger.spool(train, state)(KEYS[0]),
            "tap": lambda: logger.tap(train, state)(KEYS[0]),
        }

        def call() -> None:
            calls[method]()
            logger.flush()

        with pytest.raises(Boom, match="disk on fire") as caught:
            call()
        if method != "log":
            assert any("background to the run 'seed-3'" in n for n in caught.value.__notes__)
        if method == "tap":
            assert "'start', 'key'" in caught.value.__notes__[0]
            assert "test_loggers.py" in caught.value.__notes__[0]
            assert "'seed-3'" in caught.value.__notes__[0]
        logger.sinks["seed-3"].broken = None
        logger.tap(train, state)(KEYS[0])
    assert logger.sinks["seed-3"].records


def test_a_write_that_fails_inside_of_a_program() -> None:
    """JAX raises it with a text that names the run and the log; closing works all the same."""
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(KEYS[:3])
    logger.sinks["seed-1"].broken = Boom("disk on fire")
    run = jax.jit(jax.vmap(lambda state, key: logger.tap(train, state)(key)))
    text = r"(?s)CallbackError: Boom: disk on fire .*'start', 'key' at .*test_loggers.*'seed-1'"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(run(states, KEYS[:3]))
    logger.close()
    assert [sink.deeds for sink in logger.sinks.values()] == [["close"]] * 3
    with MemoryLogger() as other:
        other.sinks["seed-0"].broken = Boom("again")
        mapped = jax.vmap(lambda key: other.spool(train, other.init(key))(key))
        with pytest.raises(CallbackError, match="Boom: again"):
            mapped(KEYS[:1])


def test_closing_that_fails_can_be_tried_again() -> None:
    class Stubborn(MemorySink):
        def close(self) -> None:
            if not self.deeds:
                self.deeds.append("failed")
                raise Boom("no space")
            super().close()

    logger = MemoryLogger()
    logger.sinks["seed-0"] = Stubborn()
    logger.init(0)
    logger.init(1)
    with pytest.raises(Boom, match="no space") as caught:
        logger.close()
    assert caught.value.__notes__ == ["sawlog: in the run 'seed-0'"]
    assert logger.sinks["seed-1"].deeds == ["close"]
    logger.close()
    assert logger.sinks["seed-0"].deeds == ["failed", "close"]
    other = MemoryLogger()
    other.sinks["seed-0"] = Stubborn()
    other.init(0)
    with pytest.raises(ZeroDivisionError) as divided, other:
        1 / 0  # noqa: B018
    assert "could not be closed either: no space" in divided.value.__notes__[0]
    other.close()


def test_logs_that_do_not_go_together(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        state = logger.init(0)
        logger.log(state, {"t": {"a": 1}})
        with pytest.raises(LogMismatchError, match=r"'t'.*structure"):
            logger.log(state, {"t": [1]})
        logger.log(state, {"t": {"a": 2}})
    assert sawlog.load(tmp_path / "seed-0")["t"]["a"].tolist() == [1, 2]


def test_a_run_that_is_finished(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        state = logger.init(0)
        logger.finish(state)
        for write in (
            lambda: logger.log(state, {"x": 1}),
            lambda: logger.spool(train, state)(KEYS[0]),
            lambda: logger.tap(train, state)(KEYS[0]),
        ):
            with pytest.raises(StoreClosedError, match=r"finished.*Hint: get a new state"):
                write()
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"StoreClosedError: No run has"):
            jax.block_until_ready(jax.jit(logger.tap(train, state))(KEYS[0]))


def test_arguments_of_the_wrong_kind(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path) as logger:
        state, several = logger.init(0), jax.vmap(logger.init)(KEYS[:3])
        for call in (logger.spool, logger.tap):
            with pytest.raises(ArgumentError, match=r"logger\.init\(key\) returned; got int"):
                call(train, 3)
            with pytest.raises(ArgumentError, match=r"the runs of 3 keys.*jax\.vmap"):
                call(train, several)
            with pytest.raises(ArgumentError, match="must be a function"):
                call(3, state)
        with pytest.raises(ArgumentError, match="the runs of 3 keys"):
            logger.log(several, {"x": 1})
        with pytest.raises(ArgumentError, match="takes a logdict or a dict, got list"):
            logger.log(state, [1])
        with pytest.raises(LogValueError, match=r"test_loggers.py.*'x'.*str"):
            logger.log(state, {"x": "text"})
        with pytest.raises(ArgumentError, match="buffer"):
            logger.tap(train, state, buffer=0)
        with pytest.raises(TypeError, match="nonsense"):
            logger.spool(train, state, nonsense=1)
        for name in ("finish", "flush"):
            with pytest.raises(ArgumentError, match=rf"{name} was called inside of a program"):
                jax.jit(lambda s, name=name: getattr(logger, name)(s))(state)


# -- the end ---------------------------------------------------------------------------------------

AT_EXIT = """
import sys, jax, jax.numpy as jnp, sawlog
from jax.sharding import PartitionSpec as P
from sawlog.loggers import SaveLogger

mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
logger = SaveLogger(sys.argv[1], interval=None)

def train(key):
    def body(x, i):
        sawlog.log({"x": x}, step=i)
        return x + 1, None
    return jax.lax.scan(body, 0, jnp.arange(300))[0]

run = jax.vmap(lambda key: logger.tap(train, logger.init(key))(key))
run = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
keys = jax.vmap(jax.random.key)(jnp.arange(4))
run(jax.device_put(keys, jax.NamedSharding(mesh, P("d"))))  # on several devices, it does not wait
%s
"""


@pytest.mark.parametrize(
    "end", ["del logger, run", pytest.param("raise SystemExit(3)", marks=pytest.mark.thorough)]
)
def test_runs_are_closed_when_the_program_ends(end: str, tmp_path: pathlib.Path) -> None:
    """Nobody waited for the result, and nobody closed the logger."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT % end, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == (3 if "Exit" in end else 0), done.stderr
    assert not re.search("Error|Warning", done.stderr)
    assert folders(tmp_path) == seed_names(4)
    for name in seed_names(4):
        assert sawlog.load(tmp_path / name)["x"].tolist() == list(range(300))


def test_flush_makes_it_readable(tmp_path: pathlib.Path) -> None:
    with SaveLogger(tmp_path, interval=None) as logger:
        state = logger.init(0)
        jax.jit(lambda: logger.log(state, {"x": 1.0}))()
        logger.flush(state)
        assert sawlog.load(tmp_path / "seed-0")["x"] == 1
        logger.log(state, {"x": 2.0})
        logger.flush()
        assert sawlog.load(tmp_path / "seed-0")["x"].tolist() == [1, 2]


class _Slow:
    """A sink without a lock: a write waits a moment whether another call comes meanwhile."""

    def __init__(self) -> None:
        self.inside, self.together = 0, False
        self.entered, self.disturbed = threading.Event(), threading.Event()

    def write(self, records: Records) -> None:
        del records
        self._enter(wait=True)

    def flush(self) -> None:
        self._enter()

    def close(self) -> None:
        self._enter()

    def _enter(self, wait: bool = False) -> None:
        self.inside += 1
        if self.inside > 1:
            self.together = True
            self.disturbed.set()
        self.entered.set()
        if wait:
            self.disturbed.wait(0.3)
        self.inside -= 1


@pytest.mark.turns(3)
@pytest.mark.parametrize("what", ["write", "flush", "close"])
def test_calls_of_one_run_wait_for_each_other(what: str) -> None:
    """A sink of a user need not be safe to share: its run calls it from one thread at a time."""
    sink = _Slow()

    class Own(Logger):
        def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Any:
            return sink

    logger = Own()
    state = logger.init(0)
    run = _runs.run_of(state.run)
    first = threading.Thread(target=logger.log, args=(state, {"x": 1.0}))
    first.start()
    assert sink.entered.wait(60)
    {"write": lambda: run.write(logdict({"x": 0.0})), "flush": run.flush, "close": run.close}[
        what
    ]()
    first.join(60)
    assert not sink.together
    logger.close()


def test_several_threads(tmp_path: pathlib.Path) -> None:
    """One compiled program, one logger, a run for each thread."""
    start, failures = threading.Barrier(4), []

    def work(seed: int) -> None:
        try:
            start.wait(30)
            state = logger.init(seed)
            for _ in range(3):
                logger.tap(train, state)(KEYS[seed])
        except BaseException as error:
            failures.append(error)

    with SaveLogger(tmp_path) as logger:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []
    for seed in range(4):
        found = sawlog.load(tmp_path / f"seed-{seed}")
        assert found["x"].tolist() == 3 * by_hand(seed)["x"]
