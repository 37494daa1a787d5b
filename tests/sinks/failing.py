"""Sinks that fail on purpose."""

import threading
import time

from sawlog.sinks import MemorySink

PATIENCE = 120.0
"""Seconds to wait for what must happen, however busy the machine is."""


def wait_until(true):
    """Return when a function returns something true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


class Failing(MemorySink):
    """Raises in the methods that are named, as long as they are."""

    def __init__(self, *methods, error=None):
        super().__init__()
        self.methods, self.error = set(methods), error or OSError("the network is gone")

    def _fail(self, method):
        if method in self.methods:
            raise self.error

    def _write(self, records):
        self._fail("write")
        super()._write(records)

    def _flush(self):
        self._fail("flush")

    def _close(self):
        self._fail("close")


class Slow(MemorySink):
    """Waits before each write until it is let go on; notes who called it."""

    def __init__(self):
        super().__init__()
        self.go = threading.Semaphore(0)
        self.callers = set()

    def _write(self, records):
        assert self.go.acquire(timeout=PATIENCE)
        self.callers.add(threading.current_thread())
        super()._write(records)

    def _close(self):
        self.callers.add(threading.current_thread())


def within(call, seconds=PATIENCE):
    """Make a call in a thread, and fail if it hangs."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
