"""``RankExecutor``: the ranks of a ``torch.distributed`` job as workers of an analysis."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from sawlog.errors import ArgumentError, ProcessLostError

T = TypeVar("T")


class RankExecutor(Executor):
    """Divides tasks among the ranks of a job, and gives all results to all ranks.

    Every rank creates one, and calls the same analysis with the same arguments. Tasks are
    computed in rotation: the first by rank 0, the second by rank 1, and so on. Logs must be on a
    disk that all ranks can read.

    Args:
        timeout: seconds to wait for the result of another rank.

    Raises:
        ArgumentError: ``torch.distributed`` is not initialized.

    ::

        with sawlog.torch.RankExecutor() as ranks:
            scores = sawlog.influence.attribute(run.store_path, queries, executor=ranks)
    """

    is_collective = True

    def __init__(self, timeout: float = 1800.0) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                "RankExecutor needs the ranks of a torch.distributed job. Hint: start the program "
                "with torchrun, and call torch.distributed.init_process_group() first."
            )
        self._rank, self.workers = dist.get_rank(), dist.get_world_size()
        self.leads = self._rank == 0
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._own = ThreadPoolExecutor(1, "sawlog-rank")
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._count, self._lock, self._is_open = 0, threading.Lock(), True
        self._thread = threading.Thread(target=self._exchange, name="sawlog-ranks", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Compute a task in the rank whose turn it is; all ranks submit the same tasks."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a task that one rank cancelled would block others
        with self._lock:
            if not self._is_open:
                raise RuntimeError("cannot schedule new futures after shutdown")
            owner = self._count % self.workers
            self._count += 1
            own = self._own.submit(fn, *args, **kwargs) if owner == self._rank else None
            self._tasks.put((owner, own, future))
        return future

    def _exchange(self) -> None:
        """Send own results to the other ranks and receive theirs, in the order of the tasks."""
        lost: BaseException | None = None
        while (task := self._tasks.get()) is not None:
            owner, own, future = task
            if lost is None:
                try:
                    result, error = self._share(owner, own)
                except RuntimeError as failure:
                    lost = _lost(owner, failure)
            if lost is not None:
                future.set_exception(lost)
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _share(self, owner: int, own: Future[Any] | None) -> tuple[Any, BaseException | None]:
        outcome: list[Any] = [None]
        if own is not None:
            error = own.exception()
            outcome = [(None, error) if error is not None else (own.result(), None)]
        dist.broadcast_object_list(outcome, src=owner, group=self._group)
        return outcome[0][0], outcome[0][1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after all tasks that were submitted."""
        del cancel_futures
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._tasks.put(None)
        if wait:
            self._thread.join()
        self._own.shutdown(wait)


def _lost(owner: int, failure: BaseException) -> ProcessLostError:
    error = ProcessLostError(
        f"The result of rank {owner} did not arrive: {str(failure).splitlines()[0]} Hint: a rank "
        "ended, or did not submit the same tasks; every rank calls the same analysis with the same "
        "arguments."
    )
    error.__cause__ = failure
    return error
