"""``CommandOutput``: standard output and standard error of a command."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from rich.console import Console, RenderableType
from rich.segment import Segment

from sawlog._text import printable_lines
from sawlog.inspect._values import jsonable

ProgressCallback = Callable[[int, int], None]
_UNLIMITED = 10_000  # columns, if the output goes to a file or another program


class _SafeConsole(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error: rich would exit with 1, the code of damage."""
        raise BrokenPipeError

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """Escape what could move the cursor or change colours, unless it comes from rich."""
        for segment in super().render(*args, **kwargs):
            text, style, control = segment
            yield segment if control else Segment(printable_lines(text), style)


class CommandOutput:
    """Prints results on standard output, and progress and remarks on standard error."""

    def __init__(self) -> None:
        self._out = _console(stderr=False)
        self._err = _console(stderr=True)

    @property
    def width(self) -> int:
        """The width of standard output in columns."""
        return self._out.width

    @property
    def unicode(self) -> bool:
        """Whether standard output can show more than ASCII."""
        return self._out.encoding.startswith("utf")

    @property
    def shows_progress(self) -> bool:
        """Whether standard error is a terminal."""
        return sys.stderr.isatty()

    def print(self, *parts: RenderableType) -> None:
        """Print results for people."""
        for part in parts:
            self._out.print(part, markup=False, highlight=False, emoji=False)

    def print_json(self, value: Any) -> None:
        """Print a result for programs."""
        print(json.dumps(jsonable(value), indent=2, allow_nan=False), file=sys.stdout)

    def remark(self, text: str) -> None:
        """Print something that is not a result, on standard error."""
        self._err.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[ProgressCallback | None]:
        """Show a progress bar, and give a callback ``(done, total)``; None without a terminal."""
        if not self.shows_progress:
            yield None
            return
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None))
        columns += (TaskProgressColumn(), TimeRemainingColumn())  # type: ignore[assignment]
        with Bars(*columns, console=self._err, transient=True) as bars:
            task = bars.add_task(doing, total=None)

            def update(done: int, total: int) -> None:
                bars.update(task, completed=done, total=total)

            yield update


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR"))
    fixed = os.environ.get("COLUMNS", "").isdigit()
    return _SafeConsole(
        file=stream,
        stderr=stderr,
        width=None if fixed or stream.isatty() else _UNLIMITED,
        color_system=None if plain else "auto",
    )
