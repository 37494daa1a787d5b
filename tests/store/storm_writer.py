"""A writer for the kill storm: it interrupts itself at random lines, and goes on.

``python -m tests.store.storm_writer PATH NUMBER SEED`` appends batches until it is killed. It
prints ``safe BATCH`` for batches that were accepted and flushed.
"""

from __future__ import annotations

import random
import sys

import numpy as np

from sawlog import store
from tests.store.interrupts import interrupted

ROWS = 5


def rows_of(batch: int) -> dict[str, np.ndarray]:
    """The rows of a batch, which follow from its number."""
    numbers = np.arange(batch * ROWS, (batch + 1) * ROWS)
    return {"x": numbers[:, None] * np.array([1.0, 0.5, -1.0]), "y": numbers.astype(np.int32)}


def main(path: str, number: int, seed: int) -> None:
    """Append, interrupted now and then, and flush, interrupted now and then."""
    chance = random.Random(seed)
    writer = store.open(path, "append", segment_bytes=400, interval=0.02)
    batch = number * 10**6 + chance.randrange(10**3) * 10**3
    print("ready", flush=True)
    while True:
        ids = list(range(batch * ROWS, (batch + 1) * ROWS))
        rows = rows_of(batch)
        at, kind = chance.randrange(1, 400), chance.choice([KeyboardInterrupt, MemoryError])
        result = interrupted(lambda i=ids, r=rows: writer.append(i, r), at, kind, "sawlog")
        left = len(writer.missing(ids))
        assert left in (0, ROWS), (left, result.where)
        assert result.error is not None or left == 0
        if chance.random() < 0.3:
            interrupted(writer.flush, chance.randrange(1, 300), kind, "sawlog")
            writer.flush()
            print("safe", batch if left == 0 else -1, flush=True)
        batch += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
