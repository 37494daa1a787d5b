"""A system that fails to read a file: it may be intact, so it is neither skipped nor repaired."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import StorePermissionError, StoreReadError
from sawlog.store._disk import _local

CALLS: dict[str, Callable[[Path], Any]] = {
    "open": store.open,
    "skip": lambda path: store.open(path, damaged="skip"),
    "append": lambda path: store.open(path, "append"),
    "verify": store.verify,
    "repair": store.repair,
    "compact": store.compact,
}
FOLDERS = ("store.json", "schema/", "segments/", "writers/")


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "compact.lock"
    }


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with store.create(path, meta={"lr": 0.1}) as writer:
        writer.append([1, 2], {"x": np.ones(2)})
        writer.log({"loss": 0.5}, step=0)
    return path


def failing(monkeypatch: Any, where: str, error: int) -> None:
    """Let the system refuse to open files of one folder."""

    def refuse(path: Any, flags: int, *rest: Any, real: Any = os.open, **options: Any) -> int:
        if f"/store/{where}" in str(path) and not flags & os.O_CREAT:
            raise OSError(error, os.strerror(error), path)
        return int(real(path, flags, *rest, **options))

    monkeypatch.setattr(_local.os, "open", refuse)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", FOLDERS)
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_a_failure_of_the_system_is_no_damage(
    made: Path, monkeypatch: Any, call: str, where: str, error: int
) -> None:
    before = contents(made)
    failing(monkeypatch, where, error)
    with pytest.raises(StoreReadError, match=rf"{where}.*{os.strerror(error)}.*may be intact"):
        CALLS[call](made)
    monkeypatch.undo()
    assert contents(made) == before
    assert store.verify(made).ok


@pytest.mark.parametrize("where", FOLDERS[:3])
def test_a_file_that_may_not_be_read_is_no_damage(made: Path, monkeypatch: Any, where: str) -> None:
    before = contents(made)
    failing(monkeypatch, where, errno.EACCES)
    for call in ("open", "skip", "verify", "repair"):
        with pytest.raises(StorePermissionError, match=where):
            CALLS[call](made)
    assert contents(made) == before


def test_a_reader_shows_what_it_showed_before(made: Path, monkeypatch: Any) -> None:
    reader = store.open(made)
    with store.open(made, "append") as writer:
        writer.log({"loss": 0.25}, step=1)
    with monkeypatch.context() as patch:
        failing(patch, "segments/", errno.EMFILE)
        with pytest.raises(StoreReadError, match="Too many open files"):
            reader.refresh()
        assert reader.count("loss") == 1
    assert reader.refresh()
    assert reader.read("loss").tolist() == [0.5, 0.25]


@pytest.mark.parametrize("size", [3, 30_000], ids=["small", "mapped"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOMEM])
def test_values_that_cannot_be_read_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, error: int
) -> None:
    with store.create(tmp_path / "store") as writer:
        writer.append([1, 2], {"x": np.ones((2, size))})
    reader = store.open(tmp_path / "store")

    def refused(*args: Any, **options: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(_local.os, "pread", refused)
    monkeypatch.setattr(_local.mmap, "mmap", refused)
    for call in (lambda: reader.read("x"), lambda: list(reader.blocks()), reader.ids):
        with pytest.raises(StoreReadError, match=os.strerror(error)):
            call()
    monkeypatch.undo()
    assert reader.read("x").shape == (2, size)
