"""``sawlog ls``: list the stores under a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from rich.text import Text
from tyro.conf import Positional, arg

from sawlog._format import age, size
from sawlog._paths import natural_order
from sawlog._table import Cell, TableColumn, table
from sawlog._text import printable
from sawlog.cli._arguments import Json
from sawlog.cli._exit_codes import DAMAGED, OK
from sawlog.cli._output import CommandOutput
from sawlog.errors import StoreNotFoundError
from sawlog.inspect import StoreOverview, find_stores, store_overview

_COLUMNS = (
    TableColumn("store", folds=16, style="bold"),
    TableColumn("names", right=True, rank=2),
    TableColumn("rows", right=True),
    TableColumn("entries", right=True),
    TableColumn("segments", right=True, rank=3),
    TableColumn("size", right=True),
    TableColumn("written", right=True, rank=1),
    TableColumn("state"),
)


@dataclasses.dataclass(frozen=True)
class Ls:
    """List the stores under a folder, without reading their data.

    States: writing (a writer is open, and its process runs), closed, failed (closed after an
    error), unfinished (not closed, and its process ended: it was killed), empty, damaged (only
    headers are checked: use verify for all data), newer (than this sawlog), unreadable. Of a writer
    on another machine only its silence is known: unfinished then means ten minutes of it.

    examples:
      sawlog ls
      sawlog ls runs --json
    """

    path: Positional[
        Annotated[Path, arg(metavar="[PATH]", help="A folder; its subfolders are searched too.")]
    ] = Path(".")
    json: Json = False


def run(arguments: Ls, output: CommandOutput) -> int:
    """Run ``sawlog ls``."""
    if not arguments.path.is_dir():
        what = "is a file" if arguments.path.exists() else "does not exist"
        raise StoreNotFoundError(f"{arguments.path} {what}. Hint: give the path of a folder.")

    def refused(error: OSError) -> None:
        output.remark(f"note: {error.filename} was not searched: {error.strerror}")

    paths = sorted(find_stores(arguments.path, refused), key=natural_order)
    found: list[StoreOverview] = []
    with output.progress("reading headers") as progress:
        for done, path in enumerate(paths, 1):
            if (overview := store_overview(path)) is not None:
                found.append(overview)
            if progress is not None:
                progress(done, len(paths))
    if arguments.json:
        output.print_json([overview.to_json() for overview in found])
    elif found:
        output.print(table(_COLUMNS, [_cells(overview) for overview in found], output.width))
    else:
        output.remark(f"no stores under {printable(str(arguments.path))}")
    return DAMAGED if any(overview.state == "damaged" for overview in found) else OK


def _cells(store: StoreOverview) -> list[Cell]:
    return [
        printable(str(store.path)),
        *("" if n is None else f"{n:,}" for n in (store.names, store.rows, store.entries)),
        f"{store.segments:,}",
        size(store.nbytes),
        age(store.written),
        Text(store.state, style=state_style(store.state)),
    ]


def state_style(state: str) -> str:
    """Return the style in which the state of a store is shown."""
    return {"writing": "yellow", "closed": "green", "empty": "dim"}.get(state, "bold red")
