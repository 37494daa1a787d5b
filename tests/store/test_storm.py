"""Writers that interrupt themselves, killed at random, beside a compactor and a reader."""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np

from sawlog import store
from sawlog.errors import StoreWriteError
from tests.store.storm_writer import ROWS
from tests.thorough import often


class Process:
    """A writer, and what it said."""

    def __init__(self, path, number, seed):
        command = [sys.executable, "-m", "tests.store.storm_writer", str(path), str(number)]
        self.process = subprocess.Popen(
            [*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.safe: list[int] = []
        self.lines = 0
        self.reading = threading.Thread(target=self._read)
        self.reading.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines += 1
            if line.startswith("safe ") and line.endswith("\n"):
                self.safe.append(int(line.split()[1]))

    def wait_for(self, lines):
        deadline = time.monotonic() + 120
        while self.lines < lines and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self):
        alive = self.process.poll() is None
        self.process.kill()
        self.reading.join()
        said = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        self.process.wait()
        assert alive, said
        return [batch for batch in self.safe if batch >= 0]


def test_kills_and_interrupts_mixed(tmp_path):
    path, chance, safe = tmp_path / "s", random.Random(7), set()
    store.create(path, duplicates="first").close()
    running = [Process(path, number, number) for number in range(3)]
    reader, kills = store.open(path), often(4, 150)
    for kill in range(kills):
        place = kill % len(running)
        running[place].wait_for(chance.randrange(3, 12))
        safe |= set(running[place].kill())
        running[place] = Process(path, len(running) + kill, kill)
        if kill % 3 == 1:
            with contextlib.suppress(StoreWriteError):  # a writer is just merging
                store.compact(path, grace=3600)
        reader.refresh()
        if "x" in reader.names:
            check_rows(reader)
    for each in running:
        each.wait_for(2)
        safe |= set(each.kill())
    assert store.verify(path).ok
    with store.open(path) as last:
        there = whole_batches(last)
    assert safe
    assert {b for b in safe if b not in there} == set()
    assert os.listdir(path / "segments")


def check_rows(reader):
    """Each row has its own values; a batch that spans segments may be there in part meanwhile."""
    ids = reader.ids()
    rows = reader.gather(ids)
    assert np.array_equal(rows["y"], ids.astype(np.int32))
    assert np.array_equal(rows["x"], ids[:, None] * np.array([1.0, 0.5, -1.0]))


def whole_batches(reader) -> set[int]:
    """The batches that are there whole: a killed writer may leave a part of its last one."""
    check_rows(reader)
    batches, counts = np.unique(reader.ids() // ROWS, return_counts=True)
    return set(batches[counts == ROWS].tolist())
