"""Publish accepted data in the background.

One thread writes a segment, and one waits for the disk and renames the file, while the first works
on the next segment. Large segments are hashed before that, in a thread of their own.

The :class:`Pipeline` owns the accepted data, so that it is published even if the program drops the
writer. At most ``queue`` sealed segments wait; after that, callers wait. A failure stops the
threads, keeps all data, and is raised to the next caller.

An exception at any line, such as Ctrl-C, leaves nothing locked or half done. Callers change the
state in one step (``_accepted.py``), one at a time (``sawlog._turn``). The threads change only the
segment that they work on. A segment stays queued until it is published, and publishing it twice has
the same result as once.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import time
from collections.abc import Callable

from sawlog._turn import Signal, Turn
from sawlog.errors import StoreError, StoreWriteError
from sawlog.store._format import _header, _segment_writer
from sawlog.store._format._json_files import background_error
from sawlog.store._format._layout import Folder, identity_of
from sawlog.store._format._writer_notes import HeldNote, WriterNote
from sawlog.store._maintenance._merge_small import FAN, SmallSegmentMerger
from sawlog.store._maintenance._remove import InUse
from sawlog.store._writing._accepted import SealedSegment, WriterCall, WriterState

_SHARE = 20  # automatic publishing takes at most 1/20 of the time,
_SELDOM = 30.0  # but pending data waits at most this number of seconds
_LARGE = 4 << 20  # bytes; larger segments are hashed in a thread of their own
_POLL = 1.0  # seconds between checks of the state, should a signal be missed
_Task = Callable[[], bool]  # does the next piece of work; returns False if there was none


class _TaskThread:
    """The thread of a task: the one that it was created in."""

    def __init__(self) -> None:
        self.ident, self.ended = _thread.get_ident(), False


class Pipeline:
    """Publishes the accepted data of one writer."""

    def __init__(
        self,
        folder: Folder,
        store: str,
        writer: str,
        clock: int,
        *,
        queue: int,
        interval: float | None,
        segment_bytes: int,
        in_use: InUse | None = None,
        merger: SmallSegmentMerger | None = None,
        small: int = 0,
    ) -> None:
        self.turn = Turn()
        self.published = 0
        self.failed = False  # the program failed
        self.error = ""  # what stopped it
        self._folder, self._store, self._writer, self._clock = folder, store, writer, clock
        self._most_queued, self._interval, self._segment_bytes = queue, interval, segment_bytes
        self._last, self._in_use, self._merger = WriterState(), in_use, merger
        self._progress = HeldNote(folder.disk, writer)
        self._small = small  # segments published since small ones were merged
        self._not_before = 0.0  # earliest time of the next automatic publication
        self._changed = Signal()
        self._failure: OSError | None = None
        self._stopped = False
        self._threads: dict[str, _TaskThread] = {}  # by name of the task
        self._started: set[str] = set()  # names of tasks

    def report_open(self) -> None:
        """Report that the writer is there, before it publishes anything."""
        self._note(closed=False)

    # -- for callers ------------------------------------------------------------------------------

    @property
    def state(self) -> WriterState:
        """The current state: all accepted data."""
        state = self._last
        while (after := state.after.get(0)) is not None:
            state = after
        self._last = state
        return state

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return self._stopped or self.state.closed

    def raise_failure(self) -> None:
        """Raise the failure of a background thread, if there was one."""
        failure = self._failure
        if failure is not None:
            raise failure.with_traceback(None)

    def begin(self, nested: bool) -> WriterCall:
        """Start a call, to be staged and committed within one turn."""
        return WriterCall(self.state, nested, self._segment_bytes * 2)

    def wait_for_room(self, nbytes: int) -> None:
        """Wait until a call may add ``nbytes``, some of them in sealed segments.

        The bytes that wait for the disk are bounded by the queue, or by the call if it is larger.

        Raises:
            StoreWriteError: the disk refuses.
        """
        most = max(nbytes, (self._most_queued + 1) * self._segment_bytes - nbytes)

        def roomy() -> bool:
            waiting = self.state.waiting
            room = len(waiting) < self._most_queued and sum(s.nbytes for s in waiting) <= most
            return room or self._failure is not None or self._stopped

        while not self._changed.wait(roomy):
            self._start()
        self.raise_failure()

    def accepted(self, before: WriterState) -> None:
        """Wake the threads if the state since ``before`` needs them."""
        state = self.state
        if state.sequence != before.sequence or (
            before.since is None and self._interval is not None
        ):
            self._start()
            self._changed.ring()

    def flush(self) -> None:
        """Wait until everything is on disk; retry what failed before.

        Raises:
            StoreWriteError: writing failed again.
        """
        self._failure = None
        with self.turn.taken() as nested:
            while True:
                call = self.begin(nested)
                call.seal()
                if call.commit():
                    break
        queue = self.state.queue
        self._changed.ring()
        if any(not sealed.done for sealed in queue):
            self._start()
        while not self._changed.wait(lambda: self._stuck or all(s.done for s in queue)):
            self._start()
        self.raise_failure()

    @property
    def _stuck(self) -> bool:
        return self._failure is not None or self._stopped

    def finish(self) -> None:
        """Flush, refuse further calls, stop the threads, and report the writer as closed."""
        while not self.closed:
            self.flush()
            with self.turn.taken() as nested:
                call = self.begin(nested)
                call.closed = call.idle
                call.commit()
        self._end_threads()
        self._note(closed=True)  # after the threads ended, which report it as open
        self._release()

    def stop(self) -> None:
        """End the threads, and leave the store as the end of the process would."""
        self._end_threads()
        self._release()

    def _end_threads(self) -> None:
        self._stopped = True
        self._changed.ring()
        while not self._changed.wait(self._all_ended):
            pass

    def _release(self) -> None:
        self._progress.release()
        if self._in_use is not None:
            self._in_use.release()

    def _all_ended(self) -> bool:
        here = _thread.get_ident()
        return all(each.ended or each.ident == here for each in list(self._threads.values()))

    @property
    def is_here(self) -> bool:
        """Whether the current thread is one of the pipeline's own."""
        here = _thread.get_ident()
        return any(each.ident == here and not each.ended for each in list(self._threads.values()))

    # -- the threads ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the threads unless they run. A second thread for a task ends at once."""
        if "hash" not in self._started and self._next_to_hash() is not None:
            self._start_task("hash", self._hash_one)
        self._start_task("write", self._write_one)
        self._start_task("publish", self._publish_one)

    def _start_task(self, name: str, task: _Task) -> None:
        if name not in self._started and not self._stopped:
            try:
                _thread.start_new_thread(self._run, (name, task))
            except RuntimeError:  # Python 3.12 starts no threads while the interpreter ends
                self._work_here(task)
            else:
                self._started.add(name)

    def _work_here(self, task: _Task) -> None:
        """Do the work of a thread that cannot be started; small segments stay unmerged."""
        try:
            while task != self._merge_small and self._failure is None and task():
                pass
        except Exception as error:
            self._fail(error)

    def _run(self, name: str, task: _Task) -> None:
        thread = _TaskThread()
        if self._threads.setdefault(name, thread) is not thread:
            return
        try:
            while not self._stopped:
                try:
                    self._work(task)
                except BaseException:  # recording the failure failed, too: keep the thread alive
                    time.sleep(0.05)
        finally:
            thread.ended = True
            self._changed.ring()

    def _work(self, task: _Task) -> None:
        """Do the next piece of work of a task; if there is nothing to do, wait for a change."""
        seen, failure = self.state, self._failure
        try:
            seconds = self._seal_if_old()
            if failure is None and task():
                return
        except BaseException as error:
            self._fail(error)
            seconds = _POLL

        def changed() -> bool:
            same = self.state is seen and self._failure is failure
            return self._stopped or not same or (failure is None and self._has_work(task))

        self._changed.wait(changed, seconds)

    def _has_work(self, task: _Task) -> bool:
        if task == self._merge_small:
            return self._small >= FAN
        tasks = {self._hash_one: self._next_to_hash, self._write_one: self._next_to_write}
        return tasks.get(task, self._next_to_publish)() is not None

    def _next_to_hash(self) -> SealedSegment | None:
        """Return the next large segment to hash; a small one is hashed when it is written."""
        queue = self.state.queue
        large = (s for s in queue if s.nbytes >= _LARGE and s.unpublished is None and not s.done)
        return next(large, None)

    def _next_to_write(self) -> SealedSegment | None:
        """Return the next segment to write, if it is small or hashed."""
        first = next((s for s in self.state.queue if not s.written and not s.done), None)
        if first is None or (first.nbytes >= _LARGE and first.unpublished is None):
            return None
        return first

    def _next_to_publish(self) -> SealedSegment | None:
        """Return the next segment to publish, if it is written."""
        first = next((s for s in self.state.queue if not s.done), None)
        return first if first is not None and first.written else None

    def _hash_one(self) -> bool:
        sealed = self._next_to_hash()
        if sealed is None:
            return False
        began = time.monotonic()
        unpublished = self._prepare(sealed)
        sealed.seconds = time.monotonic() - began
        sealed.unpublished = unpublished
        self._changed.ring()
        return True

    def _write_one(self) -> bool:
        sealed = self._next_to_write()
        if sealed is None:
            return False
        began = time.monotonic()
        unpublished = sealed.unpublished or self._prepare(sealed)
        with contextlib.suppress(OSError):  # tried again, and reported, when it is committed
            unpublished.write()
        sealed.seconds += time.monotonic() - began
        sealed.unpublished = unpublished
        sealed.written = True
        self._changed.ring()
        return True

    def _publish_one(self) -> bool:
        sealed = self._next_to_publish()
        if sealed is None or sealed.unpublished is None:
            return False
        began = time.monotonic()
        self._check_store()
        sealed.unpublished.commit()
        now = time.monotonic()
        self._not_before = now + min(_SELDOM, _SHARE * (sealed.seconds + now - began))
        self.published = sealed.sequence
        if self._merger is not None and sealed.nbytes < self._segment_bytes // 2:
            self._small += 1
        self._note(closed=False)
        sealed.finish()
        self._changed.ring()
        if self._small >= FAN:
            self._start_task("merge", self._merge_small)
        return True

    def _check_store(self) -> None:
        """Refuse to publish into another store that was created at the same path."""
        if self._is_another():
            raise StoreWriteError(
                f"The store at {self._folder.path} was removed or replaced by another one after "
                "this writer was opened. Pending data is not written to the new store. "
                "Hint: abort() this writer, and open the store again."
            )

    def _is_another(self) -> bool:
        """Return whether another store has the path; a missing or damaged one does not count."""
        with contextlib.suppress(StoreError, OSError):
            return identity_of(self._folder).id != self._store
        return False

    def _merge_small(self) -> bool:
        """Merge small segments; a failure is retried later."""
        if self._merger is None or self._small < FAN:
            return False
        self._small = 0
        with contextlib.suppress(Exception):
            if not self._is_another():
                self._merger.merge()
        return True

    def _seal_if_old(self) -> float:
        """Seal data that has waited for the interval; return the seconds until the next check."""
        state = self.state
        if state.since is None or self._interval is None or self._stuck:
            return _POLL
        left = max(state.since + self._interval, self._not_before) - time.monotonic()
        if left > 0:
            return min(left, _POLL)
        if len(state.waiting) < self._most_queued:
            hold = self.turn.take(sys._getframe(), wait=False)
            if hold is not None:
                call = self.begin(nested=False)
                call.seal()
                call.commit()
                self.turn.end(hold)
                self._start()
                self._changed.ring()
                return _POLL
        return 0.05

    def _fail(self, error: BaseException) -> None:
        self._failure = background_error(error, self._folder.segments)
        self._changed.ring()

    def _prepare(self, sealed: SealedSegment) -> _segment_writer.UnpublishedSegment:
        parts = sealed.parts
        description = {
            "version": _header.PLAIN,
            "store": self._store,
            "writer": self._writer,
            "sequence": sealed.sequence,
            "order": [self._clock + sealed.sequence, self._writer, sealed.sequence],
            "chunks": [chunk.describe(extent) for chunk, extent in parts],
        }
        tensors = {n: a for chunk, extent in parts for n, a in chunk.tensors(extent).items()}
        prepared = _segment_writer.prepare(description, tensors)
        name = _header.file_name(self._writer, sealed.sequence)
        return _segment_writer.UnpublishedSegment(prepared, self._folder.disk, name)

    def _note(self, closed: bool) -> None:
        """Report the progress of this writer."""
        note = WriterNote(self.published, closed, self.failed, 0.0, self.error)
        if self._is_another():
            return
        hold = not closed and self._in_use is not None and self._in_use.marked
        with contextlib.suppress(OSError):
            self._progress.put(note, hold)
