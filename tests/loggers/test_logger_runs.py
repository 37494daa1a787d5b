"""Runs: what they are called, and what happens if one is there already."""

from __future__ import annotations

import csv
import json
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import (
    AppendWarning,
    ArgumentError,
    StoreError,
    StoreExistsError,
)
from sawlog.loggers import CsvLogger, JsonlLogger, MemoryLogger, MultiLogger, SaveLogger

KEYS = jax.vmap(jax.random.key)(jnp.arange(4))


# -- names and groups ------------------------------------------------------------------------------


def test_names_and_groups(tmp_path: Any) -> None:
    memory = MemoryLogger()
    several = MultiLogger(memory, CsvLogger(tmp_path), SaveLogger(tmp_path / "store"))
    with several as logger:
        init = lambda key: logger.init(key, name="ppo", group="sweep 3", lr=0.5)
        states = jax.jit(jax.vmap(init))(KEYS[:2])
        jax.vmap(lambda state: logger.log(state, {"x": 1.0}))(states)
        logger.log(logger.init(0, name="ppo"), {"x": 2.0})
        logger.log(logger.init(0, group="sweep 3"), {"x": 3.0})
        logger.log(logger.init(0), {"x": 4.0})
    names = ["sweep 3/ppo-seed-0", "sweep 3/ppo-seed-1", "ppo-seed-0", "sweep 3/seed-0", "seed-0"]
    assert sorted(memory.runs) == sorted(names)
    values = [memory.runs[name].logs["x"].tolist() for name in names]
    assert values == [[1], [1], [2], [3], [4]]
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.csv")]
    assert sorted(found) == sorted(f"{name}.csv" for name in names)
    meta = sawlog.store.open(tmp_path / "store" / "sweep 3" / "ppo-seed-1").meta
    assert meta == {"key": [0, 1], "config": {"lr": 0.5}, "name": "ppo", "group": "sweep 3"}
    assert sawlog.store.open(tmp_path / "store" / "seed-0").meta == {"key": [0, 0], "config": {}}


BAD = ["", ".", "..", "../x", "a/b", "a\\b", "/tmp", "a\0", "a\nb", " a", "x" * 161, ".h", 3, "a:b"]


@pytest.mark.parametrize("bad", BAD)
def test_names_that_no_folder_can_have(bad: Any, tmp_path: Any) -> None:
    with SaveLogger(tmp_path) as logger:
        for option in ("name", "group"):
            with pytest.raises(ArgumentError, match=rf"`{option}` must be a string.*Hint"):
                logger.init(0, **{option: bad})
    assert not list(tmp_path.iterdir())


def test_groups_that_are_called_like_runs_and_traced_names(tmp_path: Any) -> None:
    with SaveLogger(tmp_path) as logger:
        for group in ("seed-0", "ppo-seed-1", logger.name_of(jax.random.split(KEYS[0])[0])):
            with pytest.raises(ArgumentError, match="looks like the name of a run"):
                logger.init(0, group=group)
        with pytest.raises(ArgumentError, match="Tracer"):
            jax.jit(lambda x: logger.init(0, name=x))(1)
    assert not list(tmp_path.iterdir())


# -- runs that are there ---------------------------------------------------------------------------


KINDS: dict[str, Any] = {"store": SaveLogger, "csv": CsvLogger, "jsonl": JsonlLogger}


@pytest.mark.parametrize(("kind", "way"), [("store", "vmap"), ("csv", "loop"), ("jsonl", "vmap")])
def test_appending_is_said_once(kind: str, way: str, tmp_path: Any) -> None:
    count = 12

    def program() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with KINDS[kind](tmp_path) as logger:
                run = lambda seed: logger.log(logger.init(seed), {"x": seed})
                if way == "vmap":
                    jax.jit(jax.vmap(run))(jnp.arange(count))
                    jax.effects_barrier()
                else:
                    for seed in range(count):
                        run(seed)
                logger.finish()
                logger.log(logger.init(0), {"x": 0})  # what it wrote itself is not news
        assert all(each.category is AppendWarning for each in caught)
        return [str(each.message) for each in caught]

    assert program() == []
    said = program()
    assert len(said) == {"vmap": 1, "loop": 2}[way]
    assert "appends to" in said[0]
    assert "exists='replace'" in said[0]
    assert f"{12 if way == 'vmap' else 11} runs that existed before" in said[-1]
    assert said[-1].count("seed-") == 8


def numbers(kind: str, path: Any) -> list[float]:
    if kind == "store":
        return np.ravel(sawlog.load(path / "seed-0")["x"]).tolist()
    if kind == "csv":
        rows = csv.DictReader((path / "seed-0.csv").read_text().splitlines())
        return [float(row["value"]) for row in rows]
    return [json.loads(line)["value"] for line in (path / "seed-0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_logger_never_deletes_what_it_wrote(kind: str, tmp_path: Any) -> None:
    for _ in range(2):
        with KINDS[kind](tmp_path, exists="replace") as logger:
            run = jax.jit(lambda x, logger=logger: logger.log(logger.init(0), {"x": x}))
            for x in (1.0, 2.0):
                run(x)
            logger.finish()
            run(3.0)
            logger.finish()
            with pytest.raises(StoreExistsError, match="cannot continue with"):
                logger.init(0, lr=1)
        assert numbers(kind, tmp_path) == [1, 2, 3]


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", ["plain", "multi first", "multi second", "link"])
def test_a_run_is_replaced_when_the_one_before_is_closed(
    kind: str, around: str, tmp_path: Any
) -> None:
    """A second logger may not have what the first still writes, whatever is around either."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    place = tmp_path / ("link" if around == "link" else "runs")
    first: Any = KINDS[kind](tmp_path / "runs")
    first = MultiLogger(MemoryLogger(), first) if around == "multi first" else first
    state = first.init(0)
    first.log(state, {"x": 1.0})
    for refused in (True, False):
        second: Any = KINDS[kind](place, exists="replace")
        second = MultiLogger(MemoryLogger(), second) if around == "multi second" else second
        if refused:
            with pytest.raises(StoreError, match=r"being written(?s:.*)Hint"):
                second.init(0)
            first.log(state, {"x": 2.0})
            first.close()
            assert numbers(kind, tmp_path / "runs") == [1, 2]
        else:
            second.log(second.init(0), {"x": 3.0})
            second.close()
    assert numbers(kind, tmp_path / "runs") == [3]


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_a_cell_of_a_notebook_is_run_again(kind: str, way: str, tmp_path: Any) -> None:
    """Nobody can close the logger of the first time; it is closed when its runs are in the way."""
    namespace: dict[str, Any] = {}

    def cell(x: float) -> None:
        exists = "replace" if kind == "store" else "append"
        logger = namespace["logger"] = KINDS[kind](tmp_path, exists=exists)
        if way == "loop":
            logger.log(logger.init(0), {"x": jnp.float32(x)})
            return

        def run(seed: Any) -> None:
            logger.log(logger.init(seed), {"x": jnp.float32(x)})

        namespace["run"] = jax.jit(jax.vmap(run))
        namespace["run"](jnp.arange(2))

    cell(1.0)
    jax.effects_barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AppendWarning)
        cell(2.0)
        namespace["logger"].close()
    assert numbers(kind, tmp_path) == ([2] if kind == "store" else [1, 2])


def test_a_finished_run_may_be_a_lane_that_logs_nothing() -> None:
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(jax.vmap(jax.random.key)(jnp.arange(2)))
    logger.finish(jax.tree.map(lambda number: number[0], states))

    def program(state: Any, x: Any) -> Any:
        return logger.tap(lambda x: sawlog.log({"x": x}, where=x > 1), state)(x)

    jax.vmap(program)(states, jnp.array([0.0, 2.0]))
    logger.flush()
    assert logger.runs["seed-1"].logs["x"].tolist() == [2.0]
    assert "x" not in logger.runs["seed-0"].logs
