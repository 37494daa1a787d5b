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
from tests.logger_programs import random_walk

STEPS, SEEDS = 20, 4
train = random_walk(STEPS)


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


def with_gaps(seed):
    """Seed 0 logs at 10, 12, 14, seed 1 at 11, 13, seed 2 at 10, 12, 14, seed 3 at 11, 13."""

    def step(x, i):
        sawlog.log({"x": 100 * seed + i}, where=(i + seed) % 2 == 0, step=10 + i)
        return x, None

    return jax.lax.scan(step, 0, jnp.arange(5))[0]


GAPS = {
    "spool": lambda logger, state: logger.spool(with_gaps, state),
    "tap": lambda logger, state: logger.tap(with_gaps, state),
    "buffer": lambda logger, state: logger.tap(with_gaps, state, buffer=2),
    "interval": lambda logger, state: logger.tap(with_gaps, state, interval=2),
    "reduce": lambda logger, state: logger.tap(with_gaps, state, reduce="last", buffer=1),
    "run": None,
}


@pytest.mark.turns
@pytest.mark.parametrize("way", GAPS)
def test_seeds_that_do_not_log_have_nothing_and_no_step(tmp_path, way):
    memory, seeds = MemoryLogger(), jnp.arange(SEEDS)
    store, files = SaveLogger(tmp_path / "store"), (CsvLogger(tmp_path), JsonlLogger(tmp_path))
    with MultiLogger(memory, store, *files) as logger:
        if way == "run":
            logger.run(with_gaps)(seeds)
        else:
            jax.jit(jax.vmap(lambda seed: GAPS[way](logger, logger.init(seed))(seed)))(seeds)
    for seed in range(SEEDS):
        name = f"seed-{seed}"
        logged = [(10 + i, 100 * seed + i) for i in range(5) if (i + seed) % 2 == 0]
        logged = logged[:: 2 if way == "interval" else 1]
        entries, loaded = memory.runs[name].records["x"], sawlog.load(tmp_path / "store" / name)
        assert entries.mask is None
        lines = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        rows = csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines())
        found = {
            "memory": zip(entries.steps["step"], entries.values, strict=True),
            "store": zip(np.ravel(loaded.step["x"]), np.ravel(loaded["x"]), strict=True),
            "lines": [(line["step"], line["value"]) for line in lines],
            "rows": [(int(row["step"]), int(row["value"])) for row in rows],
        }
        assert {place: list(pairs) for place, pairs in found.items()} == dict.fromkeys(
            found, logged
        )


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
    opened = MemoryLogger()
    for logger in (refusing, MultiLogger(opened, refusing)):
        with pytest.raises(StoreExistsError):
            logger.init(1)
        logger.close()
    assert opened.runs["seed-1"].closed  # the first of two is not left open


def test_no_logger():
    with pytest.raises(ArgumentError, match="at least one"):
        MultiLogger()
