"""Redirection of what the program prints while a dashboard is on the screen: above it, unchanged.

Rich's own redirection (``Live(redirect_stdout=True)``) fails the tests of the console: it wraps
lines again, drops escape sequences and ends a line at every flush. This one passes whole lines on
byte for byte. It buffers an incomplete line and shows it above the dashboard, so that progress bars
that redraw their line work.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

from sawlog._turn import Turn

_LONGEST = 1 << 16  # characters of an incomplete line that are kept


class Raw:
    """Text that is written to the terminal unchanged."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class Proxy(io.TextIOBase):
    """Replaces a stream; between ``start`` and ``end`` it passes lines to a function."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._show: Callable[[str], None] | None = None
        self._part = ""
        self._turn = Turn()

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream that rich writes to in place of this one."""
        return self._stream

    @property
    def part(self) -> str:
        """The incomplete line, as a terminal would show it."""
        return self._part.rstrip("\r").rpartition("\r")[2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Pass whole lines on, and buffer an incomplete one."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._turn.taken():
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
        """Write several strings."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Flush the stream; an incomplete line is on the screen already."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the file descriptor of the stream."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding

    def start(self, show: Callable[[str], None]) -> None:
        """Pass lines to ``show``."""
        with self._turn.taken():
            self._show = show

    def end(self) -> None:
        """Write the incomplete line to the stream, and pass everything to the stream again."""
        with self._turn.taken():
            self._show = None
            part, self._part = self._part, ""
            if part:
                self._stream.write(part)
                self._stream.flush()


#: Proxies are kept forever: ``print`` in another thread may be about to write to one without
#: holding a reference, and Python would crash.
_proxies: dict[int, Proxy] = {}


def _proxy_of(stream: TextIO) -> Proxy:
    return _proxies.setdefault(id(stream), Proxy(stream))


class Redirect:
    """Replaces standard output and standard error by proxies, if they are terminals.

    Handlers of ``logging`` keep the stream that they were created with, so these are changed, too.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._proxies: dict[str, Proxy] = {}

    def start(self) -> None:
        """Install the proxies."""
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
        """The incomplete lines."""
        return [proxy.part for proxy in self._proxies.values() if proxy.part]

    def restore(self) -> None:
        """Restore the streams, unless they were replaced by something else since."""
        for name, proxy in self._proxies.items():
            if getattr(sys, name) is proxy:
                setattr(sys, name, proxy.rich_proxied_file)
            _move_handlers(proxy, proxy.rich_proxied_file)

    def end(self) -> None:
        """Restore the streams, and write incomplete lines to them."""
        self.restore()
        for proxy in self._proxies.values():
            proxy.end()
        self._proxies.clear()


def _move_handlers(one: Any, other: Any) -> None:
    """Change the stream of all handlers of ``logging`` that use another one."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is one:
                handler.setStream(other)
