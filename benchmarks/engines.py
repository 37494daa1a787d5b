"""Analysis on engines: one worker against two, for fitting a curvature and for scoring.

Each worker is a process with matrix products of one core, so two workers on two free cores should
be nearly twice as fast as one. Rows are float32, in files of a store that the page cache holds.
--dask measures a cluster of Dask as well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _timing import Contestant, Row, compare, report
from threadpoolctl import threadpool_limits

import sawlog.store
from sawlog.influence import Logs, attribute, curvature_for

SHAPES = {f"h.{i}": (32, 32) for i in range(8)}
QUERIES = 128


def written(path: Path, count: int) -> dict[str, np.ndarray]:
    """Write rows to a store of about 32 files; return the queries."""
    draw = np.random.default_rng(0)
    size = 4 * count * sum(rows * cols for rows, cols in SHAPES.values()) // 32
    with sawlog.store.create(path, segment_bytes=size) as writer:
        for start in range(0, count, 512):
            some = min(512, count - start)
            rows = {
                f"grad/{n}": draw.standard_normal((some, *s), np.float32) for n, s in SHAPES.items()
            }
            writer.append(np.arange(start, start + some), rows)
    return {n: draw.standard_normal((QUERIES, *s), np.float32) for n, s in SHAPES.items()}


def limit() -> None:
    """Use one core for matrix products, in this process for good."""
    threadpool_limits(1)


@contextlib.contextmanager
def pool(workers: int) -> Iterator[Any]:
    """A pool of processes that have imported everything."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=fresh, initializer=limit) as found:
        list(found.map(Logs, [{"w": np.eye(2)}] * 4 * workers))
        yield found


@contextlib.contextmanager
def dask(workers: int) -> Iterator[Any]:
    """A cluster of Dask on this machine."""
    import distributed

    with (
        distributed.LocalCluster(workers, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def fitted(path: Path, executor: Any) -> None:
    """Fit a curvature whose time is that of the sums over rows; it is not saved."""
    curvature_for(Logs(path), "shampoo", executor=executor, budget=1 << 28)


def speed_up(path: Path, queries: Any, engine: Any, name: str, rounds: int) -> list[Row]:
    """Two workers against one."""
    rows = []
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(engine(n)) for n in (1, 2))
        known = {"curvature": "identity", "top_k": 10, "budget": 1 << 28}
        tasks = {
            "scoring": lambda executor: attribute(path, queries, executor=executor, **known),
            "fitting": functools.partial(fitted, path),
        }
        for what, task in tasks.items():
            rows += compare(
                f"{what}, {name}",
                [
                    Contestant("one worker", functools.partial(task, one)),
                    Contestant("two workers", functools.partial(task, two)),
                ],
                rounds=rounds,
                speed=True,
                limits={"two workers": 1.6},
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--dask", action="store_true", help="measure a cluster of Dask as well")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    args = parser.parse_args()
    limit()  # workers of a pool share the cores of this process: one each, also if there is one
    folder = Path(tempfile.mkdtemp(prefix="sawlog-bench-"))
    try:
        queries = written(folder / "rows", 4_000 if args.quick else 40_000)
        rounds = 3 if args.quick else 9
        rows = speed_up(folder / "rows", queries, pool, "processes", rounds)
        if args.dask:
            rows += speed_up(folder / "rows", queries, dask, "Dask", rounds)
    finally:
        shutil.rmtree(folder)
    sys.exit(0 if report(rows, "Speed of two workers over one", args.save) else 1)


if __name__ == "__main__":
    main()
