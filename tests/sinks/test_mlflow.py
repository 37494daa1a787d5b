"""How long metrics wait for MLflow: about a second, unless sending them takes long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sawlog.records import Entries, Records
from sawlog.sinks import _mlflow
from sawlog.sinks._mlflow import MLflowSink


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


class Client:
    """Takes some time for each batch."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.batches: list[int] = []

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        self.clock.now += self.seconds
        self.batches.append(len(metrics))


def sent(monkeypatch: Any, seconds: float, pace: float, writes: int) -> list[int]:
    """What is sent of so many writes, ``pace`` seconds apart, and never flushed."""
    clock = Clock()
    client = Client(clock, seconds)
    mlflow = SimpleNamespace(
        MlflowClient=lambda uri: client,
        get_tracking_uri=lambda: "http://elsewhere",
        entities=SimpleNamespace(Metric=lambda *parts: parts, Param=None),
    )
    client.get_experiment_by_name = lambda name: SimpleNamespace(experiment_id="0")  # type: ignore[attr-defined]
    info = SimpleNamespace(run_id="r", run_name="n")
    client.create_run = lambda number, tags, run_name: SimpleNamespace(info=info)  # type: ignore[attr-defined]
    monkeypatch.setattr(_mlflow, "time", clock)
    monkeypatch.setattr(_mlflow, "require", lambda *names: mlflow)
    sink = MLflowSink()
    for number in range(writes):
        sink.write(Records({"x": Entries(np.array([float(number)]))}))
        clock.now += pace
    return client.batches


@pytest.mark.parametrize(
    ("seconds", "pace", "expected"),
    [
        (0.0, 0.25, [5] * 4),  # after a second, by the next write
        (0.0, 2.0, [1] * 20),
        (0.25, 0.25, [5]),  # then five seconds later
        (4.0, 2.0, [1, 16]),  # never longer than thirty seconds
    ],
)
def test_how_long_metrics_wait(
    monkeypatch: Any, seconds: float, pace: float, expected: list[int]
) -> None:
    assert sent(monkeypatch, seconds, pace, 21) == expected


def test_a_full_batch_does_not_wait(monkeypatch: Any) -> None:
    assert sent(monkeypatch, 0.0, 0.0, _mlflow.BATCH + 1) == [_mlflow.BATCH]
