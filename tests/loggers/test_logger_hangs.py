"""A tracker that hangs, from a Python loop that logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog._worker import Task
from sawlog.errors import ArgumentError, SinkWarning
from sawlog.loggers import Logger, MemoryLogger
from sawlog.sinks import Fallback, MemorySink, Timeout
from tests.sinks.failing import PATIENCE


class Hangs(MemorySink):
    """Never returns from a method, until it is let go."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method, self.go = method, threading.Event()
        self.hangs = False

    def _hang(self, method: str) -> None:
        if method == self.method:
            self.hangs = True
            assert self.go.wait(PATIENCE)

    def _write(self, records: Any) -> None:
        self._hang("write")
        super()._write(records)

    def _flush(self) -> None:
        self._hang("flush")

    def _close(self) -> None:
        self._hang("close")


class HangingLogger(Logger):
    def __init__(self, method: str, **options: Any) -> None:
        super().__init__(**options)
        self.sink = Hangs(method)

    def open_run(self, name: str, about: Any, exists: str) -> Any:
        self.sink._hang("open")
        return self.sink


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_place_that_hangs_has_failed(method: str, tmp_path: Any, monkeypatch: Any) -> None:
    logger = HangingLogger(method, on_error="fallback", fallback=tmp_path, timeout=1)

    real = Task.wait

    def wait(task: Task, seconds: float = -1) -> bool:
        """Wait the given second only for the call that hangs, so that the load is no matter."""
        assert seconds in (-1, 1)
        while not (done := real(task, 0.001)) and not logger.sink.hangs:
            pass
        return done

    monkeypatch.setattr(Task, "wait", wait)

    def program() -> None:
        state = logger.init(0)
        for i in range(5):
            logger.log(state, {"x": jnp.float32(i)})
        jax.jit(lambda x: logger.log(state, {"x": x}))(5.0)
        if method == "flush":
            logger.flush()
        logger.finish()

    with pytest.warns(SinkWarning, match=rf"did not return from {method} within 1 seconds"):
        program()
    assert sawlog.load(tmp_path / "HangingLogger" / "seed-0")["x"].tolist() == list(range(6))
    logger.sink.go.set()


def test_a_place_that_hangs_when_it_is_opened() -> None:
    logger = HangingLogger("open", timeout=0.05)
    with pytest.raises(TimeoutError, match=r"did not return from open within 0\.05"):
        logger.init(0)
    logger.sink.go.set()


def test_a_sink_that_hung_is_left_alone() -> None:
    sink = Hangs("write")
    timed = Timeout(sink, 0.05)
    records = sawlog.records.Records({"x": sawlog.records.Entries(np.ones(1))})
    for call in (lambda: timed.write(records), timed.flush, timed.close):
        with pytest.raises(TimeoutError, match="did not return from write"):
            call()
    sink.go.set()
    with pytest.raises(ArgumentError, match="seconds` must be a positive number"):
        Timeout(sink, 0)
    with pytest.raises(ArgumentError, match="timeout` must be a positive number"):
        MemoryLogger.__mro__[1](timeout="soon")
    assert isinstance(Fallback(sink, "unused"), Fallback)


INTERRUPTED = """
import signal, sys, threading, time, os
import jax.numpy as jnp
from sawlog.loggers import Logger
from sawlog.sinks import Async, MemorySink

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it

class Hangs(MemorySink):
    def _write(self, records):
        print("hangs", flush=True)
        time.sleep(1000)

class HangingLogger(Logger):
    def open_run(self, name, about, exists):
        return Async(Hangs(), queue=1) if sys.argv[1] == "async" else Hangs()

logger = HangingLogger(timeout=1000 if sys.argv[1] == "timeout" else None)
state = logger.init(0)
try:
    for i in range(1000):
        logger.log(state, {"x": jnp.float32(i)}, step=i)
        if i == 3 and sys.argv[2] in ("flush", "finish", "close"):
            getattr(logger, sys.argv[2])()
        if i == 3 and sys.argv[2] == "exit":
            sys.exit()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(7)
"""


INTERRUPTIONS = [
    *(("plain", "finish"), ("async", "exit"), ("async", "loop"), ("plain", "exit")),
    *(("timeout", "flush"), ("timeout", "loop"), ("timeout", "exit"), ("async", "close")),
]


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        INTERRUPTIONS[0],
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in INTERRUPTIONS[1:]),
    ],
)
def test_ctrl_c_works_while_a_place_hangs(kind: str, where: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), kind, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "hangs\n"
    end = time.monotonic() + PATIENCE
    while program.poll() is None and time.monotonic() < end:  # until it is where it waits
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=PATIENCE)
    if where == "exit":
        assert "KeyboardInterrupt" in err
    else:
        assert (program.returncode, out) == (7, "interrupted\n"), err
