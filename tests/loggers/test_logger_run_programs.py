"""`logger.run`: programs of many seeds, and what people see of them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog import sinks
from sawlog.errors import (
    ArgumentError,
    StoreExistsError,
    UnmatchedNameWarning,
)
from sawlog.loggers import CsvLogger, JsonlLogger, MemoryLogger, SaveLogger
from sawlog.records import Entries, Records
from sawlog.sinks._values import XAxis, groups
from tests.jax.saved import assert_same

KEYS = jax.vmap(jax.random.key)(jnp.arange(4))


def train(key: Any, lr: Any = 1.0) -> Any:
    """Logs in a loop, and in a branch that some seeds never take."""
    x = jax.random.key_data(key)[1].astype(jnp.float32)

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"x": x, "loss": {"policy": x * lr}}, step=i)
        jax.lax.cond(x > 3, lambda: sawlog.log({"big": x}, step=i), lambda: None)
        return x + 1, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


# -- logger.run ------------------------------------------------------------------------------------


def test_run_for_many_seeds(tmp_path: Any) -> None:
    traces = []

    def counted(key: Any, lr: Any) -> Any:
        traces.append(key)
        return train(key, lr)

    with SaveLogger(tmp_path) as logger:
        for _ in range(2):
            out = logger.run(counted, config=lambda key, lr: {"lr": lr})(KEYS, 0.5)
        assert len(traces) == 1
        assert out.tolist() == [3, 4, 5, 6]
        assert logger.run(counted, name="one", return_logs=True)(KEYS[3], 0.5)[0] == 6
    for seed in range(4):
        once = sawlog.spool(train)(KEYS[seed], 0.5)[1]
        assert_same(sawlog.load(tmp_path / f"seed-{seed}"), once + once)
        meta = sawlog.store.open(tmp_path / f"seed-{seed}").meta
        assert meta == {"key": [0, seed], "config": {"lr": 0.5}}
    assert_same(sawlog.load(tmp_path / "one-seed-3"), sawlog.spool(train)(KEYS[3], 0.5)[1])


SEEDS: dict[str, Any] = {
    "typed keys": KEYS,
    "raw keys": jax.vmap(jax.random.PRNGKey)(jnp.arange(4)),
    "seeds": jnp.arange(4),
    "numpy": np.arange(4),
    "range": range(4),
    "two axes": KEYS.reshape(2, 2),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_seeds_of_every_kind(kind: str) -> None:
    def f(seed: Any, x: Any, y: Any, how: str) -> Any:
        sawlog.log({"y": y})
        return x + y if how == "add" else None

    with MemoryLogger() as logger:
        shape = (2, 2) if kind == "two axes" else (4,)
        ys = jnp.arange(4.0).reshape(shape)
        run = logger.run(f, in_axes=(0, None, 0, None), config=lambda s, x, y, how: {"y": y})
        out = run(SEEDS[kind], 10.0, ys, "add")
        assert out.shape == shape
        assert np.ravel(out).tolist() == [10, 11, 12, 13]
        assert list(logger.runs) == [f"seed-{i}" for i in range(4)]
        assert [run.about["config"]["y"] for run in logger._open.values()] == [0, 1, 2, 3]
        assert [sink.logs["y"].tolist() for sink in logger.runs.values()] == [[0], [1], [2], [3]]


def test_run_takes_the_options_of_spool_and_refuses_what_is_wrong() -> None:
    with MemoryLogger() as logger:
        logger.run(train, argnames="x", interval=2, prefix="p/")(KEYS[:2])
        logs = logger.runs["seed-1"].logs
        assert {name: each.tolist() for name, each in logs.items()} == {"p/x": [1, 3]}
        for keys in (1.5, jnp.ones(3)):
            with pytest.raises(ArgumentError, match="PRNG keys or seeds"):
                logger.run(train)(keys)
        with pytest.raises(ArgumentError, match="with 0 for the keys first"):
            logger.run(train, in_axes=0)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="has 3 axes, and the function was called with 1"):
            logger.run(train, in_axes=(0, None, None))(KEYS)
        with pytest.raises(ArgumentError, match="must be a function"):
            logger.run(KEYS)
        with pytest.raises(TypeError, match="nonsense"):
            logger.run(train, nonsense=1)
        with pytest.raises(ArgumentError, match=r"run was called inside of a .*logger\.init"):
            jax.jit(logger.run(train))(KEYS)


def test_a_run_that_may_not_be_there_is_refused_before_anything_runs(tmp_path: Any) -> None:
    ran: list[Any] = []

    def f(key: Any) -> Any:
        ran.append(key)
        sawlog.log({"x": 1.0})
        return key

    with SaveLogger(tmp_path, exists="error") as logger:
        logger.run(f)(KEYS)
    ran.clear()
    with SaveLogger(tmp_path, exists="error") as logger:
        with pytest.raises(StoreExistsError):
            logger.run(f)(KEYS)
        assert not ran


CACHED = """
import sys, jax, jax.numpy as jnp, sawlog
from sawlog.loggers import SaveLogger

seen = {"hits": 0, "misses": 0}
def count(event, **_):
    kind = event.removeprefix("/jax/compilation_cache/cache_")
    if kind in seen:
        seen[kind] += 1
jax.monitoring.register_event_listener(count)

def train(key):
    def body(x, i):
        sawlog.log({"x": x}, step=i)
        return x + jax.random.uniform(key), None
    return jax.lax.scan(body, 0.0, jnp.arange(5))[0]

keys = jax.vmap(jax.random.key)(jnp.arange(3))
seen.update(hits=0, misses=0)
with SaveLogger(sys.argv[1]) as logger:
    logger.run(train)(keys)
print(seen["hits"], seen["misses"])
with SaveLogger(sys.argv[1] + "-spool") as logger:
    def calling_back(key):
        return logger.spool(train, logger.init(key))(key)
    jax.jit(jax.vmap(calling_back))(keys)
"""


@pytest.mark.thorough
def test_a_second_process_finds_the_program_in_the_cache(tmp_path: Any) -> None:
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def start(folder: str) -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", CACHED, str(tmp_path / folder)],
            capture_output=True,
            text=True,
            env={**os.environ, **own},
        )
        assert done.returncode == 0, done.stderr
        return list(map(int, done.stdout.split()))

    hits, misses = start("one")
    assert (hits, misses > 0) == (0, True)
    assert start("two") == [misses, 0]
    kept = {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir()}
    assert "jit_train" in kept
    # Older JAX does not keep programs with callbacks. Where it does, they must do the same.
    assert ("jit_calling_back" in kept) == (jax.__version_info__ >= (0, 12))
    for seed in range(3):
        folders = ("one", "two", "one-spool", "two-spool")
        first, *others = (sawlog.load(tmp_path / name / f"seed-{seed}") for name in folders)
        for other in others:
            assert_same(first, other)


# -- what people see -------------------------------------------------------------------------------


def test_nested_names_are_paths(tmp_path: Any) -> None:
    value = {"loss": {"policy": 1.0, "it's": [2.0, (3.0,)]}}
    expected = {"loss/it's/0": 2, "loss/it's/1/0": 3, "loss/policy": 1}
    with MemoryLogger() as memory:
        memory.log(memory.init(0), value)
        logs = memory.runs["seed-0"].logs
        assert {name: each.tolist() for name, each in logs.items()} == {
            name: [number] for name, number in expected.items()
        }
    for logger in (CsvLogger(tmp_path), JsonlLogger(tmp_path)):
        with logger:
            state = logger.init(0)
            logger.log(state, value)
            with pytest.raises(sawlog.errors.LogMismatchError, match=r"'loss/policy'.*rename one"):
                logger.log(state, {"loss/policy": 2.0})
    lines = map(json.loads, (tmp_path / "seed-0.jsonl").read_text().splitlines())
    assert {line["name"]: line["value"] for line in lines} == expected
    rows = csv.DictReader((tmp_path / "seed-0.csv").read_text().splitlines())
    assert {row["name"]: float(row["value"]) for row in rows} == expected


def records(**axes: Any) -> Records:
    steps = {axis: np.asarray(array) for axis, array in axes.items()}
    return Records({"loss": Entries(np.arange(2.0), steps)})


def test_the_x_axis() -> None:
    def axis(own: Records, x: XAxis | None = None) -> Any:
        (group,) = groups(own, {}, images=True, histograms=True, x=x)
        return group.x, list(group.steps), sorted(group.others)

    two = records(update=[3, 4], minibatch=[1, 2])
    assert axis(two) == ("update", [3, 4], ["minibatch"])
    chosen = XAxis("minibatch")
    assert axis(two, chosen) == ("minibatch", [1, 2], ["update"])
    assert axis(records(epoch=[5, 6]), chosen) == ("epoch", [5, 6], [])
    assert axis(records(epoch=[0.5, 1.5])) == ("epoch", [0, 1], ["epoch"])
    chosen.warn()  # some log has it
    wrong = XAxis("updates")
    assert axis(two, wrong)[0] == "update"
    with pytest.warns(UnmatchedNameWarning, match=r"x='updates'.*did you mean 'update'"):
        wrong.warn()
    wrong.warn()  # once
    with pytest.raises(ArgumentError, match="name of a step axis"):
        XAxis(3)  # type: ignore[arg-type]


def test_an_x_axis_that_no_log_has_is_reported_once_for_all_runs(tmp_path: Any) -> None:
    pytest.importorskip("tensorboard")
    from sawlog.loggers import TensorBoardLogger

    def program() -> None:
        with TensorBoardLogger(tmp_path, x="updates", background=False) as logger:
            for seed in range(3):
                logger.log(logger.init(seed), {"loss": 1.0}, update_step=seed)

    with pytest.warns(UnmatchedNameWarning, match=r"did you mean 'update_step'") as caught:
        program()
    assert len([each for each in caught if each.category is UnmatchedNameWarning]) == 1


def test_patterns_that_match_nothing_are_reported() -> None:
    names = {"train/loss['policy']": {"logdict": {"key": "train/loss"}}, "lr": {}}
    logged = Records({name: Entries(np.ones(2), attrs=attrs) for name, attrs in names.items()})
    memory = sinks.MemorySink()

    def select() -> None:
        sink = sinks.Select(memory, names=["train/loss/pol*", "trian/*"], exclude="lrr")
        for _ in range(2):
            sink.write(logged)
            sink.flush()
        sink.close()

    with pytest.warns(UnmatchedNameWarning) as caught:
        select()
    said = [str(each.message) for each in caught]
    assert len(said) == 2
    assert "'trian/*'" in said[0]
    assert "'lrr'. Hint: did you mean 'lr'" in said[1]
    assert list(memory.logs) == ["train/loss/policy"]
    reduce = sinks.Reduce(sinks.MemorySink(), 2, {"los": "mean", "*": "last"})
    reduce.write(logged)
    with pytest.warns(UnmatchedNameWarning, match="Reduce: no logged name matches 'los'"):
        reduce.close()
