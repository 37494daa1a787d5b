"""The other end of `crash_writer.py`: start its jobs, kill them, and read what they reported."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


class Child:
    """A job that runs in a process of its own."""

    def __init__(self, fd, what):
        self._fd, self._what, self._text = fd, what, b""
        self.events = []
        self.pid = self.next()["pid"]

    def _read(self):
        ready, _, _ = select.select([self._fd], [], [], PATIENCE)
        if not ready:
            self.kill()
            raise AssertionError(f"no word from {self._what}; so far {self.events[-5:]}")
        data = os.read(self._fd, 1 << 16)
        self._text += data
        return bool(data)

    def next(self):
        """The next event; None if there will be none any more."""
        while b"\n" not in self._text:
            if not self._read():
                return None
        line, _, self._text = self._text.partition(b"\n")
        self.events.append(json.loads(line))
        return self.events[-1]

    def kill(self):
        """SIGKILL, now; harmless if the process has ended by itself."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def kill_after(self, seconds):
        """Kill it after so long; return all it had reported."""
        time.sleep(seconds)
        self.kill()
        return self.rest()

    def rest(self):
        """Everything reported until the process is gone; AssertionError if it failed."""
        while self.next() is not None:
            pass
        os.close(self._fd)
        for event in self.events:
            assert "failure" not in event, f"{self._what}: {event['failure']['trace']}"
        return self.events

    def outcome(self):
        """The failure that ended the job, or None if it went well."""
        while self.next() is not None:
            pass
        os.close(self._fd)
        last = self.events[-1]
        assert "failure" in last or "done" in last, f"{self._what} was killed: {self.events}"
        return last.get("failure")


class Server:
    def __init__(self):
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.store.crash_writer", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def start(self, job, die_before=0, **args):
        args = {key: str(a) if isinstance(a, Path) else a for key, a in args.items()}
        message = json.dumps({"job": job, "die_before": die_before, "args": args}).encode()
        ours, theirs = os.pipe()
        socket.send_fds(self._control, [message], [theirs])
        os.close(theirs)
        return Child(ours, f"{job} {args}")

    def close(self):
        self._control.close()
        self._process.wait(PATIENCE)
