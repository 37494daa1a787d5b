"""Several files at once: a thread for each core, and products that take one core each.

A matrix product over the rows of one file is too small to be worth sharing between cores: two such
products side by side are faster than one after the other on two cores.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_lock = threading.Lock()
_holders = 0
_limit: Any = None


def cores() -> int:
    """How many cores matrix products may take at present, as the program has it."""
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return max((int(each.num_threads or 1) for each in libraries), default=1)


@contextlib.contextmanager
def several(most: int) -> Iterator[tuple[Executor | None, int]]:
    """Threads for up to ``most`` parts, and how many; none if one core is all there is.

    Until the end products take as many cores as are left to each thread, in the whole program.
    """
    there = cores()
    workers = min(there, most)
    if workers < 2:
        yield None, 1
        return
    with _limited(there // workers), ThreadPoolExecutor(workers, "sawlog-scores") as pool:
        yield pool, workers


@contextlib.contextmanager
def _limited(threads: int) -> Iterator[None]:
    """Limit every product to so many threads; the last one who leaves puts it back as it was."""
    global _holders, _limit
    with _lock:
        if not _holders:
            _limit = ThreadpoolController().select(user_api="blas").limit(limits=threads)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                _limit.restore_original_limits()
                _limit = None
