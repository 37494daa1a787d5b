"""Stores of generated rows, and the scores of all pairs by hand."""

import numpy as np

from sawlog import store
from sawlog.run_files._encode import decode, encode


def written(path, rows, ids, dtype="float64", *, each=1000, duplicates="error"):
    """A store of rows by layer, with so many in each segment; the rows as they are read back."""
    with store.create(path, duplicates=duplicates, interval=None) as writer:
        for start in range(0, len(ids), each):
            own = slice(start, start + each)
            columns = {}
            for name, values in rows.items():
                columns |= encode(f"grad/{name}", values[own], dtype)
            writer.append(ids[own], columns)
            writer.flush()
    columns = {}
    for name, values in rows.items():
        columns |= encode(f"grad/{name}", values, dtype)
    return {name: decode(columns, f"grad/{name}").astype(np.float64) for name in rows}


def segments(path):
    with store.open(path) as reader:
        return len(reader.segments)


def flat(rows):
    """All layers one after the other, ``[n, elements]``."""
    return np.concatenate([values.reshape(len(values), -1) for values in rows.values()], 1)


def by_hand(scores, ids, k, sign):
    """The best of each query: Python's own sorting, which keeps the order of equals."""
    key = {
        "positive": lambda pair: -pair[1],
        "negative": lambda pair: pair[1],
        "absolute": lambda pair: -abs(pair[1]),
    }[sign]
    found = []
    for row in scores.tolist():
        pairs = list(zip(ids, row, strict=True))
        usual = [pair for pair in pairs if np.isfinite(pair[1])]
        odd = [pair for pair in pairs if not np.isfinite(pair[1])]
        found.append((sorted(usual, key=key) + odd)[:k])
    return found
