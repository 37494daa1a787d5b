"""Contract: create, close, resume, compact and verify a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog.errors import (
    ForeignStoreError,
    SawlogError,
    StoreClosedError,
    StoreExistsError,
    StoreNotFoundError,
    UnknownNameError,
)
from sawlog.records import Entries, Records
from sawlog.testing._equality import assert_same
from sawlog.testing._hooks import StoreHooks, as_list, rows


def _write_segment(writer: Any, number: int) -> None:
    """Write a row to two tables, and entries of one or two series."""
    writer.append([number], rows(1, number))
    writer.append([f"n{number}"], {"text": np.array([number])})
    writer.log({"loss": number / 2}, step=number)
    if number % 2:
        writer.log({"odd": number})
    writer.flush()


class UpkeepContract(StoreHooks):
    """The life of a store from ``create`` to ``compact``."""

    # ---- making and opening

    def test_nothing_there(self, path: Path) -> None:
        """Opening does not create."""
        for mode in ("read", "append"):
            with pytest.raises(StoreNotFoundError, match=path.name):
                self.open(path, mode)
        assert not path.exists()

    def test_exists(self, path: Path) -> None:
        """``exists`` refuses, appends to, or replaces an existing store."""
        with self.create(path) as writer:
            writer.append([0], rows(1))
        with pytest.raises(StoreExistsError, match=path.name):
            self.create(path)
        with self.create(path, exists="append") as writer:
            writer.append([1], rows(1, 1))
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [0, 1]
        with self.create(path, exists="replace") as writer:
            writer.append([5], {"other": np.zeros(1)})
        with self.open(path) as reader:
            assert reader.names == ("other",)
            assert as_list(reader.ids()) == [5]

    def test_exists_append_makes_a_store(self, path: Path) -> None:
        """``exists="append"`` and ``"replace"`` also create a new store."""
        for exists in ("append", "replace"):
            place = path.with_name(exists)
            with self.create(place, exists=exists) as writer:
                writer.append([0], rows(1))
            with self.open(place) as reader:
                assert as_list(reader.ids()) == [0]

    @pytest.mark.parametrize("exists", ["error", "append", "replace"])
    def test_foreign_folder(self, path: Path, exists: str) -> None:
        """A folder with other files is never used as a store, nor changed."""
        path.mkdir(parents=True)
        (path / "precious.txt").write_text("mine")
        for mode in ("read", "append"):
            with pytest.raises((ForeignStoreError, StoreNotFoundError), match=path.name):
                self.open(path, mode)
        with pytest.raises((ForeignStoreError, StoreExistsError), match=path.name):
            self.create(path, exists=exists)
        assert [each.name for each in path.iterdir()] == ["precious.txt"]

    @pytest.mark.parametrize(
        "meta",
        [{"x": object()}, {"x": {1, 2}}, ["a"], {1: 2}],
        ids=["object", "set", "list", "key"],
    )
    def test_meta_that_json_cannot_hold(self, path: Path, meta: Any) -> None:
        """The call is refused, and leaves no incomplete store."""
        with pytest.raises(SawlogError):
            self.create(path, meta=meta)
        with self.create(path, meta={"fine": True}) as writer:
            writer.log({"x": 1})
        with self.open(path) as reader:
            assert reader.meta == {"fine": True}

    def test_an_empty_store(self, path: Path) -> None:
        """A store without logs is a store."""
        self.create(path).close()
        with self.open(path) as reader:
            assert reader.names == ()
            assert reader.verify().ok
            assert list(reader.records()) == []
        self.compact(path)
        with self.open(path, "append") as writer:
            writer.log({"x": 1})
        with self.open(path) as reader:
            assert reader.count("x") == 1

    def test_declared_schema(self, path: Path) -> None:
        """A schema fixes the names, and declares them before anything is written."""
        from sawlog.store import Column, Series, Table

        columns = (Column("x", np.dtype("float32"), (2,)), Column("y", np.dtype("int8"), ()))
        step = Column("step", np.dtype("int64"), ())
        loss = Series(Column("loss", np.dtype("float64"), ()), (step,))
        schema = [Table(columns, "str"), loss]
        with self.create(path, schema=schema) as writer:
            attempts: list[Callable[[], Any]] = [
                lambda: writer.append(["a"], {"z": np.zeros(1)}),
                lambda: writer.log({"lss": 0.0}, step=0),
            ]
            for attempt in attempts:
                with pytest.raises(UnknownNameError):
                    attempt()
            writer.log({"loss": 0.5}, step=0)
        with self.open(path) as reader:
            assert reader.names == ("x", "y", "loss")
            assert reader.read("x").shape == (0, 2)
            assert reader.read("x").dtype == np.float32
            assert_same(reader.read("loss"), np.array([0.5]))
        with self.open(path, "append") as writer, pytest.raises(UnknownNameError):
            writer.log({"lss": 0.0}, step=0)

    # ---- writing

    def test_flush_is_durable(self, path: Path) -> None:
        """After ``flush`` a fresh reader sees everything, though the writer is still open."""
        with self.create(path) as writer:
            for number in range(5):
                writer.append([number], rows(1, number))
                writer.log({"loss": number / 2}, step=number)
                writer.flush()
                with self.open(path) as reader:
                    assert as_list(reader.ids()) == list(range(number + 1))
                    assert_same(reader.read("label"), rows(number + 1)["label"])
                    assert_same(reader.read("loss"), np.arange(number + 1) / 2)
            published = writer.published
            writer.flush()
            assert writer.published == published > 0

    def test_small_segments(self, path: Path) -> None:
        """Everything is stored in order, however small the segments are."""
        with self.create(path, segment_bytes=256) as writer:
            for start in range(0, 60, 3):
                writer.append(np.arange(start, start + 3), rows(3, start))
                writer.extend({"loss": np.arange(start, start + 3)}, step=np.arange(3))
        with self.open(path) as reader:
            assert as_list(reader.ids()) == list(range(60))
            for name, expected in rows(60).items():
                assert_same(reader.read(name), expected, name)
            assert_same(reader.read("loss"), np.arange(60))
            assert len(reader.segments) > 1
            assert reader.verify().ok

    def test_an_interval(self, path: Path) -> None:
        """With a short interval, pending data is published automatically."""
        import time

        with self.create(path, interval=0.02) as writer:
            writer.append([0], rows(1))
            deadline = time.monotonic() + 20
            with self.open(path) as reader:
                while time.monotonic() < deadline and not reader.refresh():
                    time.sleep(0.01)
                while time.monotonic() < deadline and not reader.names:
                    reader.refresh()
                while time.monotonic() < deadline and not len(reader.ids()):
                    reader.refresh()
                assert as_list(reader.ids()) == [0]

    def test_resume(self, path: Path) -> None:
        """An interrupted run continues where it stopped."""
        wanted = np.arange(10)
        with self.create(path) as writer:
            writer.append(wanted[:4], rows(4))
            writer.extend({"loss": np.arange(4)}, step=np.arange(4))
        with self.open(path, "append") as writer:
            left = writer.missing(wanted)
            assert_same(left, wanted[4:])
            writer.append(left[::-1], {name: each[::-1] for name, each in rows(6, 4).items()})
            writer.extend({"loss": np.arange(4, 10)}, step=np.arange(4, 10))
            assert len(writer.missing(wanted)) == 0
        with self.open(path) as reader:
            for name, expected in rows(10).items():
                assert_same(reader.gather(wanted)[name], expected, name)
            assert_same(reader.read("loss"), np.arange(10))

    def test_two_writers_at_once(self, path: Path) -> None:
        """Two writers declare, write and publish side by side."""
        with self.create(path) as one, self.open(path, "append") as two:
            for start in range(0, 12, 4):
                one.append([start, start + 1], rows(2, start))
                two.append([start + 2, start + 3], rows(2, start + 2))
                one.log({"mine": start})
                two.log({"yours": -start})
                two.flush()
        with self.open(path) as reader:
            assert sorted(as_list(reader.ids())) == list(range(12))
            for name, expected in rows(12).items():
                assert_same(reader.gather(np.arange(12))[name], expected, name)
            assert_same(reader.read("mine"), np.array([0, 4, 8]))
            assert_same(reader.read("yours"), np.array([0, -4, -8]))

    def test_closed_writer(self, path: Path) -> None:
        """A closed writer raises; closing it again does nothing."""
        with self.create(path) as writer:
            writer.append([0], rows(1))
        writer.close()
        calls: list[Callable[[], Any]] = [
            lambda: writer.append([1], rows(1)),
            lambda: writer.log({"x": 1}),
            lambda: writer.extend({"x": [1]}),
            lambda: writer.write(Records({"x": Entries(np.zeros(1))})),
            lambda: writer.flush(),
            lambda: writer.missing([1]),
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                call()
        with self.open(path) as reader:
            assert reader.names == ("grad", "label")
            assert as_list(reader.ids()) == [0]

    def test_closed_reader(self, path: Path) -> None:
        """A closed reader raises; arrays that it returned stay valid."""
        with self.create(path) as writer:
            writer.append([0, 1], rows(2))
        with self.open(path) as reader:
            kept = reader.read("grad")
        reader.close()
        calls: list[Callable[[], Any]] = [
            lambda: reader.read("grad"),
            lambda: reader.gather([0]),
            lambda: list(reader.blocks()),
            lambda: reader.refresh(),
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                call()
        assert_same(kept, rows(2)["grad"])

    def test_an_error_inside_with_keeps_what_was_logged(self, path: Path) -> None:
        """If the block fails, data that was accepted before is published."""

        def work() -> None:
            with self.create(path) as writer:
                writer.append([0], rows(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [0]

    # ---- compaction and verification

    def fill_segments(self, path: Path, count: int = 6) -> None:
        """Create a store of many small segments, by two writers."""
        for start in (0, count):
            with self.create(path, exists="append") as writer:
                for number in range(start, start + count):
                    _write_segment(writer, number)

    def _complete(self, reader: Any, count: int = 12) -> None:
        assert as_list(reader.ids("grad")) == list(range(count))
        assert as_list(reader.ids("text")) == [f"n{number}" for number in range(count)]
        for name, expected in rows(count).items():
            assert_same(reader.read(name), expected, name)
            backwards = reader.gather(np.arange(count)[::-1], [name])[name]
            assert_same(backwards, expected[::-1], name)
        assert_same(reader.gather([f"n{count - 1}", "n0"], ["text"])["text"], [count - 1, 0])
        assert_same(reader.read("loss"), np.arange(count) / 2)
        assert_same(reader.entries("loss").steps["step"], np.arange(count))
        assert_same(reader.read("odd"), np.arange(1, count, 2))

    def test_compact(self, path: Path) -> None:
        """Compaction leaves fewer segments with the same contents in order, and is idempotent."""
        self.fill_segments(path)
        with self.open(path) as reader:
            before = len(reader.segments)
            self._complete(reader)
        for _ in range(2):
            self.compact(path)
            with self.open(path) as reader:
                self._complete(reader)
                assert len(reader.segments) < before
                assert reader.verify().ok

    def test_compact_under_a_reader(self, path: Path) -> None:
        """Readers keep their snapshot, and see the new segments after ``refresh``."""
        self.fill_segments(path)
        with self.open(path) as untouched, self.open(path) as started:
            blocks = started.blocks(["label"], budget=2)
            first = next(blocks)
            self.compact(path)
            rest = [label for block in blocks for label in block.values["label"].tolist()]
            assert first.values["label"].tolist() + rest == list(range(12))
            self._complete(untouched)
            self._complete(started)
            started.refresh()
            self._complete(started)

    def test_compact_under_a_writer(self, path: Path) -> None:
        """A writer that was open during the compaction stays usable."""
        self.fill_segments(path)
        with self.open(path, "append") as writer:
            self.compact(path)
            for number in (12, 13):
                _write_segment(writer, number)
                self.compact(path)
        for _ in range(2):
            with self.open(path) as reader:
                self._complete(reader, 14)
                assert reader.verify().ok
            self.compact(path)

    def test_verify(self, path: Path) -> None:
        """An intact store verifies, and the report counts its contents."""
        self.fill_segments(path)
        with self.open(path) as reader:
            report = reader.verify()
            assert report.ok
            assert list(report.problems) == []
            assert list(reader.problems) == []
