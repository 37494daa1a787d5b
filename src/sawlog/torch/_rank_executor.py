"""``RankExecutor``: the ranks of a ``torch.distributed`` job as workers of an analysis."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from sawlog._worker import Task, Worker
from sawlog.errors import ArgumentError, ProcessLostError

T = TypeVar("T")
_Outcome = tuple[Any, BaseException | None]


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
        self._own, self._exchange = Worker("sawlog-rank"), Worker("sawlog-ranks")
        self._lost: BaseException | None = None
        self._count, self._lock, self._is_open = 0, threading.Lock(), True

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Compute a task in the rank whose turn it is; all ranks submit the same tasks."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a task that one rank cancelled would block others
        with self._lock:
            if not self._is_open:
                raise RuntimeError("cannot schedule new futures after shutdown")
            owner = self._count % self.workers
            self._count += 1
            call = functools.partial(fn, *args, **kwargs)
            own = self._own.submit(call) if owner == self._rank else None
            self._exchange.submit(functools.partial(self._settle, owner, own, future))
        return future

    def _settle(self, owner: int, own: Task | None, future: Future[Any]) -> None:
        """Send an own result to the other ranks or receive that of another one.

        All ranks do this in the order of the tasks.
        """
        error: BaseException | None
        try:
            if self._lost is None:
                result, error = self._share(owner, own)
            else:
                result, error = None, self._lost
        except RuntimeError as failure:
            self._lost = error = _lost(owner, failure)
        except BaseException as failure:
            error = failure
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _share(self, owner: int, own: Task | None) -> _Outcome:
        sent = [b"" if own is None else _pickled(own)]
        dist.broadcast_object_list(sent, src=owner, group=self._group)
        outcome: _Outcome = pickle.loads(sent[0])
        return outcome

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an exception, such as that of Ctrl-C, the tasks that are left are not waited for.
        self.shutdown(wait=kind is None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after all tasks that were submitted.

        A program that ends does not wait for them.
        """
        del cancel_futures
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._own.stop()
                self._exchange.stop()
        if wait:
            self._exchange.join()


def _pickled(own: Task) -> bytes:
    """Return the result of a task, or its error, so that other ranks can read it."""
    try:
        return pickle.dumps((own.result(), None))
    except BaseException as failure:
        error = failure
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)  # an exception with arguments of its own may not come back
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return data


def _lost(owner: int, failure: BaseException) -> ProcessLostError:
    error = ProcessLostError(
        f"The result of rank {owner} did not arrive: {str(failure).splitlines()[0]} Hint: a rank "
        "ended, or did not submit the same tasks; every rank calls the same analysis with the same "
        "arguments."
    )
    error.__cause__ = failure
    return error
