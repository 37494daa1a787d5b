"""Run scripts in processes of their own, forked from one that has already imported what they need.

Importing torch or transformers takes seconds; a fork takes milliseconds. A script starts with the
modules in memory and is otherwise alone: it has its own arguments, environment and output, may be
killed, and runs its exit handlers at the end.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Fork:
    """One running script."""

    def __init__(self, status: int, output: int) -> None:
        self._status, self._output = status, output
        self.pid = int(self._line())
        self._returncode: int | None = None

    def _line(self) -> bytes:
        text = b""
        while not text.endswith(b"\n"):
            if not (data := os.read(self._status, 1)):
                raise EOFError("The process that starts scripts has ended.")
            text += data
        return text

    def wait(self, timeout: float) -> int:
        """Return its exit code, which is minus the number of the signal that killed it."""
        if self._returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                self.kill()
                raise TimeoutError(f"no end after {timeout} s:\n{self.output()}")
            self._returncode = int(self._line())
            os.close(self._status)
        return self._returncode

    def output(self) -> str:
        """Return what it has written to standard output and standard error."""
        return os.pread(self._output, 1 << 24, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill it; harmless if it has ended."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Forks:
    """The process that starts scripts; ``with Forks("torch") as forks: forks.start(text)``."""

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair()
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *modules],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(self, text: str, *arguments: object, env: Mapping[str, str] | None = None) -> Fork:
        """Start a script, with ``sys.argv[1:]`` and additions to the environment."""
        request = {
            "text": textwrap.dedent(text),
            "arguments": [str(each) for each in arguments],
            "env": dict(env or {}),
        }
        status, theirs = os.pipe()
        output = os.memfd_create("output")
        message = json.dumps(request).encode()
        socket.send_fds(self._control, [len(message).to_bytes(8, "little")], [theirs, output])
        self._control.sendall(message)
        os.close(theirs)
        return Fork(status, output)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._control.close()
        self._process.wait(60)


def serve(control: socket.socket) -> None:
    """Start scripts until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that wait for scripts are reaped
    while True:
        header, fds, _, _ = socket.recv_fds(control, 8, 2)
        if not header:
            return
        size, message = int.from_bytes(header, "little"), b""
        while len(message) < size:
            message += control.recv(size - len(message))
        if os.fork() == 0:
            control.close()
            _watch(json.loads(message), *fds)
        for fd in fds:
            os.close(fd)


def _watch(request: dict[str, Any], status: int, output: int) -> None:
    """Fork the script, report its number and then how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run(request, output)
    os.write(status, b"%d\n" % pid)
    _, code = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
    os._exit(0)


def _run(request: dict[str, Any], output: int) -> None:
    """Run the script as ``python -c`` would."""
    for standard in (1, 2):
        os.dup2(output, standard)
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["arguments"]]
    code = 0
    try:
        exec(compile(request["text"], "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Import the modules, then serve."""
    number, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    serve(socket.socket(fileno=int(number)))


if __name__ == "__main__":
    main()
