"""A million rows, scored within a budget of memory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from _timing import Row
from rich.progress import track

import sawlog.store
from sawlog.influence import attribute

LARGE, WIDTH, BUDGET = 1_000_000, 4_096, 2 << 30


def large(folder: Path, rows: int, command: list[str]) -> list[Row]:
    """Ten best of a million rows in bf16 for 100 queries; the command calls ``alone``."""
    path = folder / "large"
    draw = np.random.default_rng(0)
    some = draw.standard_normal((1 << 14, WIDTH), np.float32)
    with sawlog.store.create(path) as writer:
        for start in track(range(0, rows, len(some)), "writing", transient=True):
            part = np.roll(some, start % 8191, axis=1)[: min(len(some), rows - start)]
            ids = np.arange(start, start + len(part))
            writer.append(ids, {"grad/w": part.astype(ml_dtypes.bfloat16)})
    command = [sys.executable, *command, str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds, peak = found["seconds"], found["peak"]
    what, rate = f"{rows:,} x {WIDTH:,} in bf16", rows * 100 / seconds / 1e6
    who = f"10 best for 100 queries: {rate:.2f} M pairs/s; GB of memory of its own"
    return [Row(what, who, peak / 1e9, peak / 1e9, peak / 1e9, seconds, BUDGET / 1e9)]


def alone(path: str) -> None:
    """Seconds, and the greatest memory that is not pages of the memory map."""
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], _anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    queries = np.random.default_rng(1).standard_normal((100, WIDTH), np.float32)
    start = time.perf_counter()
    attribute(path, {"w": queries}, curvature="identity", top_k=10, budget=BUDGET)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(json.dumps({"seconds": seconds, "peak": peak[0]}))


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
