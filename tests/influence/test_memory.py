"""The memory of a scan is that of its budget, whatever the size of the store."""

import subprocess
import sys

import numpy as np
import pytest

from sawlog import store

BUDGET = 16 << 20
PROGRAM = """
import sys, threading, time
import numpy as np
from sawlog.influence import attribute

def resident():
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["RssAnon"].split()[0]) + int(lines["RssFile"].split()[0])

def watch(done, seen):
    while not done.wait(0.002):
        seen.append(resident())

path, budget = sys.argv[1], int(sys.argv[2])
queries = {"w": np.random.default_rng(0).normal(size=(20, 1024)).astype(np.float32)}
few = {"w": np.ones((2000, 1024), np.int8)}  # threads and buffers of the matrix product
attribute(few, queries, curvature="identity", mode="cosine", budget=budget)
for mode in ("dot", "cosine"):
    seen, done = [resident()], threading.Event()
    watcher = threading.Thread(target=watch, args=(done, seen))
    watcher.start()
    scores = attribute(path, queries, curvature="identity", mode=mode, top_k=5, budget=budget)
    done.set()
    watcher.join()
    print((max(seen) - seen[0]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_of_a_scan(tmp_path):
    """Of int8, which is widened to four times its size."""
    rows = np.random.default_rng(0).integers(-99, 99, (4096, 1024), np.int8)
    with store.create(tmp_path / "logs", interval=None) as writer:
        for part in range(10):
            writer.append(np.arange(4096) + 4096 * part, {"grad/w": rows})
    size = sum(file.stat().st_size for file in (tmp_path / "logs").rglob("*") if file.is_file())
    assert 4 * size > 10 * BUDGET
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "logs", str(BUDGET)],
        capture_output=True,
        text=True,
        check=True,
    )
    grown = [int(line) for line in ran.stdout.split()]
    assert len(grown) == 2
    for each in grown:
        assert each < BUDGET + (8 << 20), f"{each / 1e6:.0f} MB of {BUDGET / 1e6:.0f}"
