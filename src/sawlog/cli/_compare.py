"""``sawlog compare``: the settings in which runs differ, and their last values."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from sawlog._format import number, shortened
from sawlog._table import Cell, TableColumn, folded, table
from sawlog._text import printable, printable_name
from sawlog.cli._arguments import Json, Names, Runs
from sawlog.cli._exit_codes import DAMAGED, OK
from sawlog.cli._output import CommandOutput
from sawlog.cli._run_paths import given_runs
from sawlog.inspect import RunSummary, run_summary, series_curves
from sawlog.inspect._patterns import matching_names

_NAME = 28


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare runs: the settings in which they differ, and their last values.

    examples:
      sawlog compare runs/seed-0 runs/seed-1
      sawlog compare runs --names 'eval/*' --json
    """

    runs: Runs
    names: Names = ()
    json: Json = False


def run(arguments: Compare, output: CommandOutput) -> int:
    """Run ``sawlog compare``."""
    summaries = {name: run_summary(path) for name, path in given_runs(arguments.runs).items()}
    lasts = {name: _last_values(summary) for name, summary in summaries.items()}
    known = list(dict.fromkeys(series for own in lasts.values() for series in own))
    lacks = "These runs have no series of the name"
    chosen = matching_names(known, arguments.names, lacks) if arguments.names else known
    settings = _varied(list(summaries.values()))
    if arguments.json:
        output.print_json(
            {
                name: {
                    "path": str(summary.path),
                    "state": summary.state,
                    "config": summary.config,
                    "last": {series: lasts[name].get(series) for series in chosen},
                }
                for name, summary in summaries.items()
            }
        )
    else:
        _show(summaries, settings, lasts, chosen, output)
    damaged = any(summary.state == "damaged" for summary in summaries.values())
    return DAMAGED if damaged else OK


def _show(
    summaries: dict[str, RunSummary],
    settings: list[str],
    lasts: dict[str, dict[str, float | None]],
    chosen: list[str],
    output: CommandOutput,
) -> None:
    heads = [shortened(printable_name(name), _NAME) for name in summaries]
    columns = (
        TableColumn("", folds=16, style="bold"),
        *(TableColumn(h, right=True) for h in heads),
    )
    rows: list[list[Cell]] = [["state", *(summary.state for summary in summaries.values())]]
    for setting in settings:
        texts = [_text(summary.config.get(setting)) for summary in summaries.values()]
        rows.append([printable_name(setting), *texts])
    output.print(table(columns, rows, output.width))
    if not settings:
        alone = len(summaries) == 1
        output.print(folded("it has no settings" if alone else "their settings are the same"))
    if chosen:
        values: list[list[Cell]] = [
            [printable_name(series), *(number(own.get(series)) for own in lasts.values())]
            for series in chosen
        ]
        last = (TableColumn("last value of", folds=16, style="bold"), *columns[1:])
        output.print("", table(last, values, output.width))


def _varied(summaries: list[RunSummary]) -> list[str]:
    """Return the settings in which runs differ; all of them for a single run."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.config))
    if len(summaries) == 1:
        return names
    return [n for n in names if len({_text(s.config.get(n)) for s in summaries}) > 1]


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return printable(value or "")
    return number(value) if isinstance(value, float) else printable(json.dumps(value))


def _last_values(summary: RunSummary) -> dict[str, float | None]:
    if summary.series_path is None or summary.problem is not None:
        return {}
    return {each.name: each.last for each in series_curves(summary.series_path, points=1)}
