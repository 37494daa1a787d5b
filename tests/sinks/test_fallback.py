"""``Fallback``: the sink fails first, then the rest of its life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import NanError
from sawlog.records import Entries, Records
from sawlog.sinks import Async, Fallback, StoreSink, Timeout
from tests.sinks.failing import Failing


def one(number: float) -> Records:
    return Records({"x": Entries(np.array([number]))})


class Told:
    """A sink that fails, and knows how it ended."""

    def __init__(self, *methods: str) -> None:
        self.inner, self.failed, self.closed = Failing(*methods), False, 0

    def write(self, records: Records) -> None:
        self.inner.write(records)

    def flush(self) -> None:
        self.inner.flush()

    def fail(self) -> None:
        self.failed = True

    def close(self) -> None:
        self.closed += 1
        self.inner.close()


@pytest.mark.parametrize("method", ["write", "flush", "close"])
@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_the_store_ends_as_the_program_does(tmp_path: Path, method: str, when: str) -> None:
    """Whether the program fails before the sink does, after it, or not at all."""
    said: list[str] = []
    inner = Told(method)
    sink = Fallback(inner, tmp_path / "spare", report=said.append)
    if when == "before":
        sink.fail()
    sink.write(one(0))
    sink.flush()
    sink.write(one(1))
    assert (sink.failure is not None) == (method != "close") == bool(said)
    if when == "after":
        sink.fail()
    sink.write(one(2))
    sink.close()
    assert inner.failed == (when != "never" or method != "close")
    assert inner.closed == 1
    with store.open(tmp_path / "spare") as reader:
        assert reader.failed == (when != "never")
        expected = {"write": [0, 1, 2], "flush": [0, 1, 2], "close": [1, 2]}
        assert reader.read("x").tolist() == expected[method]
    assert len(said) == 2
    assert all("OSError: the network is gone" in text for text in said)
    assert str(tmp_path / "spare") in said[1]


def test_what_is_safe_is_not_written_twice(tmp_path: Path) -> None:
    inner = Told()
    sink = Fallback(inner, tmp_path / "spare", report=lambda text: None)
    sink.write(one(0))
    sink.flush()
    sink.write(one(1))
    inner.inner.methods = {"write"}
    sink.write(one(2))
    sink.close()
    assert store.open(tmp_path / "spare").read("x").tolist() == [1, 2]
    assert inner.inner.logs["x"].tolist() == [0, 1]


def test_a_store_that_fails_as_well_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("in the way")
    sink = Fallback(Told("write"), tmp_path / "file" / "spare", report=lambda text: None)
    for number in (0, 1):
        with pytest.raises(OSError, match="spare"):
            sink.write(one(number))
    (tmp_path / "file").unlink()
    sink.write(one(2))
    sink.close()
    assert store.open(tmp_path / "file" / "spare").read("x").tolist() == [0, 1, 2]


def test_the_store_has_the_options_of_a_store(tmp_path: Path) -> None:
    options: dict[str, Any] = {"meta": {"seed": 3}, "nan": "error"}
    sink = Fallback(Told("write"), tmp_path / "spare", report=lambda text: None, **options)
    sink.write(one(0))
    with pytest.raises(NanError):
        sink.write(Records({"y": Entries(np.array([np.nan]))}))
    sink.close()
    with store.open(tmp_path / "spare") as reader:
        assert reader.meta == {"seed": 3}
        assert reader.config.nan == "error"


@pytest.mark.parametrize(
    ("entries", "nbytes"),
    [
        (Entries(np.zeros(4)), 32),
        (Entries(np.zeros(4), {"step": np.arange(4)}), 64),
        (Entries(np.zeros((4, 2)), {}, np.ones((4, 2), bool)), 72),
    ],
)
def test_the_sink_is_flushed_once_much_is_kept(
    tmp_path: Path, entries: Entries, nbytes: int
) -> None:
    """Also many small records are much, whose arrays are the least of it."""
    for spare in (0, 1):
        flushes: list[int] = []
        inner = Told()
        inner.flush = lambda seen=flushes: seen.append(1)  # type: ignore[method-assign]
        keep = 2 * (1024 + nbytes) - spare
        sink = Fallback(inner, tmp_path / f"spare-{spare}", report=lambda text: None, keep=keep)
        for _ in range(3):
            sink.write(Records({"x": entries}))
        assert len(flushes) == spare
        inner.inner.methods = {"write"}
        sink.write(Records({"x": entries}))
        sink.close()
        assert store.open(tmp_path / f"spare-{spare}").count("x") == 4 * (2 if spare else 4)


def test_what_is_kept_is_what_was_written(tmp_path: Path) -> None:
    inner, values = Told(), np.zeros(1)
    sink = Fallback(inner, tmp_path / "spare", report=lambda text: None)
    for number in range(2):
        values[:] = number
        sink.write(Records({"x": Entries(values)}))
    inner.inner.methods = {"flush"}
    sink.flush()
    sink.close()
    assert store.open(tmp_path / "spare").read("x").tolist() == [0, 1]


def test_a_sink_that_failed_before_may_fail_again_at_its_end(tmp_path: Path) -> None:
    inner = Told("write", "close")
    sink = Fallback(inner, tmp_path / "spare", report=lambda text: None)
    sink.write(one(0))
    first = sink.failure
    sink.close()
    assert sink.failure is first
    assert [each.name for each in tmp_path.iterdir()] == ["spare"]


def test_the_store_is_closed_again_where_that_failed(tmp_path: Path, monkeypatch: Any) -> None:
    inner = Told("write")
    sink = Fallback(inner, tmp_path / "spare", report=lambda text: None)
    sink.write(one(0))
    monkeypatch.setattr(StoreSink, "_close", Failing("close")._close)
    with pytest.raises(OSError, match="network"):
        sink.close()
    monkeypatch.undo()
    sink.close()
    assert inner.closed == 1
    assert store.open(tmp_path / "spare").read("x").tolist() == [0]


def test_no_store_is_left_open_that_could_not_take_what_was_kept(
    tmp_path: Path, monkeypatch: Any
) -> None:
    made: list[StoreSink] = []
    write = StoreSink._write

    def refuse(self: StoreSink, records: Records) -> None:
        made.append(self)
        if len(made) == 1:
            raise OSError("the disk is full")
        write(self, records)

    monkeypatch.setattr(StoreSink, "_write", refuse)
    sink = Fallback(Told("write"), tmp_path / "spare", report=lambda text: None)
    with pytest.raises(OSError, match="disk is full"):
        sink.write(one(0))
    assert made[0].closed
    sink.write(one(1))
    sink.close()
    assert store.open(tmp_path / "spare-2").read("x").tolist() == [0, 1]


@pytest.mark.parametrize("around", [Async, lambda sink: Timeout(sink, 1e300)])
def test_the_sink_inside_ends_as_the_program_does(around: Any) -> None:
    for failed in (False, True):
        inner = Told()
        inner.appends = failed  # type: ignore[attr-defined]
        sink = around(inner)
        sink.write(one(0))
        if failed:
            sink.fail()
        sink.close()
        assert (inner.failed, inner.closed) == (failed, 1)
        if isinstance(sink, Timeout):
            assert sink.appends == failed


def test_a_flush_after_the_failure_reaches_the_store(tmp_path: Path) -> None:
    place = tmp_path / "spare"
    sink = Fallback(Told("write"), place, report=lambda text: None, interval=None)
    for number in range(2):
        sink.write(one(number))
        sink.flush()
        with store.open(place) as reader:
            assert reader.read("x").tolist() == list(range(number + 1))
    sink.close()
