"""``run_demo``: the whole story, from a log in a jitted program to a page about the runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from sawlog._optional import require
from sawlog.demo._sizes import Sizes

CommandLine = Callable[[Sequence[str]], int]


def run_demo(
    folder: Path, command_line: CommandLine, *, sizes: Sizes | None = None, console: Console
) -> Path:
    """Train small models, log, kill, resume, attribute; return the page that shows it.

    Args:
        folder: where runs and the page are written.
        command_line: runs the command ``sawlog`` with these arguments.
        sizes: how large the models and data are; None for the usual.
        console: where the story is printed.

    Raises:
        MissingPackageError: a package of the extra ``demo`` is not installed.
    """
    for package in ("jax", "torch", "jinja2", "plotly"):
        require(package, "demo", "The demo")
    from sawlog.demo import _crash, _digits, _spirals

    sizes = sizes or Sizes()

    def type_in(*arguments: str) -> None:
        shown = [os.path.relpath(a, folder) if os.path.isabs(a) else a for a in arguments]
        typed = f"$ sawlog {shlex.join(shown)}"
        console.print(typed, style="bold", markup=False, highlight=False)
        code = command_line(arguments)
        if code:
            raise AssertionError(f"sawlog {' '.join(arguments)} ended with {code}")

    logs = _spirals.look_inside(console, sizes)
    first = _spirals.keep_runs(console, folder / "spirals", logs, sizes)
    type_in("show", str(first))
    _crash.kill_and_resume(console, folder / "rows", sizes)
    type_in("verify", str(folder / "rows"))
    with _digits.one_thread():
        watched = _digits.train_and_log(console, folder, sizes)
        console.rule("Which labels are wrong?")
        type_in("self-influence", str(watched.folder), "--top", "5")
        _digits.find_wrong_labels(console, watched, sizes)
        console.rule("Which examples made the model err?")
        asked = _digits.ask(watched)
        two = ["--query", *asked.hardest[:2], "--top", "3", "--sign", "negative"]
        type_in("attribute", str(watched.folder), str(asked.folder), *two)
        _digits.drop_each_annotator(console, watched, asked, sizes)
    console.rule("All of it on one page")
    page = folder / "report.html"
    type_in("report", str(folder), "--title", "sawlog demo", "-o", str(page), "--overwrite")
    return page
