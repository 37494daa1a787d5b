"""Where dashboards appear: live on a terminal, as quiet lines elsewhere, as HTML in a notebook.

Each of the three has ``start``, ``tick``, which a thread calls now and then, and ``end``, which
shows the last state. What goes wrong with a terminal or a pipe is no reason to end a training: it
is said once, in a warning, and then nothing more is shown.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import io
import os
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.errors import LiveError
from rich.text import Text

from sawlog.sinks._console import _view
from sawlog.sinks._console._proxy import Raw
from sawlog.sinks._console._screen import forget_all, is_free, on_screen
from sawlog.sinks._console._showing import Board, Output, Ticker, has_unicode, isatty, warned

_NOTEBOOK = (100, 60)  # columns and lines

# -- quiet lines ----------------------------------------------------------------------------------


class Lines:
    """A file, a pipe, or a terminal that is taken: now and then a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ticker: Ticker | None = None
        self._said = -1

    def add(self, board: Board) -> None:
        """Say something every so often from now on."""
        self._ticker = Ticker(lambda: self._tick(board), board.every)

    def _tick(self, board: Board) -> None:
        board.tend()
        if board.version != self._said:
            self._say(board)

    def _say(self, board: Board) -> None:
        self._said = board.version
        text = _view.line(board.snapshot, board.title, has_unicode(self._console))
        self._console.print(Raw(text + "\n"), soft_wrap=True, end="")
        self.flush()

    def remove(self, board: Board) -> None:
        """Say how it ended, unless that was just said."""
        if self._ticker is not None:
            self._ticker.stop()
        with warned():
            if board.version != self._said:
                self._say(board)

    def flush(self) -> None:
        """Have every line in the file."""
        with contextlib.suppress(OSError, ValueError):
            self._console.file.flush()


# -- a notebook -----------------------------------------------------------------------------------


class Notebook:
    """A place in the output of a notebook's cell, which is drawn anew again and again."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._handle: Any = None
        self._ticker: Ticker | None = None
        self._drawn = -1

    def add(self, board: Board) -> None:
        """Show a dashboard from now on."""
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
        """What was logged is shown with the next picture."""


def as_html(board: Board) -> str:
    """A dashboard as HTML that needs no style sheet."""
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


# -- which of them --------------------------------------------------------------------------------


def shown(board: Board, console: Console, live: bool | None) -> Output:
    """Show a dashboard where ``console`` is, and return what shows it."""
    if live is None:
        live = console.is_jupyter or (console.is_interactive and isatty(console))
    in_notebook = console.is_jupyter and importlib.util.find_spec("IPython") is not None
    if live and not in_notebook and is_free(console):
        with contextlib.suppress(LiveError):
            return on_screen(board, console)
    output: Output = Notebook() if live and in_notebook else Lines(console)
    output.add(board)
    return output


# -- the end --------------------------------------------------------------------------------------

#: Dashboards that are on show. What is registered first ends last: the runs of loggers are closed
#: by then, since no logger can be made before this module is there.
open_boards: dict[int, Callable[[], None]] = {}


def _end_all() -> None:
    for end in list(open_boards.values()):
        end()


def _forget_all() -> None:
    forget_all()
    open_boards.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
