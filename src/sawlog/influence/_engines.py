"""Engines that compute parts of an analysis: pools, Dask, Ray, the ranks of a job.

:func:`as_executor` turns whatever ``executor=`` was given into a
:class:`concurrent.futures.Executor`. A task that is submitted several times, with another part
each time, is sent to Dask and Ray only once.

A *collective* executor has a copy of the program in each process: all copies submit the same tasks
in the same order, each computes its share, and all of them get all results. What such a program
reads from disk before it submits may differ from process to process, so :func:`agreed` lets one
of them read it for all.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, TypeVar

from sawlog._validate import refuse

T = TypeVar("T")
P = TypeVar("P")

PARTS_PER_WORKER = 4
_KINDS = (
    "a concurrent.futures.Executor, a dask.distributed.Client, the module ray, a "
    "multiprocessing.Pool, or sawlog.torch.RankExecutor()"
)


def as_executor(given: Any) -> Executor | None:
    """Return an executor for what was passed as ``executor=``.

    Raises:
        ArgumentError: the engine is not known.
    """
    if given is None:
        return None
    if isinstance(given, _DaskExecutor):
        return given
    client = getattr(given, "_client", given)  # that of client.get_executor()
    if _module(client).startswith("distributed") and hasattr(client, "scatter"):
        return _DaskExecutor(client)
    if isinstance(given, Executor):
        return given
    if getattr(given, "__name__", "") == "ray" and hasattr(given, "remote"):
        return _RayExecutor(given)
    if hasattr(given, "apply_async"):
        return _PoolExecutor(given)
    refuse("executor", _KINDS, given)


def _module(value: Any) -> str:
    return type(value).__module__


def workers_of(executor: Executor) -> int | None:
    """Return how many tasks an executor runs at a time; None if that is unknown."""
    found = getattr(executor, "workers", getattr(executor, "_max_workers", None))
    return found if isinstance(found, int) else None


def parts_for(executor: Executor, files: int, most: int) -> int:
    """Return into how many parts to divide files: some for each worker, so that none waits long."""
    workers = workers_of(executor)
    return min(files, most if workers is None else max(1, PARTS_PER_WORKER * workers))


def is_collective(executor: Executor | None) -> bool:
    """Return whether all processes of a job submit the same tasks."""
    return bool(getattr(executor, "is_collective", False))


def leads(executor: Executor | None) -> bool:
    """Return whether this process writes files for all processes of a collective executor."""
    return not is_collective(executor) or bool(getattr(executor, "leads", True))


def agreed(executor: Executor | None, read: Callable[[], T]) -> T:
    """Return what ``read`` returns; one process of a collective executor reads for all of them."""
    if executor is None or not is_collective(executor):
        return read()
    return executor.submit(read).result()


def in_order(
    executor: Executor, task: Callable[[P], T], parts: Iterable[P], most: int
) -> Iterator[T]:
    """Yield the results of a task for all parts in order, submitting ``most`` parts at a time."""
    waiting: deque[Future[T]] = deque()
    left = iter(parts)
    try:
        for part in itertools.islice(left, most):
            waiting.append(executor.submit(task, part))
        while waiting:
            result = waiting.popleft().result()
            for part in itertools.islice(left, 1):
                waiting.append(executor.submit(task, part))
            yield result
    finally:
        for future in waiting:
            future.cancel()


# -- adapters -------------------------------------------------------------------------------------


class _SendOnce:
    """Remembers the last function that was sent to the workers."""

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self._send = send
        self._function: Any = None
        self._sent: Any = None

    def __call__(self, function: Any) -> Any:
        if self._function != function:
            self._function, self._sent = function, self._send(function)
        return self._sent


def _call(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


class _DaskExecutor(Executor):
    """Submits to the workers of a ``dask.distributed.Client``."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.workers = sum(client.nthreads().values()) or None
        # A name made of the content could be that of an earlier one, which is just being deleted.
        send = functools.partial(client.scatter, broadcast=True, hash=False)
        self._sent = _SendOnce(lambda function: send(_SentTask(function)))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        ours: Future[T] = Future()
        ours.set_running_or_notify_cancel()
        run = functools.partial(_call_task, **kwargs)
        theirs = self._client.submit(run, self._sent(fn), *args, pure=False)
        theirs.add_done_callback(functools.partial(_settle, ours))
        return ours


class _SentTask:
    """A function as data, whose contents Dask does not inspect."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def _call_task(task: _SentTask, *args: Any, **kwargs: Any) -> Any:
    return task.function(*args, **kwargs)


def _settle(ours: Future[Any], theirs: Any) -> None:
    """Copy the outcome of a future of Dask."""
    try:
        ours.set_result(theirs.result())
    except BaseException as error:
        ours.set_exception(error)


class _RayExecutor(Executor):
    """Submits remote functions of Ray, which is started if it does not run."""

    def __init__(self, ray: Any) -> None:
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._run, self._sent = ray.remote(_call), _SendOnce(ray.put)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        function = functools.partial(fn, **kwargs) if kwargs else fn
        found: Future[T] = self._run.remote(self._sent(function), *args).future()
        return found


class _PoolExecutor(Executor):
    """Submits to a ``multiprocessing.Pool``, or to anything with its ``apply_async``."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        found = getattr(pool, "_processes", None)
        self.workers = found if isinstance(found, int) else None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._pool.apply_async(
            fn, args, kwargs, callback=future.set_result, error_callback=future.set_exception
        )
        return future


def threads_for(executor: Executor, cores: int) -> int | None:
    """Return how many threads each worker of a pool on this machine may use; None for others."""
    workers = workers_of(executor)
    if workers is None or not isinstance(executor, (ProcessPoolExecutor, _PoolExecutor)):
        return None
    return max(1, cores // workers)
