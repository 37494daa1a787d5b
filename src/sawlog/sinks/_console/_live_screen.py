"""``LiveScreen``: dashboards on a terminal, below what the program prints."""

from __future__ import annotations

import threading
import time

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from sawlog._turn import Turn
from sawlog.sinks._console import _view
from sawlog.sinks._console._display import Board, Ticker, has_unicode, isatty, warned
from sawlog.sinks._console._proxy import Raw, Redirect

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # of a drawing that terminals show at once
_SETTLE = 0.02  # seconds for other threads to finish the line that they are printing


class _Code:
    """An escape sequence, which occupies no cells on the screen."""

    def __init__(self, code: str) -> None:
        self._segment = Segment(code, None, [(ControlType.BELL,)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.legacy_windows:
            yield self._segment


class _Live(Live):
    """Rich's live display with a visible cursor.

    However the program ends, even by ``kill -9`` during a drawing, the terminal stays usable.
    Against flicker, terminals are asked to show each drawing at once; others ignore that.
    """

    def start(self, refresh: bool = False) -> None:
        """Start, and show the cursor again."""
        super().start(refresh)
        self.console.show_cursor(True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed, between the marks of a drawing."""
        return [_Code(BEGIN), *super().process_renderables(renderables), _Code(END)]


class LiveScreen:
    """A terminal, and the dashboards on it, one below the other."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._turn = Turn()
        self._boards: list[Board] = []
        self._live: _Live | None = None
        self._ticker: Ticker | None = None
        self._redirect: Redirect | None = None

    @property
    def idle(self) -> bool:
        """Whether it shows no dashboard."""
        return not self._boards and self._live is None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[Text] = []
        if self._live is not None and self._redirect is not None:
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
        with self._turn.taken():
            self.console.print(Raw(text), soft_wrap=True, end="")

    def add(self, board: Board) -> None:
        """Show a dashboard.

        Raises:
            LiveError: another live display of rich uses this terminal.
        """
        redirect: Redirect | None = None
        try:
            with self._turn.taken():
                if self._live is None:
                    redirect = self._redirected()
                    self._start()
                    self._redirect = redirect
                    self._ticker = Ticker(self._tick, 1 / board.refresh)
                self._boards.append(board)
        except BaseException:
            if redirect is not None:  # after the turn, for which other threads may wait
                redirect.end()
            self.forgo(board)
            raise

    def forgo(self, board: Board) -> None:
        """Undo ``add``, whether it was interrupted or what follows it."""
        with self._turn.taken():
            if board in self._boards:
                self._boards.remove(board)
        self._leave()

    def _leave(self) -> None:
        """Leave the terminal if no dashboard is shown; again, if a call was interrupted in it."""
        with self._turn.taken():
            if self._boards:
                return
            ticker, redirect = self._ticker, self._redirect
            if self._live is not None:
                try:
                    self._live.stop()  # does nothing the second time
                except Exception:
                    self._live = None  # the terminal is gone
                    raise
                self._live = None
        # After the turn, for which threads that are printing or drawing may wait.
        if redirect is not None:
            redirect.end()
        if ticker is not None:
            ticker.stop()

    def _redirected(self) -> Redirect | None:
        """Redirect what the program prints, if the console is a terminal."""
        if not isatty(self.console):
            return None
        redirect = Redirect(self._print)
        redirect.start()
        if threading.active_count() > 1:
            time.sleep(_SETTLE)
        return redirect

    def _start(self) -> None:
        self._live = _Live(
            self,
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def _tick(self) -> None:
        for board in list(self._boards):
            board.tend()
        with self._turn.taken():
            if self._live is not None:
                self._live.refresh()

    def remove(self, board: Board) -> None:
        """Show the last state of a dashboard, and leave it on the screen."""
        with warned():
            with self._turn.taken():
                if self._boards == [board]:
                    try:
                        if self._live is not None:
                            self._live.stop()
                    finally:
                        self._boards.remove(board)
                elif board in self._boards:
                    self._boards.remove(board)
                    lines = self._lines(board, self.console.width, self.console.height - 1)
                    self.console.print(Text("\n").join(lines))
            self._leave()

    def flush(self) -> None:
        """Do nothing: the next drawing shows what was logged."""

    def forget(self) -> None:
        """Restore the streams in a forked process: the terminal stays the parent's."""
        if self._redirect is not None:
            self._redirect.restore()


_open: list[LiveScreen] = []
_turn = Turn()


def on_screen(board: Board, console: Console) -> LiveScreen:
    """Show a dashboard on the one screen of a terminal, which several consoles may share.

    Raises:
        LiveError: another live display of rich uses the terminal.
    """
    screen: LiveScreen | None = None
    try:
        with _turn.taken():
            _open[:] = [screen for screen in _open if not screen.idle]
            for screen in _open:
                if screen.console is console or screen.console.file is console.file:
                    break
            else:
                screen = LiveScreen(console)
            screen.add(board)
            if screen not in _open:
                _open.append(screen)
            return screen
    except BaseException:
        if screen is not None:
            screen.forgo(board)
        raise


def is_free(console: Console) -> bool:
    """Return whether no live display of rich, except dashboards, uses a console."""
    live = getattr(console, "_live_stack", None) or getattr(console, "_live", None)
    others = live if isinstance(live, list) else [live] if live else []
    return all(isinstance(other, _Live) for other in others)


def forget_all() -> None:
    """Restore the streams in a forked process: terminals stay the parent's."""
    for screen in _open:
        screen.forget()
