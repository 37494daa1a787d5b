"""``sawlog compact``: fewer, larger segments."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import sawlog.store
from sawlog.cli._chosen import some
from sawlog.cli._commands import Compact
from sawlog.cli._format import plain, size
from sawlog.cli._outcome import OK, report, worse
from sawlog.cli._screen import Screen
from sawlog.cli._table import Cell, Column, table
from sawlog.errors import ArgumentError, SawlogError
from sawlog.store import Compaction

_COLUMNS = (
    Column("store", folds=16, style="bold"),
    Column("segments", right=True),
    Column("now", right=True),
    Column("size", right=True),
    Column("now", right=True),
    Column("leftovers removed", right=True, rank=1),
)


def run(arguments: Compact, screen: Screen) -> int:
    """Carry out ``sawlog compact``: all stores, also behind one that fails."""
    if arguments.segment_mb < 1:
        raise ArgumentError(f"--segment-mb is at least 1, not {arguments.segment_mb}")
    code, done = OK, []
    for path in some(arguments.paths):
        try:
            with screen.progress(f"compacting {path.name}") as progress:
                result = sawlog.store.compact(
                    path,
                    segment_bytes=arguments.segment_mb << 20,
                    grace=arguments.grace,
                    progress=progress,
                )
        except (SawlogError, OSError) as error:
            code = worse(code, report(error))
            continue
        done.append((path, result))
    if arguments.json:
        screen.print_json([_to_json(path, result) for path, result in done])
    elif done:
        rows = [_cells(path, result) for path, result in done]
        screen.print(table(_COLUMNS, rows, screen.width))
    return code


def _to_json(path: Path, result: Compaction) -> dict[str, Any]:
    return {"path": str(path), **dataclasses.asdict(result)}


def _cells(path: Path, result: Compaction) -> list[Cell]:
    return [
        plain(str(path)),
        f"{result.segments_before:,}",
        f"{result.segments_after:,}",
        size(result.bytes_before),
        size(result.bytes_after),
        f"{result.swept:,}" if result.swept else "",
    ]
