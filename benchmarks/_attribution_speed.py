"""Query-train pairs a second from disk, against the bare matrix product over a memory map."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _attribution_peers import quiet
from _attribution_stores import STORES, Shapes, cut
from _timing import Contestant, Row, compare

import sawlog.store
from sawlog.influence import attribute

SHAPES: dict[str, Shapes] = {
    "MLP, 8,832 values": {"0": (64, 64), "2": (64, 64), "4": (10, 64)},
    "GPT, 65,536 values": {f"h.{i}": (64, 64) for i in range(16)},
}
QUERIES = 128
PAUSE = 0.1


def pairs(folder: Path, rounds: int, megabytes: int, peers: bool) -> list[Row]:
    """Scores from disk against the bare product over a memory map of the same rows."""
    out = []
    for what, shapes in SHAPES.items():
        width = sum(rows * cols for rows, cols in shapes.values())
        count = megabytes * 2**20 // (4 * width)
        path = folder / what.partition(",")[0]
        queries = _written(path, shapes, count, width)
        asked = _named(queries, shapes)
        bare = functools.partial(_bare, Path(f"{path}.npy"), queries)
        ours = functools.partial(attribute, path, asked, curvature="identity")
        best = functools.partial(ours, top_k=10)
        _same(ours().values, bare(), width)
        rows = compare(
            f"{what}, {count:,} x {QUERIES}",
            [
                Contestant("bare product", bare),
                Contestant("sawlog, all scores", ours),
                Contestant("sawlog, 10 best", best),
            ],
            rounds=rounds,
            limits={"sawlog, all scores": 0.8, "sawlog, 10 best": 0.8},
            speed=True,
            pause=PAUSE,
        )
        out += [_with_rate(row, count) for row in rows]
        if peers:
            out += _others(folder / "peer", Path(f"{path}.npy"), queries, what, shapes)
    return out


def _written(path: Path, shapes: Shapes, count: int, width: int) -> np.ndarray:
    """Write rows to a store and to one array beside it; the queries."""
    draw = np.random.default_rng(0)
    raw = np.lib.format.open_memmap(f"{path}.npy", "w+", np.float32, (count, width))
    with sawlog.store.create(path) as writer:
        for start in range(0, count, 512):
            some = draw.standard_normal((min(512, count - start), width), np.float32)
            raw[start : start + len(some)] = some
            writer.append(np.arange(start, start + len(some)), _named(some, shapes))
    raw.flush()
    time.sleep(2.5)  # files that may still change are checked again and again
    return draw.standard_normal((QUERIES, width), np.float32)


def _named(rows: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    return {f"grad/{name}": part for name, part in cut(rows, shapes).items()}


def _others(folder: Path, raw: Path, queries: np.ndarray, what: str, shapes: Shapes) -> list[Row]:
    """Others one by one, each beside the bare product over as many rows as it gets."""
    out = []
    for name, (way, share) in STORES.items():
        rows = np.load(raw, mmap_mode="r")
        rows = rows[: max(QUERIES, round(share * len(rows)))]
        folder.mkdir()
        with quiet():
            go = way(folder, rows, queries, shapes)
        bare = functools.partial(_bare, raw, queries, len(rows))
        found = _hushed(go)
        if found is not None:
            _same(found, bare(), rows.shape[1])
        found = compare(
            f"{what}, {len(rows):,} x {QUERIES}",
            [Contestant("bare product", bare), Contestant(name, functools.partial(_hushed, go))],
            rounds=3,
            speed=True,
            pause=PAUSE,
        )
        out += [_with_rate(row, len(rows)) for row in found]
        shutil.rmtree(folder)
    return out


def _hushed(go: Callable[[], Any]) -> Any:
    with quiet():
        return go()


def _same(one: np.ndarray, two: np.ndarray, width: int) -> None:
    assert np.allclose(one, two, rtol=1e-3, atol=1e-2 * width**0.5)


def _with_rate(row: Row, count: int) -> Row:
    rate = count * QUERIES / row.seconds
    return dataclasses.replace(row, who=f"{row.who}: {rate / 1e6:.3g} M pairs/s")


def _bare(path: Path, queries: np.ndarray, count: int | None = None) -> np.ndarray:
    """One matrix product over the memory map."""
    return queries @ np.load(path, mmap_mode="r")[:count].T
