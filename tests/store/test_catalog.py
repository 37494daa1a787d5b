"""What counts is told by a listing and by what writers say, which may be of different moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store import _catalog
from sawlog.store._catalog import Catalog
from sawlog.store._layout import Folder


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
