"""``sawlog verify``: check every checksum, and list what is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.text import Text

import sawlog.store
from sawlog._format import count, size
from sawlog._table import TableColumn, table
from sawlog._text import printable, printable_name
from sawlog.cli._arguments import Json, Stores, given_paths
from sawlog.cli._exit_codes import DAMAGED, OK, report, worse
from sawlog.cli._folders import all_stores
from sawlog.cli._output import CommandOutput
from sawlog.errors import SawlogError
from sawlog.inspect._store_folders import unsearched
from sawlog.store import Problem, VerifyReport

_PROBLEMS = (TableColumn("file", folds=16, style="bold"), TableColumn("problem", folds=16))
_LOSSES = (
    TableColumn("name", folds=16, style="bold"),
    TableColumn("readable", right=True),
    TableColumn("lost", right=True, style="red"),
)


@dataclasses.dataclass(frozen=True)
class Verify:
    """Check every byte of stores against its checksum.

    Lists each damaged or missing file, and what can still be read. Of a folder, all stores in it.

    examples:
      sawlog verify runs/seed-0
      sawlog verify runs --json
    """

    paths: Stores
    json: Json = False


def run(arguments: Verify, output: CommandOutput) -> int:
    """Run ``sawlog verify``; a store that cannot be checked does not stop it."""
    code, found = OK, []
    refused: list[OSError] = []
    for path in all_stores(given_paths(arguments.paths), refused.append):
        try:
            with output.progress(f"verifying {path.name}") as progress:
                result = sawlog.store.verify(path, progress)
        except (SawlogError, OSError) as error:
            code = worse(code, report(error))
            continue
        code = worse(code, OK if result.ok else DAMAGED)
        found.append(result)
        if not arguments.json:
            show_report(result, output)
    for problem in filter(None, map(unsearched, refused)):
        code = worse(code, report(problem))
    if arguments.json:
        output.print_json([to_json(result) for result in found])
    return code


def to_json(result: VerifyReport) -> dict[str, Any]:
    """Return the result of a verification in types of JSON."""
    return {
        "path": str(result.path),
        "ok": result.ok,
        "segments": result.segments,
        "bytes": result.nbytes,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "readable": result.readable,
        "lost": result.lost,
    }


def show_report(result: VerifyReport, output: CommandOutput) -> None:
    """Print the result of a verification."""
    output.print(_headline(result.path, result.problems))
    readable = f"{size(result.nbytes)} in {count(result.segments, 'segment')}"
    output.print(f"readable: {readable}, {count(len(result.readable), 'name')}")
    if result.problems:
        show_problems(result.problems, output)
    if result.lost:
        rows = [
            [printable_name(name), f"{result.readable.get(name, 0):,}", f"{lost:,}"]
            for name, lost in result.lost.items()
        ]
        output.print("", "rows and entries in damaged files:", table(_LOSSES, rows, output.width))
    if any(problem.what.startswith("missing") for problem in result.problems):
        output.print("", "The contents of missing files are unknown.")


def _headline(path: Path, problems: list[Problem]) -> Text:
    if not problems:
        return Text.assemble((printable(str(path)), "bold"), "  ", ("ok", "green"))
    summary = count(len(problems), "damaged or missing file")
    return Text.assemble((printable(str(path)), "bold"), "  ", (summary, "bold red"))


def show_problems(problems: list[Problem], output: CommandOutput) -> None:
    """Print a table of damaged and missing files."""
    rows = [[printable(problem.file), printable(problem.what)] for problem in problems]
    output.print("", table(_PROBLEMS, rows, output.width))
