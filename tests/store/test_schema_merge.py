"""Names that were declared one after the other, put into one file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store._disk import LocalDisk
from sawlog.store._format import _schema_files
from sawlog.store._format._layout import Folder
from sawlog.store._format._schema import Column, Log, Schema, Series
from sawlog.store._format._schema_files import SchemaFiles, merge_schema

from .plain_reader import PlainStore
from .xxh3 import xxh3_64


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_schema_files, "_MANY", 3)


def wanted(name: str) -> Any:
    def lacking(schema: Schema) -> list[Log]:
        return [] if name in schema else [Series(Column(name, np.dtype("f8")))]

    return lacking


def declared(path: Path, names: str) -> SchemaFiles:
    store.create(path, exists="append").close()
    files = SchemaFiles(Folder(path))
    files.refresh()
    for name in names:
        files.declare(wanted(name))
    return files


def listed(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "schema").iterdir())


def names_of(path: Path) -> str:
    """As both readers see them."""
    found = "".join(store.open(path).schema)
    assert found == "".join(PlainStore(path, xxh3_64).columns)
    assert store.verify(path).ok
    return found


def test_the_last_writer_merges_when_it_is_closed(tmp_path: Path) -> None:
    other = store.create(tmp_path)
    with store.open(tmp_path, "append") as writer:
        for name in "abcd":
            writer.log({name: 0.5}, step=1)
    assert len(listed(tmp_path)) == 4
    other.close()
    assert listed(tmp_path) == ["00000001-00000004.json"]
    with store.open(tmp_path, "append") as writer:
        writer.log({"a": 1.5, "e": 0.5}, step=2)
    assert listed(tmp_path) == ["00000001-00000004.json", "00000005.json"]
    assert names_of(tmp_path) == "abcde"
    assert store.open(tmp_path).read("a").tolist() == [0.5, 1.5]
    with store.open(tmp_path, "append") as writer:
        for name in "fg":
            writer.append([1], {name: np.zeros((1, 2))})
    assert listed(tmp_path) == ["00000001-00000007.json"]
    assert names_of(tmp_path) == "abcdefg"
    store.create(tmp_path, exists="replace").close()
    assert listed(tmp_path) == []


def test_compact_merges_and_a_writer_that_is_open_keeps_it_from_that(tmp_path: Path) -> None:
    declared(tmp_path, "abc")
    with store.open(tmp_path, "append"):
        store.compact(tmp_path)
        assert len(listed(tmp_path)) == 3
    assert listed(tmp_path) == ["00000001-00000003.json"]


@pytest.mark.parametrize("calls", range(5))
def test_a_merge_that_stops_anywhere_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    declared(tmp_path, "abcd")
    left = [calls]
    delete = LocalDisk.delete

    def stopping(disk: LocalDisk, name: str) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        delete(disk, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "delete", stopping)
        with contextlib.suppress(KeyboardInterrupt):
            merge_schema(Folder(tmp_path))
    assert len(listed(tmp_path)) == 5 - calls
    assert names_of(tmp_path) == "abcd"
    declared(tmp_path, "efg")
    merge_schema(Folder(tmp_path))
    assert listed(tmp_path) == ["00000001-00000007.json"]
    assert names_of(tmp_path) == "abcdefg"


@pytest.mark.parametrize("known", ["", "a", "ab"])
def test_readers_that_know_some_of_it_learn_the_rest(tmp_path: Path, known: str) -> None:
    old = declared(tmp_path, known)
    declared(tmp_path, "abcde")
    merge_schema(Folder(tmp_path))
    assert old.refresh() == []
    assert "".join(old.schema) == "abcde"


@pytest.mark.parametrize("times", [1, 2])
def test_files_that_are_merged_after_they_were_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    declared(tmp_path, "abc")
    plain, left = SchemaFiles._listed, [times]

    def merging(files: SchemaFiles) -> tuple[list[int], int]:
        found = plain(files)
        if left[0]:
            left[0] -= 1
            with monkeypatch.context() as patched:
                patched.setattr(SchemaFiles, "_listed", plain)
                merge_schema(Folder(tmp_path))
                if left[0]:
                    declared(tmp_path, "def")
        return found

    monkeypatch.setattr(SchemaFiles, "_listed", merging)
    files = SchemaFiles(Folder(tmp_path))
    assert files.refresh() == []
    assert "".join(files.schema) in ("abc", "abcdef")


@pytest.mark.parametrize("known", ["", "a", "ab"])
def test_a_writer_that_could_not_say_so_takes_no_number_again(tmp_path: Path, known: str) -> None:
    stale = declared(tmp_path, known)
    declared(tmp_path, "abcde")
    merge_schema(Folder(tmp_path))
    stale.declare(wanted("f"))
    stale.declare(wanted("b"))
    assert listed(tmp_path) == ["00000001-00000005.json", "00000006.json"]
    assert "".join(stale.schema) == names_of(tmp_path) == "abcdef"


def test_a_merged_file_that_was_changed(tmp_path: Path) -> None:
    with store.create(tmp_path) as writer:
        for name in "abcd":
            writer.log({name: 0.5})
    file = tmp_path / "schema" / "00000001-00000004.json"
    file.write_bytes(file.read_bytes().replace(b"float64", b"float32"))
    with pytest.raises(DamagedStoreError, match="00000001-00000004"):
        store.open(tmp_path)
    assert store.open(tmp_path, damaged="skip").read("a").tolist() == [0.5]
    assert store.repair(tmp_path)
    assert names_of(tmp_path) == "abcd"
    store.create(tmp_path, exists="replace").close()
