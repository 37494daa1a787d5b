"""A reader shows one moment of a store, and a writer writes into its own store only."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError, SchemaError, StoreWriteError
from tests.thorough import THOROUGH


def first_segment(path: Path) -> Path:
    return sorted((path / "segments").iterdir())[0]


def test_a_refresh_that_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with store.create(path, merge=False) as writer:
        for i in (1, 2):
            writer.append([i], {"a": np.array([float(i)])})
            writer.log({"x": float(i)}, step=i)
            writer.flush()
        reader = store.open(path)
        assert reader.gather([1])["a"].tolist() == [1]
        writer.append([3], {"a": np.array([3.0])})
        writer.log({"x": 3.0}, step=3)
    hidden = first_segment(path).rename(tmp_path / "hidden")
    for _ in range(2):
        with pytest.raises(DamagedStoreError):
            reader.refresh()
        assert list(reader.ids()) == [1, 2]
        assert reader.count("x") == 2
    hidden.rename(path / "segments" / sorted(writer_names(reader))[0])
    assert reader.refresh()
    assert reader.gather([1, 2, 3])["a"].tolist() == [1, 2, 3]
    assert reader.entries("x").values.tolist() == [1, 2, 3]


def writer_names(reader: Any) -> list[str]:
    return [segment.name for segment in reader.segments]


def test_an_interrupt_at_any_line_of_refresh(tmp_path: Path) -> None:
    path = tmp_path / "s"
    values = np.arange(1.0, 6.0)
    with store.create(path, interval=None, duplicates="replace") as writer:
        writer.append([1, 2, 3, 4, 5], {"a": values})
        writer.flush()
        shutil.copytree(path, tmp_path / "before")
        writer.append([1], {"a": np.array([1.0])})
    store.compact(path)
    shutil.copytree(path, tmp_path / "after")
    line, done = 1, False
    while not done:
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "before", path)
        reader = store.open(path)
        reader.gather([1])
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "after", path)
        done = not interrupted(reader.refresh, line)
        reader.refresh()
        assert reader.gather([1, 2, 3, 4, 5])["a"].tolist() == values.tolist(), line
        assert sorted(reader.ids()) == [1, 2, 3, 4, 5]
        line += 1 if THOROUGH else 17
    assert line > 100


def interrupted(call: Any, number: int) -> bool:
    """Whether there was a line with this number, at which the call was interrupted."""
    seen = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal seen
        if "sawlog" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen += 1
            if seen == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_writer_never_writes_into_another_store(tmp_path: Path) -> None:
    """A cell of a notebook that is run twice, with the folder removed in between."""
    path = tmp_path / "s"
    old = store.create(path, interval=None)
    old.append([6], {"a": np.array([6.0])})
    old.flush()
    shutil.rmtree(path)
    with store.create(path) as new:
        new.append([7], {"a": np.array([7.0])})
    old.append([8], {"a": np.array([8.0])})
    with pytest.raises(StoreWriteError, match="removed or replaced by another"):
        old.flush()
    with pytest.raises(StoreWriteError, match="removed or replaced by another"):
        old.close()
    old.abort()
    assert store.verify(path).ok
    with store.open(path) as reader:
        assert list(reader.ids()) == [7]
    assert not [name for name in os.listdir(path / "writers") if name.startswith(old.id)]


def test_fields_that_overlap_are_refused(tmp_path: Path) -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 0]})
    with store.create(tmp_path / "s") as writer, pytest.raises(SchemaError, match="overlap"):
        writer.append([1, 2], {"a": np.zeros(2, dtype)})
