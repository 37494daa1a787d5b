"""Small stores, damage done to them, and the command line run on them."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import sawlog.store
from sawlog.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON of the strict kind and nothing else."""
        return json.loads(self.out, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))


class Terminal:
    """Runs commands in this process, as on a screen of a certain width."""

    def __init__(self, capsys, monkeypatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *args: object, width: int | None = None) -> Done:
        if width is None:
            self._monkeypatch.delenv("COLUMNS", raising=False)
        else:
            self._monkeypatch.setenv("COLUMNS", str(width))
        code = main([str(arg) for arg in args])
        return Done(code, *self._capsys.readouterr())


def make_run(path: Path, steps: int = 30) -> Path:
    """A store as a training run leaves it: two segments of series, one of rows."""
    with sawlog.store.create(path, meta={"lr": 0.1, "bad": "NaN"}) as writer:
        for step in range(steps):
            loss = np.float32("nan") if step == 3 else np.float32(step)
            writer.log({"loss": loss, "hidden": np.full(4, step, np.float32)}, step=step)
            if step == steps // 2:
                writer.flush()
        writer.flush()
        values = {"grad": np.full((7, 3), 2.0, np.float32), "label": np.arange(7, dtype=np.int8)}
        writer.append(np.arange(10, 17), values)
    return path


@contextlib.contextmanager
def a_second_entry_soon(path: Path) -> Iterator[None]:
    """Write an entry, and while the block runs another one, as a program would."""
    writer = sawlog.store.create(path, interval=None)
    writer.log({"loss": 1.0}, step=0)
    writer.flush()

    def more() -> None:
        writer.log({"loss": 0.5}, step=1)
        writer.close()

    timer = threading.Timer(0.05, more)
    timer.start()
    yield
    timer.join()


def segments(path: Path) -> list[Path]:
    """The segments of a store in the order they were written."""
    return sorted((path / "segments").iterdir())


def change_value(file: Path, name: str) -> None:
    """Change a byte of a tensor."""
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    data[8 + length + start] ^= 255
    file.write_bytes(data)


def cut(file: Path, nbytes: int = 8) -> None:
    """Cut off the end of a file."""
    os.truncate(file, file.stat().st_size - nbytes)
