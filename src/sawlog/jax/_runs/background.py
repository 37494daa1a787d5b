"""The thread that writes what a Python loop logs, so that the loop does not wait for the device.

A :class:`Job` holds the logs of one call. Jobs wait in a queue, in the order of the calls. The
thread waits until the device has computed the first one, and then writes all that are ready. The
queue is bounded, in jobs and in bytes: when it is full, the loop waits.

A call that Ctrl-C interrupts has put its job into the queue or not, and leaves
nothing locked. One ``append`` puts it there, the main thread takes no locks, and jobs are written
by other threads, which receive no signals. The next call starts a thread for jobs without one.
"""

from __future__ import annotations

import collections
import itertools
import os
import threading
from collections.abc import Sequence

from sawlog._turn import Signal
from sawlog._worker import Worker

MOST = 256
"""The largest number of jobs that may wait."""
ROOM = 64 * 2**20
"""The largest number of bytes that may wait."""
GATHER = 0.1
"""Seconds for which jobs are gathered, unless a caller waits: many together cost less."""
IDLE = 5.0
"""Seconds after which an idle thread ends; the next job starts another one."""


class Job:
    """The logs of one call."""

    nbytes = 0
    over = False  # whether it was written

    @property
    def on_device(self) -> bool:
        """Whether a device may still be computing it."""
        return False

    def is_ready(self) -> bool:
        """Return whether some of it can be written."""
        return True

    def wait(self) -> None:
        """Return when it is ready. Raises nothing."""

    def write(self, behind: Sequence[Job]) -> int:
        """Write this job, and those of the ready jobs behind it that can be written with it.

        Returns the number of jobs that are done. Raises nothing: errors are kept for the callers.
        """
        raise NotImplementedError


class Background:
    """The queue of one logger, and its thread, which exists while there is work."""

    def __init__(self) -> None:
        self._jobs: collections.deque[Job] = collections.deque()
        self._bytes = 0  # of the jobs that wait; exact after each write
        self._writing = threading.Lock()
        self._work, self._progress = Signal(), Signal()
        self._waits_for_device = False
        self._hurry = False  # a caller waits, or many jobs do
        self._sleeps = False
        self._thread: threading.Thread | None = None
        self._writer: Worker | None = None  # writes for the main thread
        self._process = os.getpid()

    # -- the callers' side ------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no job waits."""
        return not self._jobs or self._is_elsewhere

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this is a forked process, where the thread does not exist."""
        return os.getpid() != self._process

    def put(self, job: Job) -> None:
        """Add a job, once there is room for it."""
        if self._is_elsewhere:
            job.wait()
            job.write(())
            return
        while not self._has_room(job):
            self._rouse()
            self._progress.wait(lambda: self._has_room(job))
        self._jobs.append(job)
        self._bytes += job.nbytes
        if not self._has_thread():
            self._work_off()
        elif self._sleeps or len(self._jobs) == MOST // 2:
            self._rouse()

    def _has_thread(self) -> bool:
        return self._thread is not None or self._start()

    def _rouse(self) -> None:
        self._hurry = True
        self._work.ring()

    def _has_room(self, job: Job) -> bool:
        # A job that needs no device may come from a callback that the device waits for, and with it
        # the jobs in front: waiting for room would be a deadlock.
        if not self._jobs or (self._waits_for_device and not job.on_device):
            return True
        return len(self._jobs) < MOST and self._bytes + job.nbytes <= ROOM

    def drain(self) -> None:
        """Return when all jobs put before are done."""
        last = self._last()
        if last is None or self._is_elsewhere:
            return
        while not last.over:
            if not self._has_thread():
                self._work_off()
            self._rouse()
            self._progress.wait(lambda: last.over)

    def _last(self) -> Job | None:
        try:
            return self._jobs[-1]
        except IndexError:
            return None

    def write_ready(self) -> None:
        """Write the jobs that are ready now, so that a run keeps the order of its logs."""
        if not self._jobs or self._is_elsewhere:
            return
        if threading.get_ident() != threading.main_thread().ident:
            self._write_ready()
            return
        if self._writer is None:
            self._writer = Worker("sawlog-writer")
        self._writer.submit(self._write_ready).result()

    # -- the thread -------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Start the thread; at the end of the interpreter this is no longer possible."""
        thread = threading.Thread(target=self._run, name="sawlog-background", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            self._work.wait(lambda: self._hurry, GATHER)
            self._hurry = False
            if self._jobs:
                self._work_off()
                continue
            self._sleeps = True
            self._work.wait(lambda: bool(self._jobs), IDLE)
            self._sleeps = False
            if not self._jobs:
                self._thread = None
                if not self._jobs:
                    return
                # A job was put in between, and its caller may still have seen this thread. If it
                # has started another one, both write, in turns.
                self._thread = threading.current_thread()

    def _work_off(self) -> None:
        """Write all jobs in the queue, and those added while a caller waits."""
        last = self._last()
        while (last is not None and not last.over) or (self._jobs and self._hurry):
            try:
                first = self._jobs[0]
            except IndexError:  # a callback wrote it in between
                return
            self._waits_for_device = True
            self._progress.ring()
            first.wait()
            self._waits_for_device = False
            self._write_ready()

    def _write_ready(self) -> None:
        with self._writing:
            while self._jobs and self._jobs[0].is_ready():
                ready = list(itertools.takewhile(Job.is_ready, list(self._jobs)))
                over = ready[0].write(ready[1:])
                self._forget(over)
                if not over:
                    return

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._jobs.popleft().over = True
        self._bytes = sum(job.nbytes for job in list(self._jobs))
        self._progress.ring()
