"""Displays of dashboards: live on a terminal, as HTML in a notebook, as lines elsewhere.

An error of a terminal or a pipe must not end a training run: it becomes one warning, and nothing
more is shown.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from typing import Any

from rich.console import Console
from rich.errors import LiveError
from rich.text import Text

from sawlog.sinks._console import _view
from sawlog.sinks._console._display import Board, Display, Ticker, has_unicode, isatty, warned
from sawlog.sinks._console._live_screen import is_free, on_screen
from sawlog.sinks._console._proxy import Raw

_NOTEBOOK = (100, 60)  # columns and lines

# -- lines ----------------------------------------------------------------------------------------


class Lines:
    """Prints a line at an interval: for a file, a pipe, or a terminal that is in use."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ticker: Ticker | None = None
        self._printed = -1

    def add(self, board: Board) -> None:
        """Print a line at the dashboard's interval."""
        self._ticker = Ticker(lambda: self._tick(board), board.every)

    def _tick(self, board: Board) -> None:
        board.tend()
        if board.version != self._printed:
            self._print(board)

    def _print(self, board: Board) -> None:
        version = board.version
        text = _view.line(board.snapshot, board.title, has_unicode(self._console))
        self._console.print(Raw(text + "\n"), soft_wrap=True, end="")
        self._printed = version
        self.flush()

    def remove(self, board: Board) -> None:
        """Print the last state, unless it was just printed."""
        if self._ticker is not None:
            self._ticker.stop()
        with warned():
            if board.version != self._printed:
                self._print(board)

    def flush(self) -> None:
        """Flush the lines to the file."""
        with contextlib.suppress(OSError, ValueError):
            self._console.file.flush()


# -- a notebook -----------------------------------------------------------------------------------


class Notebook:
    """Redraws a part of the output of a notebook's cell."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._handle: Any = None
        self._ticker: Ticker | None = None
        self._drawn = -1

    def add(self, board: Board) -> None:
        """Show a dashboard."""
        with warned():
            self._draw(board)
        self._ticker = Ticker(lambda: self._tick(board), 1 / board.refresh)

    def _tick(self, board: Board) -> None:
        board.tend()
        self._draw(board)

    def _draw(self, board: Board) -> None:
        page = self._display.HTML(as_html(board))
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)

    def remove(self, board: Board) -> None:
        """Show the last state."""
        if self._ticker is not None:
            self._ticker.stop()
        with warned():
            self._draw(board)

    def flush(self) -> None:
        """Do nothing: the next drawing shows what was logged."""


def as_html(board: Board) -> str:
    """Return a dashboard as HTML that needs no style sheet."""
    width, height = _NOTEBOOK
    console = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_jupyter=False,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text("\n").join(_view.table(board.snapshot, board.title, width, height)))
    code = '<pre style="line-height:1.3;white-space:pre;overflow-x:auto">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=code)


# -- the choice -----------------------------------------------------------------------------------


def shown(board: Board, console: Console, live: bool | None) -> Display:
    """Show a dashboard on ``console``, and return the display."""
    if live is None:
        live = console.is_jupyter or (console.is_interactive and isatty(console))
    in_notebook = console.is_jupyter and importlib.util.find_spec("IPython") is not None
    if live and not in_notebook and is_free(console):
        with contextlib.suppress(LiveError):
            return on_screen(board, console)
    display: Display = Notebook() if live and in_notebook else Lines(console)
    display.add(board)
    return display
