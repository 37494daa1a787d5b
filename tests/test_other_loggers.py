"""Loggers besides SaveLogger: each run under its name, every value, in order."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.loggers import CsvLogger, JsonlLogger, MemoryLogger, MultiLogger, SaveLogger

STEPS, SEEDS = 20, 4


def train(key):
    def step(x, i):
        x = x + jax.random.normal(jax.random.fold_in(key, i))
        sawlog.log({"x": x}, step=i)
        return x, None

    return jax.lax.scan(step, 0.0, jnp.arange(STEPS))[0]


def expected(seed):
    return np.asarray(sawlog.spool(train)(jax.random.key(seed))[1]["x"])


def run_all(logger, way):
    def run(seed):
        key = jax.random.key(seed)
        wrap = logger.spool if way == "spool" else logger.tap
        options = {"buffer": 7} if way == "buffered tap" else {}
        return wrap(train, logger.init(key), **options)(key)

    with logger:
        jax.jit(jax.vmap(run))(jnp.arange(SEEDS))


@pytest.mark.parametrize("way", ["spool", "tap", "buffered tap"])
def test_all_at_once(tmp_path, way):
    memory = MemoryLogger()
    several = MultiLogger(
        memory, SaveLogger(tmp_path / "store"), CsvLogger(tmp_path), JsonlLogger(tmp_path)
    )
    run_all(several, way)
    assert sorted(memory.runs) == [f"seed-{seed}" for seed in range(SEEDS)]
    for seed in range(SEEDS):
        name, values = f"seed-{seed}", expected(seed)
        assert np.array_equal(memory.runs[name].logs["x"], values)
        assert np.array_equal(sawlog.load(tmp_path / "store" / name)["x"], values)
        text = (tmp_path / f"{name}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        assert np.array_equal(np.float32([line["value"] for line in lines]), values)
        assert [line["step"] for line in lines] == list(range(STEPS))
        rows = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
        assert np.array_equal(np.float32([row["value"] for row in rows]), values)
        assert [int(row["step"]) for row in rows] == list(range(STEPS))


def test_one_callback_for_all(tmp_path):
    calls = []

    class Counting(MemoryLogger):
        def open_run(self, name, about, exists):
            calls.append(name)
            return super().open_run(name, about, exists)

    several, alone = MultiLogger(Counting(), Counting()), MemoryLogger()

    def callbacks(logger):
        program = jax.make_jaxpr(lambda key: logger.spool(train, logger.init(key))(key))
        text = str(program(jax.random.key(3)))
        return text.count("io_callback["), text.count(" tap[")

    assert callbacks(several) == callbacks(alone)
    assert callbacks(alone)[1] == 1
    calls.clear()
    run_all(several, "spool")
    assert sorted(calls) == sorted([f"seed-{seed}" for seed in range(SEEDS)] * 2)


def test_a_run_that_exists(tmp_path):
    memory = MemoryLogger(exists="error")
    memory.log(memory.init(1), {"x": 1.0})
    memory.close()
    again = MemoryLogger()
    for _ in range(2):
        again.log(again.init(1), {"x": 1.0})
        again.finish()
    assert again.runs["seed-1"].logs["x"].tolist() == [1, 1]
    with CsvLogger(tmp_path, exists="error") as logger:
        logger.log(logger.init(1), {"x": 1.0})
    refusing = CsvLogger(tmp_path, exists="error")
    with pytest.raises(StoreExistsError):
        refusing.init(1)
    refusing.close()


def test_no_logger():
    with pytest.raises(ArgumentError, match="at least one"):
        MultiLogger()
