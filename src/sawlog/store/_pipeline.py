"""From accepted to published, in the background: one thread hashes and writes, the next one waits
for the disk and gives the file its name, while the first is at the next segment.

``Pipeline`` owns what was accepted, so that it can be published even where the writer itself was
forgotten by the program. At most ``queue`` sealed segments wait; then whoever has more must wait
too. A failure stops the line, keeps everything, and is raised to the next caller.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import TypeVar

from sawlog.errors import StoreError, StoreWriteError
from sawlog.store import _segment
from sawlog.store._files import explained
from sawlog.store._layout import Folder
from sawlog.store._pending import Pending
from sawlog.store._writer_notes import WriterNote, file_of

T = TypeVar("T")


class Pipeline:
    """What one writer has accepted, on its way to disk."""

    def __init__(
        self,
        folder: Folder,
        store: str,
        writer: str,
        clock: int,
        queue: int,
        interval: float | None,
    ) -> None:
        self.lock = threading.RLock()
        self.pending = Pending()
        self.published = 0
        self._changed = threading.Condition(self.lock)
        self._folder, self._store, self._writer = folder, store, writer
        self._clock, self._queue, self._interval = clock, queue, interval
        self._sealed: collections.deque[Pending] = collections.deque()
        self._ready: collections.deque[tuple[Pending, _segment.Unpublished]] = collections.deque()
        self._in_flight = 0
        self._free: list[Pending] = []
        self._sequence = 0
        self._failure: OSError | None = None
        self._since: float | None = None
        self._stopped = False
        self.failed = False  # what is logged came to a bad end
        self._threads: list[threading.Thread] = []

    # -- the callers' side; all under the lock ----------------------------------------------------

    def raise_failure(self) -> None:
        """Tell the caller what failed in the background, if anything did."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def accepted(self, nbytes: int) -> None:
        """Note that something was put into ``pending``."""
        self.pending.nbytes += nbytes
        if self._since is None and self._interval is not None:
            self._since = time.monotonic()
            self._start()
            self._changed.notify_all()

    def seal(self) -> None:
        """Send ``pending`` on its way, once there is room for it."""
        if not self.pending.filled:
            return
        self._start()
        while self._in_flight >= self._queue and self._failure is None:
            self._changed.wait()
        self.raise_failure()
        self._seal_now()

    def seal_if_possible(self) -> None:
        """As :meth:`seal`; after a failure ``pending`` just grows, and the next caller is told."""
        with contextlib.suppress(OSError):
            self.seal()

    def _seal_now(self) -> None:
        self._sealed.append(self.pending)
        self._in_flight += 1
        self.pending = self._free.pop() if self._free else Pending()
        self._since = None
        self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is on disk; what failed before is tried again.

        Raises:
            StoreWriteError: it failed, again.
        """
        with self.lock:
            self._failure = None
            self._changed.notify_all()
            self.seal()
            while self._in_flight and self._failure is None:
                self._changed.wait()
            self.raise_failure()

    def stop(self) -> None:
        """End the threads."""
        with self.lock:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    @property
    def is_here(self) -> bool:
        """Whether this is one of its own threads, which must not wait for itself."""
        return threading.current_thread() in self._threads

    def finish(self) -> None:
        """Flush, note that the writer is done, and stop."""
        self.flush()
        self._note(closed=True)
        self.stop()

    # -- the threads ------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._threads:
            for work, name in ((self._write, "write"), (self._commit, "commit")):
                thread = threading.Thread(target=work, name=f"sawlog-{name}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _write(self) -> None:
        while (sealed := self._next(self._sealed)) is not None:
            try:
                unpublished = self._prepare(sealed)
            except Exception as error:
                self._fail(error, self._sealed, sealed)
                continue
            with contextlib.suppress(OSError):  # tried again, and reported, when it is committed
                unpublished.write()
            with self.lock:
                self._ready.append((sealed, unpublished))
                self._changed.notify_all()

    def _commit(self) -> None:
        while (item := self._next(self._ready)) is not None:
            pending, unpublished = item
            try:
                unpublished.commit()
            except Exception as error:
                self._fail(error, self._ready, item)
                continue
            self.published += 1
            self._note(closed=False)
            with self.lock:
                pending.clear()
                self._free.append(pending)
                self._in_flight -= 1
                self._changed.notify_all()

    def _next(self, queue: collections.deque[T]) -> T | None:
        """The next item once there is one and nothing failed; None when it is time to stop."""
        with self.lock:
            while not self._stopped:
                patience = self._seal_if_old()
                if queue and self._failure is None:
                    return queue.popleft()
                self._changed.wait(patience)
        return None

    def _seal_if_old(self) -> float | None:
        """Seal what has waited for the interval; returns how long there is until then."""
        if self._since is None or self._interval is None or self._failure is not None:
            return None
        left = self._since + self._interval - time.monotonic()
        if left <= 0 and self._in_flight < self._queue and self.pending.filled:
            self._seal_now()
            return None
        return max(left, 0.05)

    def _fail(self, error: Exception, queue: collections.deque[T], item: T) -> None:
        with self.lock:
            queue.appendleft(item)
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                self._failure = explained(error, "writing to", self._folder.segments)
            else:
                self._failure = StoreWriteError(
                    f"Writing to {self._folder.segments} failed: {type(error).__name__}: {error}. "
                    "What was published before is safe. Hint: call flush() to try again."
                )
            self._failure.__cause__ = error
            self._changed.notify_all()

    def _prepare(self, sealed: Pending) -> _segment.Unpublished:
        sequence = self._sequence + 1
        chunks = sealed.filled
        description = {
            "version": _segment.VERSION,
            "store": self._store,
            "writer": self._writer,
            "sequence": sequence,
            "order": [self._clock + sequence, self._writer, sequence],
            "chunks": [chunk.describe() for chunk in chunks],
        }
        tensors = {name: array for chunk in chunks for name, array in chunk.arrays().items()}
        prepared = _segment.prepare(description, tensors)
        self._sequence = sequence
        name = _segment.file_name(self._writer, sequence)
        return _segment.Unpublished(prepared, self._folder.disk, name)

    def _note(self, closed: bool) -> None:
        """Say how far this writer got. Losing that is harmless, so nobody waits for the disk."""
        note = WriterNote(self.published, closed, self.failed, 0.0)
        with contextlib.suppress(OSError):
            self._folder.disk.put(file_of(self._writer), note.to_json(), durable=False)
