"""A thread that makes calls one after the other, for callers that may wait for a result or not.

An exception at any point of a caller, such as that of Ctrl-C, leaves nothing locked: the queue is
``queue.SimpleQueue``, which is reentrant, and each call has a lock of its own, which only its
completion releases. The thread is a daemon, so a call that hangs does not keep the program alive.

Python 3.12 and newer start no threads while the interpreter ends, and a process can have too many
of them. Then the caller makes the calls itself.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class Task:
    """One call that the thread makes."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the call has ended, at most for ``seconds``; return whether it has."""
        if not self._done.acquire(timeout=seconds):
            return False
        self._done.release()  # for further callers
        return True

    def result(self) -> Any:
        """Wait for the end of the call; return its value, or raise its exception."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        assert self._function is not None
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
        self._function = None
        self._done.release()


class Worker:
    """A queue of calls and the thread that makes them, in the order in which they were submitted.

    Where no thread can be started, ``submit`` makes the call before it returns.

    >>> worker = Worker("example")
    >>> worker.submit(lambda: 1 + 1).result()
    2
    >>> worker.stop()
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self.thread = thread

    def submit(self, function: Callable[[], Any]) -> Task:
        """Let the thread call ``function`` after all earlier calls; this does not wait."""
        task = Task(function)
        if self.thread is None:
            task._run()
        else:
            self._tasks.put(task)
        return task

    def stop(self) -> None:
        """End the thread after all earlier calls; this does not wait."""
        self._tasks.put(None)

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self.thread is not None:
            self.thread.join()


def _work(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task._run()
        del task  # it may hold large values, and waiting for the next one may take long
