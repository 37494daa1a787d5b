"""``Screen``: dashboards on a terminal, below all that the program prints."""

from __future__ import annotations

import threading
import time

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from sawlog.sinks._console import _view
from sawlog.sinks._console._proxy import Raw, Redirect
from sawlog.sinks._console._showing import Board, Ticker, has_unicode, isatty, warned

END = "\x1b[?2026l"  # of a picture
_SETTLE = 0.02  # seconds in which other threads finish the line that they are printing


class _Code:
    """An escape sequence, which takes no room on the screen."""

    def __init__(self, code: str) -> None:
        self._segment = Segment(code, None, [(ControlType.BELL,)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.legacy_windows:
            yield self._segment


class _Live(Live):
    """Rich's display, without its hidden cursor: whatever ends the program, even ``kill -9`` in the
    middle of a picture, leaves a terminal that works.

    Instead, terminals are asked to show each picture at once; those that cannot do not mind.
    """

    def start(self, refresh: bool = False) -> None:
        """Begin, and show the cursor again."""
        super().start(refresh)
        self.console.show_cursor(True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is printed, between the two marks of a picture."""
        return [_Code("\x1b[?2026h"), *super().process_renderables(renderables), _Code(END)]


class Screen:
    """A terminal, and the dashboards that are on it, one below the other."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lock = threading.RLock()
        self._boards: list[Board] = []
        self._live: _Live | None = None
        self._ticker: Ticker | None = None
        self._redirect: Redirect | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is shown."""
        return not self._boards and self._live is None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[Text] = []
        if self._live is not None and self._redirect is not None:  # at the end, it comes below
            for part in self._redirect.parts:
                text = Text.from_ansi(part)
                lines.append(text[max(0, len(text) - options.max_width) :])
        boards = list(self._boards)
        height = console.size.height - 1 - len(lines)
        for board in boards:
            lines += self._lines(board, options.max_width, height // len(boards))
        yield Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _lines(self, board: Board, width: int, height: int) -> list[Text]:
        unicode = has_unicode(self.console)
        return _view.table(board.snapshot, board.title, width, max(1, height), unicode)

    def _print(self, text: str) -> None:
        """Print above the dashboards."""
        with self.lock:
            self.console.print(Raw(text), soft_wrap=True, end="")

    def add(self, board: Board) -> None:
        """Show a dashboard from now on.

        Raises:
            LiveError: something else of rich is live on this terminal.
        """
        redirect: Redirect | None = None
        try:
            with self.lock:
                if self._live is None:
                    redirect = self._redirected()
                    self._live = self._started()
                    self._redirect = redirect
                    self._ticker = Ticker(self._tick, 1 / board.refresh)
                self._boards.append(board)
        except BaseException:
            if redirect is not None:  # without the lock, which others may be waiting for
                redirect.end()
            raise

    def _redirected(self) -> Redirect | None:
        """Take over what is printed, unless the console is elsewhere."""
        if not isatty(self.console):
            return None
        redirect = Redirect(self._print)
        redirect.start()
        if threading.active_count() > 1:
            time.sleep(_SETTLE)
        return redirect

    def _started(self) -> _Live:
        live = _Live(
            self,
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        live.start()
        return live

    def _tick(self) -> None:
        for board in list(self._boards):
            board.tend()
        with self.lock:
            if self._live is not None:
                self._live.refresh()

    def remove(self, board: Board) -> None:
        """Show its last state, and leave it on the screen."""
        ticker: Ticker | None = None
        redirect: Redirect | None = None
        with warned(), self.lock:
            if board not in self._boards:
                return
            if len(self._boards) == 1:
                live, self._live = self._live, None
                ticker, self._ticker = self._ticker, None
                redirect, self._redirect = self._redirect, None
                try:
                    if live is not None:
                        live.stop()
                finally:
                    self._boards.remove(board)
            else:
                self._boards.remove(board)
                lines = self._lines(board, self.console.width, self.console.height - 1)
                self.console.print(Text("\n").join(lines))
        # Without the lock, which threads that print or draw just now may be waiting for.
        if redirect is not None:
            redirect.end()
        if ticker is not None:
            ticker.stop()

    def flush(self) -> None:
        """What was logged is shown with the next picture."""

    def forget(self) -> None:
        """In a process that was forked: the terminal is the other one's."""
        if self._redirect is not None:
            self._redirect.restore()


_open: list[Screen] = []
_lock = threading.Lock()


def on_screen(board: Board, console: Console) -> Screen:
    """Show a dashboard on the one screen of a terminal, whichever console that is known by.

    Raises:
        LiveError: something else of rich is live there.
    """
    with _lock:
        _open[:] = [screen for screen in _open if not screen.idle]
        for screen in _open:
            if screen.console is console or screen.console.file is console.file:
                break
        else:
            screen = Screen(console)
        screen.add(board)
        if screen not in _open:
            _open.append(screen)
        return screen


def is_free(console: Console) -> bool:
    """Whether nothing else of rich is live there, or only dashboards."""
    live = getattr(console, "_live_stack", None) or getattr(console, "_live", None)
    others = live if isinstance(live, list) else [live] if live else []
    return all(isinstance(other, _Live) for other in others)


def forget_all() -> None:
    """In a process that was forked: the terminals are the other one's."""
    for screen in _open:
        screen.forget()
