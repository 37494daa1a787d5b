"""``sawlog verify``: every checksum, and what is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.text import Text

import sawlog.store
from sawlog.cli._chosen import some
from sawlog.cli._commands import Verify
from sawlog.cli._format import count, plain, size
from sawlog.cli._outcome import DAMAGED, OK, report, worse
from sawlog.cli._screen import Screen
from sawlog.cli._table import Column, table
from sawlog.errors import SawlogError
from sawlog.store import Problem, Report

_PROBLEMS = (Column("file", folds=16, style="bold"), Column("problem", folds=16))
_LOSSES = (
    Column("name", folds=16, style="bold"),
    Column("readable", right=True),
    Column("lost", right=True, style="red"),
)


def run(arguments: Verify, screen: Screen) -> int:
    """Carry out ``sawlog verify``: all stores, also behind one that cannot be checked."""
    code, found = OK, []
    for path in some(arguments.paths):
        try:
            with screen.progress(f"verifying {path.name}") as progress:
                result = sawlog.store.verify(path, progress)
        except (SawlogError, OSError) as error:
            code = worse(code, report(error))
            continue
        code = worse(code, OK if result.ok else DAMAGED)
        found.append(result)
        if not arguments.json:
            show_report(result, screen)
    if arguments.json:
        screen.print_json([to_json(result) for result in found])
    return code


def to_json(result: Report) -> dict[str, Any]:
    """For programs."""
    return {
        "path": str(result.path),
        "ok": result.ok,
        "segments": result.segments,
        "bytes": result.nbytes,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "readable": result.readable,
        "lost": result.lost,
    }


def show_report(result: Report, screen: Screen) -> None:
    """For people."""
    screen.print(_headline(result.path, result.problems))
    there = f"{size(result.nbytes)} in {count(result.segments, 'segment')}"
    screen.print(f"readable: {there}, {count(len(result.readable), 'name')}")
    if result.problems:
        show_problems(result.problems, screen)
    if result.lost:
        rows = [
            [plain(name), f"{result.readable.get(name, 0):,}", f"{lost:,}"]
            for name, lost in result.lost.items()
        ]
        screen.print("", "rows and entries in damaged files:", table(_LOSSES, rows, screen.width))
    if any(problem.what.startswith("missing") for problem in result.problems):
        screen.print("", "What was in missing files is not known.")


def _headline(path: Path, problems: list[Problem]) -> Text:
    if not problems:
        return Text.assemble((plain(str(path)), "bold"), "  ", ("ok", "green"))
    said = count(len(problems), "damaged or missing file")
    return Text.assemble((plain(str(path)), "bold"), "  ", (said, "bold red"))


def show_problems(problems: list[Problem], screen: Screen) -> None:
    """A table of what is wrong, file by file."""
    rows = [[plain(problem.file), plain(problem.what)] for problem in problems]
    screen.print("", table(_PROBLEMS, rows, screen.width))
