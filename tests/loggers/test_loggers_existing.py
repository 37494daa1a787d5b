"""Loggers: runs that exist, the options of spool and tap, and other kinds."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog
from sawlog.errors import (
    AppendWarning,
    ArgumentError,
    StoreClosedError,
    StoreExistsError,
)
from sawlog.loggers import CsvLogger, JsonlLogger, SaveLogger
from tests.jax.saved import assert_same

from .logger_programs import KEYS, SEEDS, MemoryLogger, by_hand, of_tap, seed_names, train

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


@pytest.mark.parametrize("kind", [SaveLogger, CsvLogger, JsonlLogger])
def test_another_program_goes_on_only_with_the_same_config(kind: Any, tmp_path: Any) -> None:
    """What was refused holds nothing open: the run goes on with its own config right after."""

    def write(**config: Any) -> None:
        with kind(tmp_path) as logger:
            logger.log(logger.init(7, **config), {"x": 1.0})

    refused: list[Any] = []
    write(lr=0.1)
    every = [path for path in tmp_path.rglob("*") if "tmp" not in path.relative_to(tmp_path).parts]
    files = sorted(every)
    before = {path: path.read_bytes() for path in files if path.suffix in (".csv", ".jsonl")}
    for config in ({"lr": 0.2}, {}, {"lr": 0.1, "width": 3}):
        if kind is SaveLogger and not config:
            continue  # without a config it goes on with that of the store
        with pytest.raises(StoreExistsError, match="was started with") as caught:
            write(**config)
        assert all(path.read_bytes() == content for path, content in before.items())
        refused.append(caught)  # with its frames, and what they hold
    with pytest.warns(AppendWarning):
        write(lr=0.1)
    if kind is not SaveLogger:
        (rows,) = (path.read_text().splitlines() for path in before)
        assert len(rows) == 2 + (kind is CsvLogger)


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


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_spool(option: str, tmp_path: pathlib.Path) -> None:
    options, keys = OPTIONS[option], KEYS[5:7]
    with SaveLogger(tmp_path) as logger:
        run = lambda key: logger.spool(train, logger.init(key), **options)(key)
        jax.jit(jax.vmap(run))(keys)
    for seed, key in zip((5, 6), keys, strict=True):
        found = sawlog.load(tmp_path / f"seed-{seed}")
        assert_same(found, sawlog.spool(train, **options)(key)[1])


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
