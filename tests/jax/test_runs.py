"""A run gives its sink one call at a time, whichever threads write to it."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import pytest

import sawlog
from sawlog.jax._runs.background import Background
from sawlog.jax._runs.runs import LoggerRun
from sawlog.sinks import MemorySink

PATIENCE = 120.0


class Busy(MemorySink):
    """While one method is at work another thread calls a second one, which has to wait."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.inside: list[str] = []
        self.thread: threading.Thread | None = None
        self.run: Any = None

    def _enter(self, method: str) -> None:
        assert not self.inside, f"{method} while {self.inside} is at work"
        self.inside.append(method)
        if method == self.first and self.thread is None:
            begun = threading.Event()
            self.thread = threading.Thread(target=self._call, args=(begun,))
            self.thread.start()
            assert begun.wait(PATIENCE)
            self.thread.join(0.05)
        self.inside.remove(method)

    def _call(self, begun: threading.Event) -> None:
        begun.set()
        call(self.run, self.second)

    def write(self, records: Any) -> None:
        self._enter("write")
        super().write(records)

    def flush(self) -> None:
        self._enter("flush")
        super().flush()

    def close(self) -> None:
        self._enter("close")


def call(run: LoggerRun, method: str) -> None:
    if method == "write":
        run.write(sawlog.logdict({"x": jnp.zeros(1)}))
    else:
        getattr(run, method)()


@pytest.mark.parametrize("first", ["write", "flush", "close"])
@pytest.mark.parametrize("second", ["write", "flush"])
def test_a_sink_is_called_by_one_thread_at_a_time(first: str, second: str) -> None:
    sink = Busy(first, second)
    sink.run = run = LoggerRun("name", {}, sink, lambda: None, Background())
    failures: list[Any] = []
    sink._call = _noting(sink._call, failures)  # type: ignore[method-assign]
    call(run, first)
    assert sink.thread is not None
    sink.thread.join(PATIENCE)
    assert failures == []
    assert sink.inside == []
    run.close()


def _noting(function: Any, failures: list[Any]) -> Any:
    def noted(*args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:
            failures.append(error)

    return noted
