"""``sawlog self-influence``: rank examples by their influence on themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from tyro.conf import arg

from sawlog import influence
from sawlog._format import count, number
from sawlog._table import Cell, TableColumn, folded, table
from sawlog._text import printable, printable_name
from sawlog._validate import integer
from sawlog.cli import _out_file
from sawlog.cli._arguments import Json, Overwrite
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.cli._scoring import (
    BudgetOption,
    CurvatureOption,
    DampingOption,
    LayersOption,
    NonfiniteOption,
    RelativeOption,
    TextOption,
    Train,
    TypicalOption,
    WeightsOption,
    budget_of,
    damping_of,
    matching_layers,
    open_logs,
    text_cell,
    texts,
)
from sawlog.influence import Logs, Ranking
from sawlog.inspect import row_store

_COLUMNS = (
    TableColumn("rank", right=True),
    TableColumn("id", folds=12, style="bold"),
    TableColumn("self-influence", right=True),
    TableColumn("text", folds=16),
)


@dataclasses.dataclass(frozen=True)
class SelfInfluence:
    """Rank the examples of a run by self-influence: likely label errors first.

    No other data explains an example with a high self-influence: it is rare, hard or mislabelled.

    examples:
      sawlog self-influence sawlog/mnist --top 50
      sawlog self-influence sawlog/mnist -o ranking.csv
    """

    train: Train
    top: Annotated[int, arg(help="How many examples to show; 0 for all.")] = 20
    least: Annotated[
        bool, arg(help="Show the lowest self-influence first.", help_behavior_hint="")
    ] = False
    curvature: CurvatureOption = "ekfac"
    damping: DampingOption = None
    relative: RelativeOption = None
    typical: TypicalOption = None
    names: LayersOption = ()
    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="PATH",
            help="Save the whole ranking as a .csv or .parquet file.",
            help_behavior_hint="",
        ),
    ] = None
    overwrite: Overwrite = False
    budget: BudgetOption = None
    text: TextOption = None
    weights: WeightsOption = "same"
    nonfinite: NonfiniteOption = "error"
    json: Json = False


def run(arguments: SelfInfluence, output: CommandOutput) -> int:
    """Run ``sawlog self-influence``."""
    integer("--top", arguments.top, least=0)
    _out_file.check_suffix(arguments.out)
    _out_file.check(arguments.out, arguments.overwrite)
    logs = open_logs(row_store(arguments.train))
    with output.progress("ranking"):
        ranking = influence.self_influence(
            logs,
            curvature=arguments.curvature,
            damping=damping_of(arguments),
            names=matching_layers(logs, arguments.names),
            budget=budget_of(arguments),
            weights=arguments.weights,
            nonfinite=arguments.nonfinite,
        )
    shown = ranking.top(arguments.top or len(ranking), least=arguments.least)
    everything = arguments.out is not None
    ordered = ranking.top(len(ranking), least=arguments.least) if everything else shown
    known = texts(arguments.text, [each for each, _ in ordered], output, logs.path)
    if arguments.out is not None:
        columns: dict[str, Any] = {
            "rank": list(range(1, len(ordered) + 1)),
            "id": [each for each, _ in ordered],
            "value": [value for _, value in ordered],
        }
        if known:
            columns["text"] = [known.get(str(each), "") for each, _ in ordered]
        _out_file.write(arguments.out, columns)
    if arguments.json:
        output.print_json(_to_json(arguments, logs, ranking, shown, known))
        return OK
    facts = f"{count(len(ranking), 'example')}, {arguments.curvature}"
    head = Text.assemble((printable(str(logs.path)), "bold"), "  ", facts)
    output.print(folded(head), "", table(_COLUMNS, _cells(shown, known), output.width))
    if arguments.out is not None:
        output.print("", folded(f"saved to {printable(str(arguments.out))}"))
    return OK


def _cells(shown: list[tuple[Any, float]], known: Mapping[str, str]) -> list[list[Cell]]:
    return [
        [str(rank), printable_name(each), number(value), text_cell(known.get(str(each), ""))]
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
        example = {"rank": rank, "id": each, "value": value}
        listed.append(example | ({"text": known[str(each)]} if str(each) in known else {}))
    return {
        "train": logs.path,
        "examples": len(ranking),
        "curvature": arguments.curvature,
        "least": arguments.least,
        "ranking": listed,
        "out": None if arguments.out is None else str(arguments.out),
    }
