"""Loggers: what goes wrong, and the end of a program."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import jax
import pytest

import sawlog
from sawlog import logdict
from sawlog.errors import (
    ArgumentError,
    CallbackError,
    LogMismatchError,
    LogValueError,
    StoreClosedError,
)
from sawlog.jax._runs import runs as _runs
from sawlog.loggers import Logger, SaveLogger
from sawlog.records import Records

from .logger_programs import (
    KEYS,
    MemoryLogger,
    MemorySink,
    by_hand,
    folders,
    seed_names,
    train,
)

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
            assert "logger_programs.py" in caught.value.__notes__[0]
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
    text = r"(?s)CallbackError: Boom: disk on fire .*'start', 'key' at .*logger_programs.*'seed-1'"
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
        with pytest.raises(ArgumentError, match="takes a logdict or a dict; got list"):
            logger.log(state, [1])
        with pytest.raises(LogValueError, match=r"test_loggers_failing.py.*'x'.*str"):
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
