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
    sink = opened(monkeypatch, clock, client)
    for number in range(writes):
        sink.write(Records({"x": Entries(np.array([float(number)]))}))
        clock.now += pace
    return client.batches


def opened(monkeypatch: Any, clock: Clock, client: Any, **options: Any) -> MLflowSink:
    """A sink of MLflow without MLflow."""
    mlflow = SimpleNamespace(
        MlflowClient=lambda uri: client,
        get_tracking_uri=lambda: "http://elsewhere",
        entities=SimpleNamespace(Metric=lambda *parts: parts, Param=lambda *parts: parts),
    )
    client.get_experiment_by_name = lambda name: SimpleNamespace(experiment_id="0")  # type: ignore[attr-defined]
    info = SimpleNamespace(run_id="r", run_name="n")
    client.create_run = lambda number, tags, run_name: SimpleNamespace(info=info)  # type: ignore[attr-defined]
    monkeypatch.setattr(_mlflow, "time", clock)
    monkeypatch.setattr(_mlflow, "require", lambda *names: mlflow)
    return MLflowSink(**options)


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


class KeepingClient(Client):
    """Keeps what it is sent, and fails at some of the batches."""

    def __init__(self, clock: Clock, failing: tuple[int, ...] = ()) -> None:
        super().__init__(clock, 0.0)
        self.failing = failing
        self.metrics: list[Any] = []
        self.params: list[Any] = []

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.params += params
        self.batches.append(len(metrics) or len(params))
        if len(self.batches) - 1 in self.failing:
            raise OSError("the network")
        self.metrics += metrics


@pytest.mark.parametrize("failing", [(), (0,), (1,), (2,)])
def test_more_than_a_batch_arrives_once_and_in_order(monkeypatch: Any, failing: Any) -> None:
    monkeypatch.setattr(_mlflow, "BATCH", 3)
    client = KeepingClient(Clock(), failing)
    sink = opened(monkeypatch, client.clock, client)
    sink.write(Records({"x": Entries(np.arange(8.0), {"step": np.arange(8)})}))
    for _ in failing:
        with pytest.raises(OSError, match="the network"):
            sink.flush()
    sink.flush()
    assert [(value, step) for _, value, _, step in client.metrics] == [(i, i) for i in range(8)]
    assert sorted(client.batches) == sorted([2, 3, 3, *(min(3, 8 - 3 * at) for at in failing)])


def test_more_settings_than_a_batch_arrive_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(_mlflow, "PARAMS", 3)
    client = KeepingClient(Clock())
    opened(monkeypatch, client.clock, client, config={f"k{i}": i for i in range(7)})
    assert client.params == [(f"k{i}", str(i)) for i in range(7)]
    assert client.batches == [3, 3, 1]


def test_times_are_milliseconds_and_grow_where_steps_do_not(monkeypatch: Any) -> None:
    """MLflow orders values of a step by their time, and keeps one of equal steps and times."""
    clock = Clock()
    client = KeepingClient(clock)
    sink = opened(monkeypatch, clock, client)
    for now, steps in ((2.0, [0, 1, 1, 1]), (2.0, [1, 0]), (3.5, [0, 0])):
        clock.now = now
        values = np.arange(float(len(steps)))
        sink.write(Records({"x": Entries(values, {"step": np.array(steps)})}))
    sink.flush()
    times = [(at, step) for _, _, at, step in client.metrics]
    first = [(2000, 0), (2000, 1), (2001, 1), (2002, 1), (2003, 1), (2004, 0)]
    assert times == [*first, (3500, 0), (3501, 0)]
