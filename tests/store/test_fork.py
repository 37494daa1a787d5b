"""A child of a fork cannot use its parent's writer, and is told so; readers go on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import StoreClosedError
from tests.thorough import often

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def child(work) -> bool:
    """Whether a child that does this ends well within a while."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def test_every_call_of_a_writer_is_refused_at_once(tmp_path):
    """While threads of the parent are anywhere in it."""
    writer = store.create(tmp_path / "s", segment_bytes=2000, interval=0.01)
    reader = store.open(tmp_path / "s")
    stop, taken = threading.Event(), []

    def write():
        number = 0
        while not stop.is_set():
            writer.append([number], {"x": np.full((1, 100), float(number))})
            taken.append(number)
            number += 1
            if number % 10 == 0:
                reader.refresh()
                time.sleep(0.005)  # the children read all of it

    def work():
        calls = [
            lambda: writer.append([-1], {"x": np.zeros((1, 100))}),
            lambda: writer.log({"loss": 1.0}),
            lambda: writer.extend({"loss": [1.0]}),
            lambda: writer.write({}),
            lambda: writer.missing([1]),
            writer.flush,
        ]
        for call in calls:
            with pytest.raises(StoreClosedError, match="was opened in process"):
                call()
        writer.close()
        writer.abort()
        repr(writer)
        assert reader.refresh() in (True, False)
        reader.read("x")
        with store.open(tmp_path / "s") as own:
            own.ids()

    while len(os.listdir(tmp_path / "s" / "schema")) == 0:
        writer.append([10**6], {"x": np.zeros((1, 100))})
    thread = threading.Thread(target=write)
    thread.start()
    good = [child(work) for _ in range(often(6, 300))]
    stop.set()
    thread.join()
    writer.close()
    assert all(good)
    with store.open(tmp_path / "s") as written:
        assert sorted(written.ids().tolist()) == [*taken, 10**6]


def test_a_child_that_ends_as_programs_do(tmp_path):
    """Neither the garbage collector nor the end of the child publishes anything."""
    writer = store.create(tmp_path / "s", interval=None)
    writer.append([1], {"x": np.ones(1)})
    process = os.fork()
    if process == 0:
        try:
            del writer
            import gc

            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    assert os.listdir(tmp_path / "s" / "segments") == []
    writer.append([2], {"x": np.ones(1)})
    writer.close()
    with store.open(tmp_path / "s") as reader:
        assert reader.ids().tolist() == [1, 2]


FIRST_USE = """
    import sys, tempfile
    import numpy as np
    from sawlog import store
    before, folder = set(sys.modules), tempfile.mkdtemp()
    for kind in (int, str):
        path = f"{folder}/{kind.__name__}"
        with store.create(path, segment_bytes=2000) as writer:
            for start in range(0, 60, 20):
                ids = [kind(i) for i in range(start, start + 20)]
                rows = {"x": np.ones((20, 700), np.float32), "y": np.ones(20)}
                writer.append(ids if kind is str else np.array(ids), rows)
                writer.log({"loss": 0.5}, step=start)
                writer.flush()
            writer.missing(ids)
        reader = store.open(path)
        reader.gather(ids[:3])
        reader.gather(ids * 200)  # in threads
        reader.ids(), reader.read("x"), reader.entries("loss"), list(reader.blocks())
        store.verify(path), store.compact(path), reader.refresh(), store.repair(path)
    print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_imported_by_the_first_use(tmp_path):
    """A child of a fork that interrupts an import in another thread would wait for it forever."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(FIRST_USE)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "[]\n"
