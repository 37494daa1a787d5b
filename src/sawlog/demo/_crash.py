"""A process that writes rows is killed several times, and resumes without a loss."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import sawlog.store
from sawlog.demo._sizes import Sizes

_WIDTH, _KILLS = 256, 3
_WRITER = """
import sys, numpy as np, sawlog.store
with sawlog.store.create(sys.argv[1], exists="append", segment_bytes=1 << 20) as writer:
    todo = writer.missing(range(int(sys.argv[2])))
    print(len(todo), flush=True)
    for ids in np.array_split(todo, max(1, len(todo) // 100)):
        writer.append(ids, {"grad": np.sin(ids[:, None] + np.arange(int(sys.argv[3])))})
"""


def _wait_for_progress(path: Path, writer: subprocess.Popen[str]) -> None:
    """Wait until the writer has published something more, and is in the middle of the rest."""

    def published() -> int:
        return sum(1 for _ in (path / "segments").glob("*"))

    before = published()
    while published() == before and writer.poll() is None:
        time.sleep(0.005)
    time.sleep(0.03)


def kill_and_resume(console: Console, path: Path, sizes: Sizes) -> None:
    """Kill a writer in the middle of its work, again and again, until it finishes."""
    console.rule("Killed, and resumed")
    command = [sys.executable, "-c", _WRITER, str(path), str(sizes.rows), str(_WIDTH)]
    for attempt in range(_KILLS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            missing = int(writer.stdout.readline())
            said = f"  a writer starts; {missing:>6,} of {sizes.rows:,} examples are missing"
            if attempt < _KILLS:
                _wait_for_progress(path, writer)
                writer.kill()
            console.print(said + ("   kill -9" if attempt < _KILLS else "   it finishes"))
    with sawlog.store.open(path) as reader:
        ids = np.random.default_rng(0).permutation(sizes.rows)[:1000]
        rows = reader.gather(ids)["grad"]
        whole = np.array_equal(np.sort(reader.ids()), np.arange(sizes.rows))
        if not whole or not np.array_equal(rows, np.sin(ids[:, None] + np.arange(_WIDTH))):
            raise AssertionError("rows are missing or wrong after the kills")
    done = sawlog.store.compact(path)
    console.print(
        f"All {sizes.rows:,} rows are there once. Compacted: {done.segments_before} files to "
        f"{done.segments_after}.\n"
    )
