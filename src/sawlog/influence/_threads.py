"""Several files at once: a thread for each core, and products that take one core each.

A matrix product over the rows of one file is too small to be worth sharing between cores: two such
products side by side are faster than one after the other on two cores.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from sawlog._array_device import NUMPY, TORCH_CPU, ArrayDevice
from sawlog._optional import require

_lock = threading.Lock()
_holders = 0
_limit: Any = None


def cores(place: ArrayDevice = NUMPY) -> int:
    """How many cores matrix products may take at present, as the program has it."""
    if place == TORCH_CPU:
        return int(_torch().get_num_threads())
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return max((int(each.num_threads or 1) for each in libraries), default=1)


@contextlib.contextmanager
def several(most: int, place: ArrayDevice = NUMPY) -> Iterator[tuple[Executor | None, int]]:
    """Threads for up to ``most`` parts, and how many; none if one core is all there is.

    Until the end products take as many cores as are left to each thread: those of numpy in the
    whole program, those of torch in these threads.
    """
    there = cores(place) if place in (NUMPY, TORCH_CPU) else 1  # a device is busy with one part
    workers = min(there, most)
    if workers < 2:
        yield None, 1
        return
    limited = _limited_torch if place == TORCH_CPU else _limited
    with (
        limited(there // workers) as begin,
        ThreadPoolExecutor(workers, "sawlog-scores", initializer=begin) as pool,
    ):
        yield pool, workers


@contextlib.contextmanager
def _limited(threads: int) -> Iterator[Callable[[], None] | None]:
    """Limit every product to so many threads; the last one who leaves puts it back as it was."""
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
    """What a thread of ours is to begin with: torch counts for each thread, and for new ones."""
    torch = _torch()
    before = torch.get_num_threads()
    try:
        yield lambda: torch.set_num_threads(threads)
    finally:
        torch.set_num_threads(before)


def _torch() -> Any:
    return require("torch", "torch", "device=")
