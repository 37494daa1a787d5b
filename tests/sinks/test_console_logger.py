"""Seeds of JAX programs on the console."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sawlog.loggers import ConsoleLogger, MemoryLogger, MultiLogger
from tests.logger_programs import random_walk

STEPS, SEEDS = 30, 4
train = random_walk(STEPS)


def last_values():
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    return np.asarray(jax.jit(jax.vmap(train))(keys), np.float64)


@pytest.mark.parametrize("way", ["spool", "tap", "buffered tap"])
def test_all_seeds_in_one_table(way):
    file, memory = io.StringIO(), MemoryLogger()
    console = ConsoleLogger("seeds", total=STEPS, file=file, every=1000)
    with MultiLogger(memory, console) as logger:

        def run(seed):
            key = jax.random.key(seed)
            wrap = logger.spool if way == "spool" else logger.tap
            options = {"buffer": 7} if way == "buffered tap" else {}
            return wrap(train, logger.init(key), **options)(key)

        jax.jit(jax.vmap(run))(jnp.arange(SEEDS))
    (row,) = console.dashboard.snapshot().rows
    values, trend = last_values(), [memory.runs[f"seed-{i}"].logs["x"] for i in range(SEEDS)]
    np.testing.assert_allclose([row.mean, row.std], [values.mean(), values.std()], rtol=1e-6)
    np.testing.assert_allclose(row.trend, np.mean(trend, axis=0), rtol=1e-5, atol=1e-6)
    assert (row.name, row.runs, row.steps) == ("x", SEEDS, (STEPS - 1, STEPS - 1))
    (line,) = file.getvalue().splitlines()
    assert line.startswith(f"seeds  4 runs finished  step {STEPS - 1} / {STEPS} ")


def test_seeds_one_after_the_other_are_one_table():
    file = io.StringIO()
    with ConsoleLogger(file=file, every=1000) as logger:
        for seed in range(3):
            state = logger.init(seed)
            logger.log(state, {"loss": float(seed)}, step=0)
            logger.finish(state)
        assert file.getvalue() == ""
        logger.finish()
        assert "3 runs finished" in file.getvalue()
    assert len(file.getvalue().splitlines()) == 1
    assert repr(logger) == "ConsoleLogger('sawlog')"


def test_a_program_that_raises():
    file = io.StringIO()

    def program():
        with ConsoleLogger(file=file) as logger:
            logger.log(logger.init(0), {"loss": 1.0})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert file.getvalue().startswith("sawlog  seed-0 failed ")
