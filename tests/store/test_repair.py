"""``repair`` that is killed half-way: nothing is lost or doubled, and it can be done again."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import _atomic, store
from sawlog.errors import StoreError
from sawlog.store._disk import LocalDisk
from sawlog.store._reading import _catalog


class Killed(BaseException):
    """The process is gone."""


def damaged_store(path: Path) -> None:
    """Five segments: an intact one, one with a damaged table, one that is cut, one that is gone."""
    with store.create(path, merge=False) as writer:
        for number in range(5):
            writer.append([number], {"row": np.full((1, 1000), float(number))})
            writer.append([number], {"other": np.full((1, 4), number)})
            writer.log({"loss": float(number)}, step=number)
            writer.flush()
    _, partly, cut, gone, _ = sorted((path / "segments").iterdir())
    data = bytearray(partly.read_bytes())
    data[data.index(np.full(1000, 1.0).tobytes()) + 8] ^= 1
    partly.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-9])
    gone.unlink()
    (path / "damaged").mkdir()
    (path / "damaged" / f"segments-{cut.name}").write_text("of an earlier repair")
    schema = sorted((path / "schema").iterdir())[0]
    schema.write_bytes(schema.read_bytes()[:-2])


def contents(reader: store.Reader) -> dict[str, Any]:
    rows = reader.gather(ids := reader.ids("row"), "row")["row"][:, 0]
    assert rows.tolist() == ids.tolist()
    others = reader.gather(reader.ids("other"), "other")["other"][:, 0]
    return {"row": ids.tolist(), "other": others.tolist(), "loss": reader.read("loss").tolist()}


def files_of(path: Path) -> set[bytes]:
    """The contents of segments and of the schema, wherever they are by now."""
    files = (file for kind in ("segments", "schema", "damaged") for file in path.glob(f"{kind}/*"))
    return {file.read_bytes() for file in files}


INTACT = {"row": [0, 4], "other": [0, 1, 4], "loss": [0.0, 1.0, 4.0]}


class Countdown:
    """Kills the process before one of its changes to the disk, each of which is counted."""

    def __init__(self, monkeypatch: Any, left: int) -> None:
        self.left = left
        for where, name in ((LocalDisk, "move"), (_atomic.AsideFile, "commit")):
            monkeypatch.setattr(where, name, self.counted(getattr(where, name)))

    def counted(self, call: Any) -> Any:
        def change(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return call(*args, **options)

        return change


def test_killed_before_each_change(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_catalog, "_PATIENCE", ())
    damaged_store(tmp_path / "damaged")
    damaged, done = files_of(tmp_path / "damaged"), 0
    for number in range(1, 100):
        path = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "damaged", path)
        with monkeypatch.context() as patch:
            countdown = Countdown(patch, number)
            try:
                store.repair(path)
            except Killed:
                done += 1
        with store.open(path, damaged="skip") as reader:
            assert contents(reader) == INTACT, number
        if countdown.left > 0:
            break
        with contextlib.suppress(StoreError), store.open(path) as reader:
            assert contents(reader) == INTACT, number  # as soon as it is taken for sound
        store.repair(path)
        with store.open(path) as reader:
            assert contents(reader) == INTACT, number
        assert store.verify(path).ok
        assert damaged <= files_of(path)  # nothing was overwritten
        shutil.rmtree(path)
    assert done >= 7
