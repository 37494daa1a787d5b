"""``Screen``: where the output goes, how wide it is, and whether anybody watches."""

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
from sawlog.cli._format import jsonable

Progress = Callable[[int, int], None]
_ENDLESS = 10_000  # columns, where the output goes to a file or another program


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Rich would exit with 1, which means damage here."""
        raise BrokenPipeError

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """Whatever is shown cannot move the cursor or change colours, but for Rich itself."""
        for segment in super().render(*args, **kwargs):
            text, style, control = segment
            yield segment if control else Segment(printable_lines(text), style)


class Screen:
    """Standard output for results, standard error for progress and remarks."""

    def __init__(self) -> None:
        self._out = _console(stderr=False)
        self._err = _console(stderr=True)

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self._out.width

    @property
    def unicode(self) -> bool:
        """Whether it can show more than ASCII."""
        return self._out.encoding.startswith("utf")

    @property
    def watched(self) -> bool:
        """Whether anybody sees progress."""
        return sys.stderr.isatty()

    def print(self, *parts: RenderableType) -> None:
        """Print results for people."""
        for part in parts:
            self._out.print(part, markup=False, highlight=False, emoji=False)

    def print_json(self, value: Any) -> None:
        """Print a result for programs."""
        print(json.dumps(jsonable(value), indent=2, allow_nan=False), file=sys.stdout)

    def remark(self, text: str) -> None:
        """Say something that is not a result."""
        self._err.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[Progress | None]:
        """A progress bar, to be told ``(done, in all)``; None where nobody watches."""
        if not self.watched:
            yield None
            return
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None))
        columns += (TaskProgressColumn(), TimeRemainingColumn())  # type: ignore[assignment]
        with Bars(*columns, console=self._err, transient=True) as bars:
            task = bars.add_task(doing, total=None)

            def told(done: int, total: int) -> None:
                bars.update(task, completed=done, total=total)

            yield told


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR"))
    fixed = os.environ.get("COLUMNS", "").isdigit()
    return _Console(
        file=stream,
        stderr=stderr,
        width=None if fixed or stream.isatty() else _ENDLESS,
        color_system=None if plain else "auto",
    )
