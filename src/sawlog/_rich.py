"""Classes of rich, which is optional, for modules that must be importable without it.

rich is imported when one of them is called. Without rich, a table is an error that tells what to
install, and a console prints one line that does.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from sawlog._optional import is_installed, require

if TYPE_CHECKING:
    from rich.console import Console as Console
    from rich.progress import BarColumn as BarColumn
    from rich.progress import Progress as Progress
    from rich.progress import TaskID as TaskID
    from rich.progress import TextColumn as TextColumn
    from rich.progress import TimeElapsedColumn as TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeRemainingColumn
    from rich.style import Style as Style
    from rich.table import Table as Table
    from rich.text import Text as Text

_HOME = {
    "BarColumn": "rich.progress",
    "Console": "rich.console",
    "Progress": "rich.progress",
    "Style": "rich.style",
    "Table": "rich.table",
    "TaskID": "rich.progress",
    "Text": "rich.text",
    "TextColumn": "rich.progress",
    "TimeElapsedColumn": "rich.progress",
    "TimeRemainingColumn": "rich.progress",
}


class _ImportedOnCall:
    """Stands in for a class of rich: calling it imports and calls the class."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._name == "Console" and not is_installed("rich"):
            return _LineConsole(**options)
        require("rich", "cli", f"rich.{self._name}")
        return getattr(importlib.import_module(self._module), self._name)(*args, **options)


class _LineConsole:
    """The console without rich: no terminal, so no progress is shown, and no tables."""

    is_terminal = False

    def __init__(self, *, file: TextIO | None = None, stderr: bool = False, **_: Any) -> None:
        self._file = file or (sys.stderr if stderr else sys.stdout)

    def print(self, *things: Any, **_: Any) -> None:
        """Print text, and for anything else what to install to see it."""
        for thing in things:
            hint = f'{type(thing).__name__}: pip install "sawlog[cli]" to see it as a table'
            print(thing if isinstance(thing, str) else hint, file=self._file)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return _ImportedOnCall(_HOME[name], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
