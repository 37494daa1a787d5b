"""``sawlog self-influence``: examples that nothing but themselves explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from sawlog import influence
from sawlog.cli import _rows, _sheet
from sawlog.cli._commands import SelfInfluence
from sawlog.cli._format import count, number, plain
from sawlog.cli._outcome import OK
from sawlog.cli._scoring import budget_of, check_top, damping_of, text_cell, texts
from sawlog.cli._screen import Screen
from sawlog.cli._table import Cell, Column, folded, table
from sawlog.influence import Logs, Ranking

_COLUMNS = (
    Column("rank", right=True),
    Column("id", folds=12, style="bold"),
    Column("self-influence", right=True),
    Column("text", folds=16),
)


def run(arguments: SelfInfluence, screen: Screen) -> int:
    """Carry out ``sawlog self-influence``."""
    check_top(arguments.top)
    _sheet.check_suffix(arguments.out)
    _sheet.check(arguments.out, arguments.overwrite)
    logs = _rows.opened(_rows.one(arguments.train))
    with screen.progress("ranking"):
        ranking = influence.self_influence(
            logs,
            curvature=arguments.curvature,
            damping=damping_of(arguments),
            names=_rows.layers(logs, arguments.names),
            budget=budget_of(arguments),
            weights=arguments.weights,
            nonfinite=arguments.nonfinite,
        )
    shown = ranking.top(arguments.top or len(ranking), least=arguments.least)
    everything = arguments.out is not None
    ordered = ranking.top(len(ranking), least=arguments.least) if everything else shown
    known = texts(arguments.text, (each for each, _ in ordered), screen)
    if arguments.out is not None:
        columns: dict[str, Any] = {
            "rank": list(range(1, len(ordered) + 1)),
            "id": [each for each, _ in ordered],
            "value": [value for _, value in ordered],
        }
        if known:
            columns["text"] = [known.get(str(each), "") for each, _ in ordered]
        _sheet.write(arguments.out, columns)
    if arguments.json:
        screen.print_json(_to_json(arguments, logs, ranking, shown, known))
        return OK
    said = f"{count(len(ranking), 'example')}, {arguments.curvature}"
    head = Text.assemble((plain(str(logs.path)), "bold"), "  ", said)
    screen.print(folded(head), "", table(_COLUMNS, _cells(shown, known), screen.width))
    if arguments.out is not None:
        screen.print("", folded(f"saved to {plain(str(arguments.out))}"))
    return OK


def _cells(shown: list[tuple[Any, float]], known: Mapping[str, str]) -> list[list[Cell]]:
    return [
        [str(rank), plain(str(each)), number(value), text_cell(known.get(str(each), ""))]
        for rank, (each, value) in enumerate(shown, 1)
    ]


def _to_json(
    arguments: SelfInfluence,
    logs: Logs,
    ranking: Ranking,
    shown: list[tuple[Any, float]],
    known: Mapping[str, str],
) -> dict[str, Any]:
    listed = []
    for rank, (each, value) in enumerate(shown, 1):
        said = {"rank": rank, "id": each, "value": value}
        listed.append(said | ({"text": known[str(each)]} if str(each) in known else {}))
    return {
        "train": logs.path,
        "examples": len(ranking),
        "curvature": arguments.curvature,
        "least": arguments.least,
        "ranking": listed,
        "out": None if arguments.out is None else str(arguments.out),
    }
