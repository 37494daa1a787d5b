"""Threads that score several files at once, one per core, with single-threaded matrix products.

A matrix product over the rows of one file is too small to be shared between cores. Two such
products in two threads are faster than one after the other on two cores.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from sawlog._array_device import NUMPY, TORCH_CPU, ArrayDevice
from sawlog._optional import require
from sawlog._pool import thread_pool

_lock = threading.Lock()
_holders = 0
_limit: Any = None


def cores(device: ArrayDevice = NUMPY) -> int:
    """Return how many cores a matrix product may use, as the program has set it."""
    if device == TORCH_CPU:
        return int(_torch().get_num_threads())
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return max((int(each.num_threads or 1) for each in libraries), default=1)


@contextlib.contextmanager
def several(most: int, device: ArrayDevice = NUMPY) -> Iterator[tuple[Executor | None, int]]:
    """Yield a pool for up to ``most`` parts and its size; ``(None, 1)`` if there is one core.

    Inside of the context the cores are divided among the threads: for numpy in the whole program,
    for torch in the threads of the pool.
    """
    available = cores(device) if device in (NUMPY, TORCH_CPU) else 1  # one part fills a device
    workers = min(available, most)
    if workers < 2:
        yield None, 1
        return
    limited = _limited_torch if device == TORCH_CPU else _limited
    with (
        limited(available // workers) as begin,
        thread_pool(workers, "sawlog-scores", begin) as pool,
    ):
        yield pool, workers


@contextlib.contextmanager
def _limited(threads: int) -> Iterator[Callable[[], None] | None]:
    """Limit the threads of BLAS; the last of several concurrent callers restores the limit."""
    global _holders, _limit
    with _lock:
        if not _holders:
            _limit = ThreadpoolController().select(user_api="blas").limit(limits=threads)
        _holders += 1
    try:
        yield None
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                _limit.restore_original_limits()
                _limit = None


@contextlib.contextmanager
def _limited_torch(threads: int) -> Iterator[Callable[[], None] | None]:
    """Yield an initializer for threads: torch's limit is per thread, inherited by new ones."""
    torch = _torch()
    before = torch.get_num_threads()
    try:
        yield lambda: torch.set_num_threads(threads)
    finally:
        torch.set_num_threads(before)


def limited_to(threads: int | None) -> contextlib.AbstractContextManager[Any]:
    """Limit the threads of matrix products in this process; None means unlimited."""
    return contextlib.nullcontext() if threads is None else _limited(threads)


def _torch() -> Any:
    return require("torch", "torch", "device=")
