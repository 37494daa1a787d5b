"""Reading where no thread can be started, as at the end of a program."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sawlog import _pool, store
from sawlog.store._reading import _table_index

PROGRAM = """
import atexit, sys
import numpy as np
from sawlog import store
from sawlog.store._reading import _table_index

_table_index._WORTH_THREADS = 1

@atexit.register
def end():
    with store.open(sys.argv[1]) as reader:
        rows = reader.gather([3, 999])["x"]
        print(rows[:, 0].tolist(), sum(len(block.ids) for block in reader.blocks("x")))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with store.create(tmp_path / "s", segment_bytes=4096) as writer:
        for start in range(0, 1000, 100):
            ids = np.arange(start, start + 100)
            writer.append(ids, {"x": np.repeat(ids[:, None], 5, 1).astype(np.float64)})
    return tmp_path / "s"


def test_at_the_end_of_a_program(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[3.0, 999.0] 1000", "")


def test_without_new_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_pool.ThreadPoolExecutor, "_adjust_thread_count", refused)
    monkeypatch.setattr(_table_index, "_WORTH_THREADS", 1)
    with store.open(path) as reader:
        assert reader.gather([3, 999])["x"][:, 0].tolist() == [3, 999]
        assert sum(len(block.ids) for block in reader.blocks("x")) == 1000


def test_errors_are_those_of_the_result() -> None:
    with pytest.raises(ZeroDivisionError):
        _pool.CallerExecutor().submit(lambda: 1 / 0).result()
