"""What counts is told by a listing and by what writers say, which may be of different moments."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.records import Entries
from sawlog.store._format._chunks import mask_name, step_name
from sawlog.store._format._layout import Folder
from sawlog.store._format._sequence_ranges import Ranges
from sawlog.store._maintenance import _replacements
from sawlog.store._maintenance._replacements import retire
from sawlog.store._reading import _catalog
from sawlog.store._reading._catalog import Catalog


def written(path: Path, count: int) -> store.Writer:
    writer = store.create(path, merge=False, interval=None)
    for number in range(count):
        publish(writer, number)
    return writer


def publish(writer: store.Writer, number: int) -> None:
    writer.append([number], {"x": np.array([number])})
    writer.flush()


@pytest.fixture
def looks(monkeypatch: Any) -> list[int]:
    """Counts how often the folder is looked at; nobody waits in between."""
    counted: list[int] = []
    look = Catalog._look
    monkeypatch.setattr(Catalog, "_look", lambda self: (counted.append(1), look(self))[1])
    monkeypatch.setattr(_catalog.time, "sleep", lambda seconds: None)
    return counted


@pytest.mark.parametrize("stale", [1, 2, 4])
def test_a_listing_that_lags_behind_is_asked_for_again(
    tmp_path: Path, monkeypatch: Any, looks: list[int], stale: int
) -> None:
    written(tmp_path / "s", 3).close()
    looks.clear()
    names = Folder.names

    def lagging(self: Folder, folder: str) -> list[str]:
        found = sorted(names(self, folder))
        return found[:-1] if folder == "segments" and len(looks) <= stale else found

    monkeypatch.setattr(Folder, "names", lagging)
    assert store.open(tmp_path / "s").ids().tolist() == [0, 1, 2]
    assert len(looks) == stale + 1


def test_a_segment_that_no_listing_has_is_missing(
    tmp_path: Path, monkeypatch: Any, looks: list[int]
) -> None:
    written(tmp_path / "s", 3).close()
    looks.clear()
    names = Folder.names
    monkeypatch.setattr(
        Folder, "names", lambda self, folder: sorted(names(self, folder))[: -1 if looks else None]
    )
    with pytest.raises(DamagedStoreError, match=r"00000003\.safetensors: missing"):
        store.open(tmp_path / "s")
    assert len(looks) == 1 + len(_catalog._PATIENCE)


def test_what_writers_say_is_read_first(tmp_path: Path, monkeypatch: Any, looks: list[int]) -> None:
    """A segment that is published meanwhile is listed then, and not taken for missing."""
    writer = written(tmp_path / "s", 2)
    looks.clear()
    notes, more = _catalog.notes_of, iter([2])

    def busy(disk: Any) -> Any:
        for number in more:
            publish(writer, number)
        return notes(disk)

    monkeypatch.setattr(_catalog, "notes_of", busy)
    assert store.open(tmp_path / "s").ids().tolist() == [0, 1, 2]
    assert len(looks) == 1
    writer.close()


@pytest.mark.parametrize("told", [0, 1, 2, None])
def test_what_writers_say_may_be_older_than_their_segments(
    tmp_path: Path, looks: list[int], told: int | None
) -> None:
    """A report is not synced: the segment before the last one is missing, whatever it says."""
    written(tmp_path / "s", 3).close()
    (report,) = (tmp_path / "s" / "writers").iterdir()
    report.unlink()
    if told is not None:
        report.write_text(f'{{"published": {told}, "closed": false}}')
    (lost,) = (tmp_path / "s" / "segments").glob("*-00000002.*")
    lost.unlink()
    with pytest.raises(DamagedStoreError, match=f"{lost.name}: missing"):
        store.open(tmp_path / "s")


def test_a_segment_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: Any) -> None:
    """Between listing and reading others may compact: what took its place counts."""
    written(tmp_path / "s", 3).close()
    names, due = Folder.names, [True]

    def compacting(self: Folder, folder: str) -> list[str]:
        found = names(self, folder)
        if folder == "segments" and due:
            due.clear()
            store.compact(tmp_path / "s", grace=0)
        return found

    monkeypatch.setattr(Folder, "names", compacting)
    assert store.open(tmp_path / "s").ids().tolist() == [0, 1, 2]
    assert not due


def test_a_segment_of_another_store_does_not_count(tmp_path: Path, looks: list[int]) -> None:
    written(tmp_path / "s", 2).close()
    written(tmp_path / "other", 1).close()
    (stray,) = (tmp_path / "other" / "segments").iterdir()
    shutil.copy2(stray, tmp_path / "s" / "segments")
    with pytest.raises(DamagedStoreError, match="belongs to another store"):
        store.open(tmp_path / "s")
    with store.open(tmp_path / "s", damaged="skip") as reader:
        assert reader.ids().tolist() == [0, 1]


def test_a_segment_under_the_name_of_another(tmp_path: Path, looks: list[int]) -> None:
    written(tmp_path / "s", 2).close()
    one, two = sorted((tmp_path / "s" / "segments").iterdir())
    shutil.copy2(one, two)
    with pytest.raises(DamagedStoreError, match=f"it was published as {one.name}"):
        store.open(tmp_path / "s")
    with store.open(tmp_path / "s", damaged="skip") as reader:
        assert reader.ids().tolist() == [0]


def test_segments_of_a_later_writer_come_last(tmp_path: Path) -> None:
    """Its clock starts behind that of the last segment, whatever the writers are called."""
    written(tmp_path / "s", 4).close()
    for number in (4, 5):
        with store.open(tmp_path / "s", "append", merge=False) as writer:
            publish(writer, number)
    orders = [segment.order[0] for segment in store.open(tmp_path / "s").segments]
    assert sorted(set(orders)) == orders
    assert store.open(tmp_path / "s").read("x").tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_lost_is_counted_over_all_segments(tmp_path: Path) -> None:
    with store.create(tmp_path / "s", merge=False, interval=None) as writer:
        for number in range(3):
            writer.append([number], {"x": np.array([number + 0.5])})
            writer.log({"y": 1.0}, step=0)
            writer.flush()
    for number, file in enumerate(sorted((tmp_path / "s" / "segments").iterdir())[:2]):
        data = file.read_bytes()
        file.write_bytes(data.replace(np.float64(number + 0.5).tobytes(), bytes(8)))
    report = store.verify(tmp_path / "s")
    assert (report.readable, report.lost) == ({"x": 1, "y": 3}, {"x": 2})


def test_damage_to_what_was_replaced_is_none(tmp_path: Path) -> None:
    written(tmp_path / "s", 2).close()
    old = next((tmp_path / "s" / "segments").iterdir()).name
    store.compact(tmp_path / "s", grace=0)
    (tmp_path / "s" / "segments" / old).write_bytes(b"cut")
    assert store.open(tmp_path / "s").ids().tolist() == [0, 1]


@pytest.mark.parametrize("last", ["one that failed", "one that ended well"])
def test_the_last_writer_says_whether_the_program_failed(tmp_path: Path, last: str) -> None:
    path = tmp_path / "s"
    for number, failed in enumerate([True, False] if "well" in last else [False, True]):
        with store.open(path, "append") if number else store.create(path) as writer:
            writer.append([number], {"x": np.array([number])})
            if failed:
                writer.fail()
        for note in (path / "writers").iterdir():  # what is there already is older
            os.utime(note, (note.stat().st_mtime - 60,) * 2)
    assert store.open(path).failed == (last == "one that failed")


@pytest.mark.parametrize("tensor", ["loss", step_name("step", "loss"), mask_name("loss")])
def test_a_chunk_is_left_out_whatever_of_it_is_damaged(tmp_path: Path, tensor: str) -> None:
    path = tmp_path / "s"
    with store.create(path, interval=None) as writer:
        lanes = Entries(np.arange(6.0).reshape(3, 2), {"step": np.arange(3)}, np.eye(3, 2) == 1)
        writer.write({"loss": lanes, "other": Entries(np.arange(2.0))})
    (segment,) = store.open(path).segments
    place = segment.tensors[tensor]
    data = bytearray(segment.path.read_bytes())
    data[place.start] ^= 1
    segment.path.write_bytes(data)
    with store.open(path, damaged="skip") as reader:
        assert reader.count("loss") == 0
        assert reader.read("other").tolist() == [0.0, 1.0]


def test_segments_are_found_in_any_folder_aside(tmp_path: Path, monkeypatch: Any) -> None:
    written(tmp_path / "s", 3).close()
    with store.open(tmp_path / "s") as reader:
        for minute, segment in enumerate(reader.segments):
            monkeypatch.setattr(_replacements.time, "time", lambda now=minute: 1e9 + 60 * now)
            retire(Folder(tmp_path / "s"), [segment])
        assert len(list((tmp_path / "s" / "replaced").iterdir())) == 3
        assert reader.gather([2, 0, 1])["x"].tolist() == [2, 0, 1]


def test_a_file_that_changes_after_it_was_opened(tmp_path: Path) -> None:
    """Its header was read, and the rest of it is that of another file."""
    written(tmp_path / "s", 1).close()
    with store.open(tmp_path / "s") as reader:
        (segment,) = reader.segments
        data = segment.path.read_bytes()
        segment.path.unlink()
        segment.path.write_bytes(data)
        with pytest.raises(DamagedStoreError, match="changed after it was opened"):
            reader.read("x")


@pytest.mark.parametrize(("changes", "found"), [(3, True), (10, True), (200, False)])
def test_other_processes_are_waited_for_as_long_as_they_work(
    tmp_path: Path, monkeypatch: Any, looks: list[int], changes: int, found: bool
) -> None:
    """Patience begins anew with each change; only without any, or after very many, it ends."""
    written(tmp_path / "s", 1).close()
    look = Catalog._look

    def moving(self: Catalog) -> None:
        look(self)
        if len(looks) <= changes:  # another segment is missing each time
            self.missing = Ranges.of([("other", len(looks))])

    looks.clear()
    monkeypatch.setattr(Catalog, "_look", moving)
    if found:
        assert store.open(tmp_path / "s").ids().tolist() == [0]
        assert len(looks) == changes + 1
    else:
        with pytest.raises(DamagedStoreError, match="missing"):
            store.open(tmp_path / "s")
        assert len(looks) == _catalog._LOOKS + 1


def test_what_stays_missing_is_asked_for_a_few_times(
    tmp_path: Path, monkeypatch: Any, looks: list[int]
) -> None:
    written(tmp_path / "s", 3).close()
    sorted((tmp_path / "s" / "segments").iterdir())[1].unlink()
    looks.clear()
    with pytest.raises(DamagedStoreError, match="missing"):
        store.open(tmp_path / "s")
    assert len(looks) == 1 + len(_catalog._PATIENCE)
