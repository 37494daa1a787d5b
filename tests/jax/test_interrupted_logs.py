"""Ctrl-C at any line of a call of a logger: logs are written in order or not, and nothing hangs."""

import itertools

import jax.numpy as jnp

from sawlog.jax._runs.background import Background, Job
from sawlog.loggers import MemoryLogger

from ..sinks.failing import within
from ..store.interrupts import interrupted


class Listed(Job):
    """A job that adds its number to a list."""

    nbytes = 8

    def __init__(self, number, written):
        self.number, self.written = number, written

    def write(self, behind):
        self.written.append(self.number)
        return 1


def test_every_line_of_the_queue():
    queue, written, made = Background(), [], []

    def put_and_drain(number):
        queue.put(Listed(number, written))
        made.append(number)
        queue.drain()

    for at in itertools.count(1):
        outcome = interrupted(lambda at=at: put_and_drain(at), at, KeyboardInterrupt, "background")
        within(lambda at=at: (queue.put(Listed(-at, written)), queue.drain()))
        assert written[-1] == -at, outcome.where
        made.append(-at)
        if not outcome.where:
            break
    assert at > 10
    assert len(set(written)) == len(written)
    assert sorted(set(made) - set(written)) == []
    assert [abs(number) for number in written] == sorted(abs(number) for number in written)
    assert queue._bytes == 0


def test_every_line_of_a_log_of_a_device_array():
    values = [jnp.float32(number) for number in range(2000)]
    logger, made = MemoryLogger(), []
    state = logger.init(0)

    def log(number, sign):
        logger.log(state, {"x": values[number], "sign": sign}, step=number)
        made.append(number * sign)

    log(1999, 1)  # compiles nothing below
    logger.flush()
    made.clear()
    for at in itertools.count(1):
        outcome = interrupted(lambda at=at: log(at, 1), at, KeyboardInterrupt, "sawlog/jax/_runs")
        within(lambda at=at: log(at, -1))
        if not outcome.where:
            break
    assert at > 20
    within(logger.close)
    logs = logger.runs["seed-0"].logs
    written = [int(x * sign) for x, sign in zip(logs["x"], logs["sign"], strict=True)][1:]
    assert len(set(written)) == len(written)
    assert set(made) <= set(written)
    assert [abs(number) for number in written] == sorted(abs(number) for number in written)
