"""The options of `logger.spool` and `logger.tap`: three seeds at once, each run on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.loggers import MemoryLogger, SaveLogger

SEEDS, STEPS = 3, 11


def train(seed: Any) -> Any:
    """Always two names together, and one only in some steps, other ones in each run."""

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"loss": x, "acc": 100 - x}, step=i, tags="main")
        odd = (i + seed) % 3 == 1
        lax.cond(odd, lambda: sawlog.log({"rare": 2 * x}, step=i, tags="debug"), lambda: None)
        return x + seed + 1, None

    return lax.scan(body, 10 * seed, jnp.arange(STEPS))[0]


Entries = dict[str, list[tuple[float, float]]]
"""By name, the value and the step of each entry."""


def pure(seed: int) -> Entries:
    """The same in plain Python."""
    entries: Entries = {"loss": [], "acc": [], "rare": []}
    x = 10 * seed
    for i in range(STEPS):
        entries["loss"].append((x, i))
        entries["acc"].append((100 - x, i))
        if (i + seed) % 3 == 1:
            entries["rare"].append((2 * x, i))
        x += seed + 1
    return entries


def only(*names: str) -> Callable[[Entries], Entries]:
    return lambda entries: {name: entries[name] for name in names}


def each(change: Callable[[list], list]) -> Callable[[Entries], Entries]:
    return lambda entries: {name: change(some) for name, some in entries.items()}


def mean(some: list) -> tuple[float, float]:
    value, step = np.mean(some, axis=0)
    return float(value), float(step)


def total(some: list) -> tuple[float, float]:
    return sum(value for value, _ in some), some[-1][1]


def in_pieces(size: int, of: Callable[[list], Any]) -> Callable[[list], list]:
    return lambda some: [of(some[i : i + size]) for i in range(0, len(some), size)]


SPOOL: dict[str, tuple[dict[str, Any], Callable[[Entries], Entries]]] = {
    "argnames": ({"argnames": ["acc", "rare"]}, only("acc", "rare")),
    "tags": ({"tags": "debug"}, only("rare")),
    "prefix": ({"prefix": "p/"}, lambda entries: {f"p/{k}": v for k, v in entries.items()}),
    "interval": ({"interval": 3}, each(lambda some: some[::3])),
    "reduce": ({"reduce": "mean"}, each(lambda some: [mean(some)])),
    "reduce by name": (
        {"reduce": {"acc": "sum"}, "interval": 2, "prefix": "p/", "tags": "main"},
        lambda entries: {"p/loss": entries["loss"][::2], "p/acc": [total(entries["acc"][::2])]},
    ),
}
TAP = {
    **SPOOL,
    "buffer": ({"buffer": 4}, lambda entries: entries),
    "buffer, interval": ({"buffer": 3, "interval": 2}, each(lambda some: some[::2])),
    "buffer, reduce": ({"buffer": 2, "reduce": "mean"}, each(in_pieces(2, mean))),
    "all": (
        {
            "buffer": 2,
            "interval": 2,
            "reduce": {"rare": "sum"},
            "argnames": ["rare", "loss"],
            "prefix": "p/",
        },
        lambda entries: {
            "p/loss": entries["loss"][::2],
            "p/rare": in_pieces(2, total)(entries["rare"][::2]),
        },
    ),
}
CASES = [*(("spool", case) for case in SPOOL), *(("tap", case) for case in TAP)]


def run_all(logger: Any, way: str, options: Any) -> None:
    def run(seed: Any) -> Any:
        wrap = logger.spool if way == "spool" else logger.tap
        return wrap(train, logger.init(seed), **options)(seed)

    with logger:
        out = jax.jit(jax.vmap(run))(jnp.arange(SEEDS))
    assert out.tolist() == [10 * seed + STEPS * (seed + 1) for seed in range(SEEDS)]


def check(found: Entries, expected: Entries) -> None:
    assert found.keys() == expected.keys()
    for name, entries in expected.items():
        np.testing.assert_allclose(found[name], np.array(entries, np.float64), 1e-6)


def in_memory(run: Any) -> Entries:
    found = {}
    for name, entries in run.records.items():
        if name.endswith("@dropped"):  # how many entries spool had no room for
            assert not entries.values.any()
            continue
        rows = slice(None) if entries.mask is None else entries.mask
        values, steps = entries.values[rows], entries.steps["step"][rows]
        found[name] = list(zip(values.tolist(), steps.tolist(), strict=True))
    return found


@pytest.mark.parametrize(("way", "case"), CASES)
def test_each_run_has_its_own(way: str, case: str) -> None:
    options, change = (SPOOL if way == "spool" else TAP)[case]
    memory = MemoryLogger()
    run_all(memory, way, options)
    assert sorted(memory.runs) == [f"seed-{seed}" for seed in range(SEEDS)]
    for seed in range(SEEDS):
        check(in_memory(memory.runs[f"seed-{seed}"]), change(pure(seed)))


def test_means_of_pieces_in_a_store(tmp_path: Any) -> None:
    options, change = TAP["buffer, reduce"]
    run_all(SaveLogger(tmp_path), "tap", options)
    for seed in range(SEEDS):
        logs = sawlog.load(tmp_path / f"seed-{seed}")
        found = {
            name: list(zip(logs[name].tolist(), logs.step[name].tolist(), strict=True))
            for name in logs
        }
        check(found, change(pure(seed)))


def test_outside_of_any_transformation() -> None:
    with MemoryLogger() as memory:
        memory.tap(train, memory.init(2), interval=4)(2)
        check(in_memory(memory.runs["seed-2"]), each(lambda some: some[::4])(pure(2)))


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 1}], ids=str)
def test_custom_vmap_over_runs(options: dict[str, Any]) -> None:
    """A function with a rule of its own for vmap, mapped over runs."""

    @jax.custom_batching.custom_vmap
    def double(x: Any) -> Any:
        sawlog.log({"x": x})
        return 2 * x

    @double.def_vmap
    def mapped(size: int, is_mapped: Any, x: Any) -> Any:
        return 2 * x, True

    with MemoryLogger() as memory:
        states = jax.vmap(memory.init)(jnp.arange(SEEDS))
        xs = jnp.arange(SEEDS) * 10.0
        out = jax.vmap(lambda state, x: memory.tap(double, state, **options)(x))(states, xs)
    assert out.tolist() == [0, 20, 40]
    for seed in range(SEEDS):
        assert memory.runs[f"seed-{seed}"].records["x"].values.tolist() == [10 * seed]


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 2}], ids=str)
def test_what_a_logger_takes_can_be_kept_for_others(options) -> None:
    def f(x):
        for i in range(3):
            sawlog.log({"x": x + i}, step=i)
        return x

    with MemoryLogger() as logger:
        state = logger.init(0)
        tapped = logger.tap(f, state, keep_logs=True, **options)
        assert sawlog.spool(tapped)(1.0)[1]["x"].tolist() == [1.0, 2.0, 3.0]
        assert list(sawlog.spool(logger.tap(f, state, **options))(1.0)[1]) == []


@pytest.mark.parametrize("how", ["spool", "tap"])
def test_one_function_with_one_prefix_and_then_another(how: str) -> None:
    def f(x: Any) -> None:
        sawlog.log({"x": x})

    with MemoryLogger() as logger:
        state = logger.init(0)
        for prefix in ("a/", "b/", "", "a/"):
            getattr(logger, how)(f, state, prefix=prefix)(1.0)
        logger.flush()
        found = {name: len(values) for name, values in logger.runs["seed-0"].logs.items()}
    assert found == {"a/x": 2, "b/x": 1, "x": 1}
