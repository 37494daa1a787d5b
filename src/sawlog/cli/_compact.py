"""``sawlog compact``: merge small segments into large ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

import sawlog.store
from sawlog._format import size
from sawlog._table import Cell, TableColumn, table
from sawlog._text import printable
from sawlog._validate import non_negative_number, positive_integer
from sawlog.cli._arguments import Json, Stores, given_paths
from sawlog.cli._exit_codes import OK, report, worse
from sawlog.cli._folders import all_stores
from sawlog.cli._output import CommandOutput
from sawlog.errors import SawlogError
from sawlog.inspect._store_folders import unsearched
from sawlog.store import Compaction

_COLUMNS = (
    TableColumn("store", folds=16, style="bold"),
    TableColumn("segments", right=True),
    TableColumn("now", right=True),
    TableColumn("size", right=True),
    TableColumn("now", right=True),
    TableColumn("leftovers removed", right=True, rank=1),
)


@dataclasses.dataclass(frozen=True)
class Compact:
    """Merge small segments into large ones, and drop replaced rows.

    The store can be read and written meanwhile. Merged segments are kept for readers that are open,
    and removed by the first compaction after the grace period. Of a folder, all stores in it.

    examples:
      sawlog compact runs/seed-0
      sawlog compact runs --segment-mb 512
    """

    paths: Stores
    segment_mb: Annotated[
        int,
        arg(metavar="MB", help="The size of merged segments; needs twice as much memory."),
    ] = 256
    grace: Annotated[
        float, arg(metavar="SECONDS", help="How long merged segments are kept; 0: not at all.")
    ] = 3600.0
    json: Json = False


def run(arguments: Compact, output: CommandOutput) -> int:
    """Run ``sawlog compact``; a store that fails does not stop it."""
    non_negative_number("--grace", arguments.grace)
    segment_bytes = positive_integer("--segment-mb", arguments.segment_mb) << 20
    code, done = OK, []
    refused: list[OSError] = []
    for path in all_stores(given_paths(arguments.paths), refused.append):
        try:
            with output.progress(f"compacting {path.name}") as progress:
                result = sawlog.store.compact(
                    path,
                    segment_bytes=segment_bytes,
                    grace=arguments.grace,
                    progress=progress,
                )
        except (SawlogError, OSError) as error:
            code = worse(code, report(error))
            continue
        done.append((path, result))
    for problem in filter(None, map(unsearched, refused)):
        code = worse(code, report(problem))
    if arguments.json:
        output.print_json([_to_json(path, result) for path, result in done])
    elif done:
        rows = [_cells(path, result) for path, result in done]
        output.print(table(_COLUMNS, rows, output.width))
    return code


def _to_json(path: Path, result: Compaction) -> dict[str, Any]:
    return {"path": str(path), **dataclasses.asdict(result)}


def _cells(path: Path, result: Compaction) -> list[Cell]:
    return [
        printable(str(path)),
        f"{result.segments_before:,}",
        f"{result.segments_after:,}",
        size(result.bytes_before),
        size(result.bytes_after),
        f"{result.swept:,}" if result.swept else "",
    ]
