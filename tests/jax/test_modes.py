"""A part of the table, and every option, under settings of JAX that forbid or change something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import sawlog
from tests.thorough import THOROUGH, one_of

from .cases import CASES
from .test_cases import WAYS, ways_of

pytestmark = pytest.mark.turns(4)  # eight modes: each with every ninth option and row

MODES: dict[str, Callable[[], Any]] = {
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "x64": lambda: jax.enable_x64(True),
    "checks": lambda: jax.enable_checks(True),
    "leaks": jax.checking_leaks,
    "transfers": lambda: jax.transfer_guard("disallow"),
    "nans": lambda: jax.debug_nans(True),
    "no jit": jax.disable_jit,
}

# --- Every option ---------------------------------------------------------------------------------

XS = np.arange(4, dtype=np.float32)


def program(xs):
    """A log in a loop, in a branch, in a loop of unknown length; floats, integers, steps."""

    def body(c, x):
        c = c + x
        sawlog.log({"c": c, "n": (x > 1).astype(np.int32)}, step=x)
        lax.cond(x > 1, lambda: sawlog.log({"big": x}), lambda: None)
        return c, None

    def turn(c):
        sawlog.log("w", c)
        return c - np.float32(1)

    c = lax.scan(body, xs[0], xs)[0]
    return lax.while_loop(lambda c: c > 0, turn, c)


LOGGED = {
    "c": np.float32([0, 1, 3, 6]),
    "n": np.int32([0, 0, 1, 1]),
    "big": np.float32([2, 3]),
    "w": np.float32([6, 5, 4, 3, 2, 1]),
}

OPTIONS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Any]]] = {
    "capacity": ({"capacity": 9}, lambda x: x),
    "window": ({"window": 2}, lambda x: x[-2:]),
    "interval": ({"interval": 2, "capacity": 9}, lambda x: x[::2]),
    "keep last": ({"capacity": {"w": 3, "c": 9, "n": 9, "big": 9}, "keep": "last"}, None),
    "mean": ({"reduce": "mean"}, np.mean),
    "std": ({"reduce": "std"}, np.std),
    "sum": ({"reduce": "sum"}, np.sum),
    "min": ({"reduce": "min"}, np.min),
    "max": ({"reduce": "max"}, np.max),
    "first": ({"reduce": "first"}, lambda x: x[0]),
    "last": ({"reduce": "last"}, lambda x: x[-1]),
    "count": ({"reduce": "count"}, len),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_spool(mode: str, name: str) -> None:
    options, reduce = OPTIONS[name]
    args = jax.device_put(XS)
    ways = [lambda f: f, jax.jit, jax.vmap]
    if not THOROUGH:
        ways = [one_of(ways, mode + name)]
    for way in ways:
        lanes = jax.device_put(XS[None]) if way is jax.vmap else args
        with MODES[mode]():
            out, logs = way(sawlog.spool(program, **options))(lanes)
        assert float(np.squeeze(out)) == 0
        assert set(logs) == set(LOGGED)
        if reduce is None:
            np.testing.assert_allclose(np.squeeze(logs["w"]), LOGGED["w"][-3:])
            continue
        for key, entries in LOGGED.items():
            value = np.asarray(logs.mask.get(key, True)) if way is jax.vmap else True
            found = np.squeeze(np.asarray(logs[key]))
            if way is jax.vmap and key in logs.mask:
                found = found[np.squeeze(value)] if np.ndim(found) else found
            np.testing.assert_allclose(found, np.squeeze(reduce(entries)), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{}, {"buffer": 3}, {"interval": 2}, {"reduce": "mean"}], ids=str
)
def test_options_of_tap(mode: str, options: dict[str, Any]) -> None:
    calls: list = []
    args = jax.device_put(XS)
    with MODES[mode]():
        tapped = sawlog.tap(program, calls.append, argnames=["c", "w"], **options)
        for _ in range(2):
            assert float(tapped(args)) == 0
    for key in ("c", "w"):
        found = [np.ravel(logs[key]) for logs in calls if key in logs]
        expected = LOGGED[key]
        if "interval" in options:
            expected = expected[::2]
        if "reduce" in options:
            expected = expected.mean(keepdims=True)
        np.testing.assert_allclose(np.concatenate(found), np.tile(expected, 2), rtol=1e-6)


@pytest.mark.parametrize("around", [lambda f: f, jax.vmap], ids=["alone", "vmap"])
@pytest.mark.parametrize("options", [{}, {"buffer": 3}, {"reduce": "mean"}], ids=str)
def test_conditions_that_log_without_jit(options: dict[str, Any], around: Any) -> None:
    """With `disable_jit`, JAX first tries a condition in Python, and gives up on a tracer."""

    def halve(x):
        def condition(x):
            sawlog.log({"x": x})
            return x > 1

        return lax.while_loop(condition, lambda x: x / 2, x)

    seen: list[float] = []
    x = np.float32([4]) if around is jax.vmap else np.float32(4)
    expected = [7 / 3] if options.get("reduce") else [4, 2, 1]
    with jax.disable_jit():
        bound = options if "reduce" in options else {"capacity": 9}
        _, logs = around(sawlog.spool(halve, **bound))(x)
        around(sawlog.tap(halve, lambda logs: seen.extend(np.ravel(logs["x"])), **options))(x)
        jax.effects_barrier()
    values, mask = np.ravel(logs["x"]), np.ravel(logs.mask["x"])
    np.testing.assert_allclose(values[mask], expected, rtol=1e-6)
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"reduce": "last"}], ids=str)
@pytest.mark.parametrize("size", [(), (2,)], ids=["one", "two"])
def test_lanes_with_keys_without_jit(size: tuple[int, ...], options: dict[str, Any]) -> None:
    """Without a compiled program a callback gets keys as such."""
    key = jax.random.key(0)
    keys = jax.random.split(key, size) if size else key
    seen: list = []

    def collect(logs):
        seen.append(np.ravel(jax.random.key_data(logs["key"])))

    with jax.disable_jit():
        jax.vmap(sawlog.tap(lambda x: sawlog.log({"key": keys}), collect, **options))(XS)
        jax.effects_barrier()
    np.testing.assert_array_equal(seen, [np.ravel(jax.random.key_data(keys))] * len(XS))


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 2}], ids=str)
def test_keys_under_a_transfer_guard(options: dict[str, Any]) -> None:
    """Keys of a callback are on a device, where they are put explicitly."""
    keys = jax.random.split(jax.random.key(0), 3)

    def loop(keys):
        return lax.scan(lambda c, key: (sawlog.log({"key": key}), (c, None))[1], 0, keys)[0]

    seen: list = []

    def collect(logs):
        seen.append(np.reshape(jax.random.key_data(logs["key"]), (-1, 2)))

    jax.block_until_ready(keys)
    with MODES["transfers"]():
        sawlog.tap(loop, collect, **options)(keys)
        jax.effects_barrier()
    expected = np.asarray(jax.random.key_data(keys))
    np.testing.assert_array_equal(np.concatenate(seen), expected[:: options.get("interval", 1)])


@pytest.mark.parametrize("mode", MODES)
def test_logger(mode: str) -> None:
    from sawlog.loggers import MemoryLogger

    args = jax.device_put(XS)
    key = jax.random.key(0)
    logger = MemoryLogger()
    state = logger.init(key)
    with MODES[mode]():
        logger.tap(program, state, argnames="c")(args)
        logger.spool(program, state, argnames="c")(args)
    logger.finish()
    (run,) = logger.runs.values()
    np.testing.assert_allclose(np.ravel(run.logs["c"]), np.tile(LOGGED["c"], 2))


# --- Rows of the table ----------------------------------------------------------------------------

#: Rows whose own programs do what a mode forbids, and why.
NOT_MEANT = {
    "strict promotion": "programs that add integers to floats",
    "rank promotion": "programs that add vectors to matrices",
    "x64": "answers in 32 bits",
    "transfers": "programs and answers that hold numpy arrays and numbers",
    "nans": "programs that log nan on purpose",
    "no jit": "programs that need jit to mean anything",
}


#: Programs in which JAX itself finds a leak, also without sawlog.
LEAKS_OF_JAX = {"grad_of_shard_map"}


def runs_plainly(case: Any, mode: str) -> bool:
    """Whether the program without any transformation works in this mode."""
    try:
        with MODES[mode]():
            jax.block_until_ready(case.fun(*case.args, **case.kwargs))
            if case.jit and not case.static_argnums:
                jax.block_until_ready(jax.jit(case.fun)(*case.args, **case.kwargs))
    except Exception:
        return False
    return True


ROWS = [
    name
    for i, (name, case) in enumerate(CASES.items())
    if case.ways is None and not case.spool_error and (THOROUGH or i % 20 == 0)
]


@pytest.mark.parametrize("mode", ["strict promotion", "rank promotion", "checks", "leaks", "nans"])
@pytest.mark.parametrize("row", ROWS)
def test_rows(mode: str, row: str) -> None:
    case = CASES[row]
    names = [name for name in ("spool", "jit_spool", "tap") if name in ways_of(case, thorough=True)]
    name = names[len(row + mode) % len(names)]
    if not runs_plainly(case, mode):
        known = mode in NOT_MEANT or (mode == "leaks" and row in LEAKS_OF_JAX)
        assert known, f"{row} does not run with {mode} even without logs"
        return
    with MODES[mode](), contextlib.ExitStack():
        WAYS[name](case)


def test_most_rows_run_in_most_modes() -> None:
    """Or the test above would say nothing."""
    for mode in ("strict promotion", "rank promotion"):
        assert sum(runs_plainly(CASES[row], mode) for row in ROWS) > len(ROWS) / 3, mode
