"""Pools of threads that also work where no thread can be started.

An interpreter that ends starts no more of them, and a process can have too many. Then the caller
does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.thread import ThreadPoolExecutor  # not loaded by its first use
from typing import Any


def thread_pool(
    threads: int, name: str, initializer: Callable[[], object] | None = None
) -> Executor:
    """Return a pool of threads, or one that does all work in ``submit``.

    No thread is started before there is work. ``initializer`` is called once in each new thread,
    so never in that of the caller.

    >>> with thread_pool(2, "example") as pool:
    ...     pool.submit(max, 1, 2).result()
    2
    """
    return _LazyPool(threads, name, initializer)


class _LazyPool(Executor):
    """A pool that is started by its first work. One thread at a time may submit work."""

    def __init__(self, *options: Any) -> None:
        self._options = options
        self._pool: Executor | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = _start(*self._options)
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _start(*options: Any) -> Executor:
    pool = ThreadPoolExecutor(*options)
    try:
        pool.submit(int)
    except RuntimeError:
        return CallerExecutor()
    return pool


class CallerExecutor(Executor):
    """An executor without threads: ``submit`` makes the call before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make the call."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
