"""Small pieces of upkeep, each by itself: ranges, what is removed last, what is kept how long."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.records import Entries
from sawlog.store._format import _checksum
from sawlog.store._format._layout import Folder
from sawlog.store._format._schema import Column, Series
from sawlog.store._format._segment import Segment
from sawlog.store._format._sequence_ranges import Ranges, joined
from sawlog.store._maintenance import _compact, _remove
from sawlog.store._maintenance._remove import InUse
from sawlog.store._reading._blocks import UnreadRows, rows_within, scan
from sawlog.store._writing._stage_entries import _bytes_per_entry
from tests.cli.stores import change_value, segments


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([(1, 5), (2, 3)], [(1, 5)]),  # one inside another
        ([(1, 2), (4, 5)], [(1, 2), (4, 5)]),
        ([(4, 5), (1, 3)], [(1, 5)]),
        ([(1, 9), (2, 3), (4, 12), (14, 14)], [(1, 12), (14, 14)]),
    ],
)
def test_ranges_are_joined(given: Any, wanted: Any) -> None:
    assert joined(given) == wanted


@pytest.mark.parametrize(
    ("there", "last", "gaps"),
    [
        ([(5, 6)], 2, [[1, 2]]),  # a segment after the last that was asked for
        ([(5, 6)], 6, [[1, 4]]),
        ([(1, 2), (5, 6)], 3, [[3, 3]]),
        ([(1, 2), (5, 6)], 8, [[3, 4], [7, 8]]),
        ([(1, 3)], 3, None),
    ],
)
def test_gaps_end_at_the_last(there: Any, last: int, gaps: Any) -> None:
    found = Ranges({"w": there}).gaps({"w": last}).to_json()
    assert found == ({} if gaps is None else {"w": gaps})


def filled(path: Path, count: int = 1, **options: Any) -> Path:
    with store.create(path, merge=False, **options) as writer:
        for number in range(count):
            writer.append([number], {"x": np.full((1, 8), float(number))})
            writer.log({"loss": float(number)}, step=number)
            writer.flush()
    return path


def test_store_json_is_removed_last(tmp_path: Path, monkeypatch: Any) -> None:
    """What a kill leaves of a store that was being removed is still known to be ours."""
    path = filled(tmp_path / "s", 3)
    removed: list[str] = []
    unlink = os.unlink

    def noted(place: Any, **options: Any) -> None:
        removed.append(os.path.basename(place))
        unlink(place, **options)

    monkeypatch.setattr(_remove.os, "unlink", noted)
    _remove.remove_store(path)
    assert removed[-1] == "store.json"
    assert len(removed) > 5
    assert not path.exists()


def test_marks_of_stores_in_use_are_given_back(tmp_path: Path) -> None:
    before = InUse._count
    folder = Folder(filled(tmp_path / "s"))
    marks = [InUse(folder) for _ in range(3)]
    assert InUse._count == before + 3
    for mark in marks:
        mark.release()
        mark.release()
    assert InUse._count == before


@pytest.mark.parametrize(("grace", "kept"), [(0.0, False), (3600.0, True)])
def test_how_long_merged_segments_are_kept(tmp_path: Path, grace: float, kept: bool) -> None:
    path = filled(tmp_path / "s", 3)
    store.compact(path, grace=grace)
    assert any((path / "replaced").glob("*/*")) is kept
    old = path / "replaced" / str(int(time.time()) - 4000)
    old.mkdir(parents=True)
    (old / segments(path)[0].name).write_bytes(b"")
    store.compact(path, grace=5000.0)
    assert old.exists()
    store.compact(path, grace=3000.0)
    assert not old.exists()


def test_a_compaction_cleans_up_after_one_that_was_killed(tmp_path: Path, monkeypatch: Any) -> None:
    """Killed after the merged segment was published, and before the others were moved away."""
    path = filled(tmp_path / "s", 3)

    class Killed(BaseException):
        pass

    def killed(folder: Any, run: Any) -> None:
        if run:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(_compact, "retire", killed)
        with pytest.raises(Killed):
            store.compact(path)
    assert len(segments(path)) == 4
    store.compact(path, grace=0.0)
    assert len(segments(path)) == 1
    with store.open(path) as reader:
        assert reader.read("loss").tolist() == [0.0, 1.0, 2.0]


def test_a_file_that_is_mapped_again_is_checked_again(tmp_path: Path, monkeypatch: Any) -> None:
    """It was checked and remembered; then it was changed in place, with its time put back."""
    path = filled(tmp_path / "s")
    (file,) = segments(path)
    later = time.time_ns() + 10**10
    monkeypatch.setattr(_checksum.time, "time_ns", lambda: later)
    with store.open(path) as reader:
        (segment,) = reader.segments
        assert segment.values("x").tolist() == [[0.0] * 8]
        segment.forget()
        assert segment.values("x").tolist() == [[0.0] * 8]
        segment.forget()
        times = file.stat()
        change_value(file, "x")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(DamagedStoreError, match="bytes of 'x' were changed"):
            segment.values("x")


def test_files_of_the_same_name_are_set_aside_under_names_that_are_free(tmp_path: Path) -> None:
    path = filled(tmp_path / "s", 2)
    first = segments(path)[0]
    aside = path / "damaged"
    aside.mkdir()
    for name in (f"segments-{first.name}", f"segments-{first.name}.2"):
        (aside / name).write_text("of an earlier repair")
    change_value(first, "x")
    content = first.read_bytes()
    store.repair(path)
    assert not first.exists()  # the rest of it is in a new segment
    assert (aside / f"segments-{first.name}.3").read_bytes() == content
    assert (aside / f"segments-{first.name}.2").read_text() == "of an earlier repair"
    with store.open(path) as reader:
        assert reader.ids().tolist() == [1]
        assert reader.read("loss").tolist() == [0.0, 1.0]


def test_what_comes_after_a_repair_is_after_it(tmp_path: Path) -> None:
    """The segment that records lost ones has its place behind all others."""
    path = filled(tmp_path / "s", 4)
    segments(path)[2].unlink()
    store.repair(path)
    with store.open(path) as reader:
        orders = [segment.order for segment in reader.segments]
        recorded = [segment for segment in reader.segments if segment.replaces]
        assert orders == sorted(orders)
        assert recorded == [reader.segments[-1]]
    with store.open(path, "append") as writer:
        writer.log({"loss": 9.0}, step=9)
    with store.open(path) as reader:
        assert reader.read("loss").tolist() == [0.0, 1.0, 3.0, 9.0]


def test_byte_ranges_of_neighbours_are_one() -> None:
    def tensor(start: int, row: int) -> Any:
        return SimpleNamespace(start=start, cut=SimpleNamespace(row_bytes=row))

    far = 1 << 24
    tensors = {"a": tensor(0, 8), "b": tensor(80, 8), "c": tensor(far, 4), "none": tensor(5, 0)}
    own = SimpleNamespace(tensors=tensors)
    assert Segment._ranges(own, ["c", "b", "a", "none"], 0, 10) == [(0, 160), (far, far + 40)]
    assert Segment._ranges(own, ["a", "b"], 3, 3) == []


@pytest.mark.parametrize("budget", [100, 1000, 64_000])
def test_two_blocks_fit_into_the_budget(budget: int) -> None:
    cuts = {"x": SimpleNamespace(row_bytes=16, span=8), "y": SimpleNamespace(row_bytes=4, span=64)}
    segment: Any = SimpleNamespace(tensors={n: SimpleNamespace(cut=c) for n, c in cuts.items()})
    rows = rows_within(segment, ["x", "y"], budget)
    assert rows >= 1
    assert 2 * rows * 20 <= budget
    assert rows % 8 == 0 or rows < 8
    assert 2 * (rows + 8) * 20 > budget


@pytest.mark.parametrize("read_ahead", [False, True])
def test_blocks_are_released_soon_after_their_use(read_ahead: bool) -> None:
    done: list[str] = []

    class Piece(UnreadRows):
        def __init__(self, number: int) -> None:
            object.__setattr__(self, "number", number)

        ready = False

        def fetch(self) -> None:
            done.append(f"fetch {self.number}")

        def blocks(self) -> Any:
            yield self.number

        def release(self) -> None:
            done.append(f"release {self.number}")

    for number in scan(map(Piece, range(3)), read_ahead):
        done.append(f"use {number}")
    for number in range(3):
        places = [done.index(f"{what} {number}") for what in ("fetch", "use", "release")]
        assert places == sorted(places)
    kept = 2 if read_ahead else 1  # the thread releases a block while the next one is used
    for number in range(3 - kept):
        assert done.index(f"release {number}") < done.index(f"use {number + kept}")
    assert len(done) == len({*done}) == 9


def test_how_many_bytes_an_entry_takes() -> None:
    """Alike series share what is found out about them, but not with others of the same values."""
    f4, f8, i8 = (np.dtype(kind) for kind in ("f4", "f8", "i8"))
    step, epoch = Column("step", i8), Column("epoch", f4, (3,))
    values, many = np.zeros((2, 5), f4), np.zeros(2, f8)
    mask, masks = np.ones(2, bool), np.ones((2, 5), bool)
    plain = Series(Column("a", f4, (5,)))
    stepped = Series(Column("b", f4, (5,)), (step,))
    both = Series(Column("c", f4, (5,)), (step, epoch))
    empty = Series(Column("d", f4, (5, 0)), (step,))
    steps = {"step": np.zeros(2, i8), "epoch": np.zeros((2, 3), f4)}
    found = [
        (plain, Entries(values)),
        (stepped, Entries(values, {"step": steps["step"]})),
        (both, Entries(values, steps)),
        (both, Entries(values, steps, mask)),
        (both, Entries(values, steps, masks)),
        (Series(Column("e", f8), (step,)), Entries(many, {"step": steps["step"]})),
        (empty, Entries(np.zeros((2, 5, 0), f4), {"step": steps["step"]})),
    ]
    wanted = [(20, 0), (28, 0), (40, 0), (41, 0), (45, 0), (16, 0), (8 + 5, 5)]
    assert _bytes_per_entry(found) == wanted
