"""What the program prints while a dashboard is on the screen: above it, byte for byte.

Rich's own proxy wraps lines anew, drops escape sequences and ends a line at every flush. This one
hands whole lines on as they are, and keeps the beginning of a line until its end comes; what is
there of it so far is shown above the dashboard, so that bars which redraw themselves work too.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

_LONGEST = 1 << 16  # characters of a line without end


class Raw:
    """Text that goes to the terminal as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class Proxy(io.TextIOBase):
    """A stream in the place of another; between ``start`` and ``end`` its lines go elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._show: Callable[[str], None] | None = None
        self._part = ""
        self._lock = threading.RLock()

    @property
    def rich_proxied_file(self) -> TextIO:
        """What rich writes to when it would write here."""
        return self._stream

    @property
    def part(self) -> str:
        """The beginning of a line whose end has not come, as a terminal would show it."""
        return self._part.rstrip("\r").rpartition("\r")[2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Hand whole lines on."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            if self._show is None:
                return self._stream.write(text)
            whole, end, part = (self._part + text).rpartition("\n")
            if len(part) > _LONGEST:
                part = part.rpartition("\r")[2][-_LONGEST:]
            self._part = part
            if end:
                self._show(whole + end)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write several texts."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Nothing is kept but the beginning of a line, which is on the screen."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The number of the file."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self._stream.encoding

    def start(self, show: Callable[[str], None]) -> None:
        """Hand lines to ``show`` from now on."""
        with self._lock:
            self._show = show

    def end(self) -> None:
        """Write what is left, and from now on everything, directly."""
        with self._lock:
            self._show = None
            part, self._part = self._part, ""
            if part:
                self._stream.write(part)
                self._stream.flush()


#: A proxy is never given up: ``print`` in another thread may be about to write to it without
#: holding it, and Python would crash.
_proxies: dict[int, Proxy] = {}


def _proxy_of(stream: TextIO) -> Proxy:
    return _proxies.setdefault(id(stream), Proxy(stream))


class Redirect:
    """Standard output and standard error, as far as they are the terminal, through proxies.

    The handlers of ``logging`` keep the stream that they were made with, so these are moved too.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._proxies: dict[str, Proxy] = {}

    def start(self) -> None:
        """Put the proxies in their places."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            try:
                here = stream is not None and stream.isatty()
            except ValueError:  # it is closed
                here = False
            if here and not hasattr(stream, "rich_proxied_file"):
                self._proxies[name] = proxy = _proxy_of(stream)
                proxy.start(self._show)
                setattr(sys, name, proxy)
                _move_handlers(stream, proxy)

    @property
    def parts(self) -> list[str]:
        """The beginnings of lines, as far as there are any."""
        return [proxy.part for proxy in self._proxies.values() if proxy.part]

    def restore(self) -> None:
        """Put the streams back, unless somebody else has put something there."""
        for name, proxy in self._proxies.items():
            if getattr(sys, name) is proxy:
                setattr(sys, name, proxy.rich_proxied_file)
            _move_handlers(proxy, proxy.rich_proxied_file)

    def end(self) -> None:
        """Put the streams back, and write what is left."""
        self.restore()
        for proxy in self._proxies.values():
            proxy.end()
        self._proxies.clear()


def _move_handlers(one: Any, other: Any) -> None:
    """Have the handlers of ``logging`` that write to one stream write to another."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is one:
                handler.setStream(other)
