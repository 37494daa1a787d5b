"""A program in a pseudo-terminal, and the screen of it, as a terminal emulator sees it."""

import dataclasses
import fcntl
import functools
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

import sawlog
from sawlog.sinks._console import _live_screen

_SHOWN = _live_screen.END.encode()
SOURCE = str(Path(sawlog.__file__).parents[1])


@dataclasses.dataclass
class Seen:
    """What came out of a program: everything that was sent, and the screen at each moment."""

    code: int
    sent: bytes
    columns: int
    rows: int

    def screen(self) -> pyte.Screen:
        """The screen at the end."""
        screen = pyte.HistoryScreen(self.columns, self.rows, history=10_000, ratio=0.5)
        pyte.ByteStream(screen).feed(self.sent)
        return screen

    @functools.cached_property
    def lines(self) -> list[str]:
        """All lines, also those that were scrolled away."""
        screen = self.screen()
        above = [
            "".join(line[column].data for column in range(self.columns))
            for line in screen.history.top
        ]
        return [line.rstrip() for line in (*above, *screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    def pictures(self) -> list[list[str]]:
        """The screen after each picture that was drawn."""
        screen = pyte.Screen(self.columns, self.rows)
        stream, found = pyte.ByteStream(screen), []
        *parts, _ = self.sent.split(_SHOWN)
        for part in parts:
            stream.feed(part + _SHOWN)
            found.append([line.rstrip() for line in screen.display])
        return found


def run(
    program: str, *, columns: int = 100, rows: int = 30, env=None, timeout: float = 300
) -> Seen:
    """Run Python source at a terminal of this size until it ends."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    keep = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    keep |= {"PYTHONPATH": SOURCE, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=side,
        stdout=side,
        stderr=side,
        env=keep | (env or {}),
        start_new_session=True,
    )
    os.close(side)
    sent, end = b"", time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            if select.select([main], [], [], 0.1)[0]:
                try:
                    more = os.read(main, 65536)
                except OSError:  # the other side is closed
                    break
                if not more:
                    break
                sent += more
        code = process.wait(max(0.1, end - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(main)
    return Seen(code, sent, columns, rows)
