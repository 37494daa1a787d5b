"""From accepted to published: in order whatever fails, and never more at once than was agreed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import StoreWriteError
from sawlog.store import Writer
from sawlog.store._disk import _local
from sawlog.store._format._segment_writer import UnpublishedSegment
from sawlog.store._writing import _pipeline


@pytest.fixture(autouse=True, params=["small", "large"])
def size_of_segments(request: Any, monkeypatch: Any) -> None:
    """Large segments are hashed by a thread of their own; here those of a few bytes are large."""
    if request.param == "large":
        monkeypatch.setattr(_pipeline, "_LARGE", 1)


PATIENCE = 120.0
"""Seconds to wait for what must happen, however busy the machine is."""


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def row(number: int) -> dict[str, np.ndarray]:
    return {"row": np.full((1, 4), float(number))}


def names(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "segments").iterdir())


def test_after_a_commit_that_failed_the_order_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    """The first of three segments cannot be published at first: the others wait behind it."""
    path = tmp_path / "store"
    writer = store.create(path, segment_bytes=40, interval=None, queue=8, merge=False)
    published: list[str] = []
    commit, broken = _local._Upload.commit, [True]

    def failing(self: Any) -> None:
        if broken[0]:
            wait_until(lambda: len(writer._pipeline.state.waiting) == 3)
            wait_until(lambda: all(s.unpublished for s in writer._pipeline.state.waiting))
            raise OSError(5, os.strerror(5))
        commit(self)
        published.append(self._file.path.name)
        assert names(path) == published

    monkeypatch.setattr(_local._Upload, "commit", failing)
    for number in range(3):
        writer.append([number], row(number))
    with pytest.raises(StoreWriteError, match="Input/output error"):
        writer.flush()
    assert names(path) == published == []
    broken[0] = False
    writer.flush()
    assert len(published) == 3
    writer.append([3], row(3))
    writer.close()
    assert store.open(path).ids().tolist() == [0, 1, 2, 3]
    assert store.open(path).read("row")[:, 0].tolist() == [0, 1, 2, 3]


def test_after_a_failure_nothing_more_is_accepted(tmp_path: Path, monkeypatch: Any) -> None:
    """Every call says so, until a flush succeeds; and none of them counts."""
    commit, broken = _local._Upload.commit, [True]

    def failing(self: Any) -> None:
        if broken[0]:
            raise OSError(28, os.strerror(28))
        commit(self)

    monkeypatch.setattr(_local._Upload, "commit", failing)
    writer = store.create(tmp_path / "store", segment_bytes=1 << 20, interval=0.001, merge=False)
    writer.log({"x": 0.0}, step=0)
    writer.append([0], row(0))
    wait_until(lambda: writer._pipeline._failure is not None)
    for call in (
        lambda: writer.log({"x": 1.0}, step=1),
        lambda: writer.extend({"x": np.ones(2)}, step=np.arange(2)),
        lambda: writer.append([1], row(1)),
        lambda: writer.missing([0, 1]),
        writer.flush,
    ):
        with pytest.raises(StoreWriteError, match="No space left"):
            call()
    broken[0] = False
    writer.flush()
    assert writer.missing([0, 1]).tolist() == [1]
    writer.log({"x": 1.0}, step=1)
    writer.close()
    with store.open(tmp_path / "store") as reader:
        assert reader.entries("x").values.tolist() == [0.0, 1.0]
        assert reader.ids().tolist() == [0]


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: Any) -> Any:
    """A writer of short intervals whose first segment does not get onto the disk."""
    go, commit = threading.Event(), UnpublishedSegment.commit

    def waiting(self: UnpublishedSegment) -> None:
        assert go.wait(PATIENCE)
        commit(self)

    monkeypatch.setattr(UnpublishedSegment, "commit", waiting)
    writer = store.create(tmp_path / "store", interval=0.001, queue=1)
    writer.log({"x": 0.0}, step=0)
    wait_until(lambda: len(writer._pipeline.state.waiting) == 1)
    yield writer
    go.set()
    writer.close()
    assert store.open(tmp_path / "store").read("x").tolist() == [0.0, 1.0]


def test_an_interval_seals_no_more_than_the_queue(stuck: Writer) -> None:
    stuck.log({"x": 1.0}, step=1)
    pipeline = stuck._pipeline
    for _ in range(3):
        time.sleep(0.002)  # longer than the interval
        assert pipeline._seal_if_old() > 0
        assert len(pipeline.state.waiting) == 1
        assert pipeline.state.since is not None  # it still waits


@pytest.mark.parametrize("queue", [1, 2, 3])
def test_a_caller_waits_as_soon_as_the_queue_is_full(
    tmp_path: Path, monkeypatch: Any, queue: int
) -> None:
    """Each row fills a segment, and the first one is on its way to the disk until someone waits."""
    go, commit = threading.Event(), UnpublishedSegment.commit

    def waiting(self: UnpublishedSegment) -> None:
        assert go.wait(PATIENCE)
        commit(self)

    monkeypatch.setattr(UnpublishedSegment, "commit", waiting)
    path, here = tmp_path / "store", threading.get_ident()
    writer = store.create(path, segment_bytes=40, interval=None, queue=queue, merge=False)
    pipeline, found = writer._pipeline, []
    wait = type(pipeline._changed).wait

    def noted(self: Any, condition: Any, *more: Any) -> Any:
        if self is pipeline._changed and threading.get_ident() == here and not go.is_set():
            found.append((len(pipeline.state.waiting), condition()))
            if not found[-1][1]:
                go.set()
        return wait(self, condition, *more)

    monkeypatch.setattr(type(pipeline._changed), "wait", noted)
    for number in range(queue + 1):
        writer.append([number], row(number))
    assert found == [*((n, True) for n in range(queue)), (queue, False)]
    writer.close()
    assert store.open(path).ids().tolist() == list(range(queue + 1))


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_accepted_while_a_writer_closes_is_published(
    tmp_path: Path, monkeypatch: Any, times: int
) -> None:
    """Another thread may log after the last flush, and before calls are refused."""
    writer = store.create(tmp_path / "store", interval=None)
    flush, left = writer._pipeline.flush, list(range(times))

    def logging_after() -> None:
        flush()
        if left:
            writer.log({"x": 1.0 + left[0]}, step=left.pop(0))

    monkeypatch.setattr(writer._pipeline, "flush", logging_after)
    writer.close()
    assert store.open(tmp_path / "store").read("x").tolist() == [1.0 + n for n in range(times)]


def test_without_new_threads_the_caller_writes(tmp_path, monkeypatch):
    """Python 3.12 starts no threads while the interpreter ends."""

    def refused(*_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(_pipeline._thread, "start_new_thread", refused)
    with store.create(tmp_path / "s", segment_bytes=4096) as writer:
        for start in range(0, 400, 20):
            ids = np.arange(start, start + 20)
            writer.append(ids, {"x": np.repeat(ids[:, None], 50, 1).astype(np.float64)})
        writer.flush()
        writer.append([1000], {"x": np.ones((1, 50))})
    with store.open(tmp_path / "s") as reader:
        assert reader.count("x") == 401
        np.testing.assert_array_equal(reader.gather([399, 7])["x"][:, 0], [399, 7])


def test_a_thread_may_start_while_a_writer_closes(tmp_path: Path) -> None:
    """Merging starts after the last segment is published, when the caller closes already."""
    writer = store.create(tmp_path / "store", interval=None)
    threads = writer._pipeline._threads

    class Thread:
        ident = 0

        @property
        def ended(self) -> bool:
            threads.setdefault("merge", _pipeline._TaskThread())
            return True

    threads["write"] = Thread()
    writer.close()
    assert set(threads) >= {"write", "merge"}
