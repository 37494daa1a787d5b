"""``sawlog attribute``: score the examples of a run by their influence on queries."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from rich.text import Text
from tyro.conf import Positional, arg

from sawlog import influence
from sawlog._format import count, number
from sawlog._table import Cell, TableColumn, folded, table
from sawlog._text import printable, printable_name
from sawlog._validate import integer
from sawlog.cli import _out_file
from sawlog.cli._arguments import Json, Overwrite, Queries
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
    score_cell,
    text_cell,
    texts,
    with_ids,
)
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, Scores
from sawlog.influence._compatibility import check_projected
from sawlog.inspect._runs import matching_row_stores

_COLUMNS = (
    TableColumn("query", folds=12, style="bold"),
    TableColumn("rank", right=True),
    TableColumn("id", folds=12),
    TableColumn("score", right=True),
    TableColumn("layers", folds=16, rank=1),
    TableColumn("text", folds=16),
)
_MOST_LAYERS = 3


@dataclasses.dataclass(frozen=True)
class Attribute:
    """Score the examples of a run by their influence on queries.

    Queries are rows, too: log them as a run of their own, with the same layers and compression, or
    select examples of any run with --query. Examples with a positive score helped the model.

    examples:
      sawlog attribute sawlog/mnist sawlog/mnist-test --top 5
      sawlog attribute sawlog/mnist sawlog/mnist-test --query 7 --sign negative -o scores.csv
    """

    train: Train
    queries: Positional[
        Annotated[
            Path,
            arg(
                metavar="QUERIES",
                help="The folder of a run, or of a store of rows, with the queries. Of several "
                "stores in a run, the one with the name of the store of TRAIN is used.",
            ),
        ]
    ]
    curvature: CurvatureOption = "ekfac"
    damping: DampingOption = None
    relative: RelativeOption = None
    typical: TypicalOption = None
    mode: Annotated[
        Literal["dot", "cosine", "l2"],
        arg(help="What a score is: a dot product, a cosine, or a negative squared distance."),
    ] = "dot"
    top: Annotated[int, arg(help="How many examples to show for each query; 0 for all.")] = 10
    sign: Annotated[
        Literal["positive", "negative", "absolute"],
        arg(help="Which scores come first: the greatest, the least, or the farthest from 0."),
    ] = "positive"
    query: Queries = ()
    names: LayersOption = ()
    per_layer: Annotated[
        bool, arg(help="Include the scores of each layer.", help_behavior_hint="")
    ] = False
    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="PATH",
            help="Save the scores: a .csv or .parquet file, or else a folder that "
            "sawlog.influence.load_scores reads.",
            help_behavior_hint="",
        ),
    ] = None
    overwrite: Overwrite = False
    budget: BudgetOption = None
    workers: Annotated[
        int,
        arg(
            aliases=["--jobs"],
            metavar="N",
            help="How many processes share the work; 0: no further process.",
        ),
    ] = 0
    checkpoint: Annotated[
        Path | None,
        arg(
            metavar="DIR",
            help="A folder for finished parts, from which the same command resumes.",
            help_behavior_hint="",
        ),
    ] = None
    text: TextOption = None
    weights: WeightsOption = "same"
    nonfinite: NonfiniteOption = "error"
    json: Json = False


def run(arguments: Attribute, output: CommandOutput) -> int:
    """Run ``sawlog attribute``."""
    integer("--top", arguments.top, least=0)
    _out_file.check(arguments.out, arguments.overwrite)
    train, queries = map(open_logs, matching_row_stores(arguments.train, arguments.queries))
    scores = _scores(arguments, train, queries, output)
    best = scores
    if scores.whole:
        best = scores.top(max(1, len(scores.ids)), arguments.sign)
    known = texts(arguments.text, np.unique(best.ids).tolist(), output, train.path)
    if arguments.out is not None:
        _save(arguments.out, scores, best, known)
    if arguments.json:
        output.print_json(_to_json(arguments, train, queries, best, known))
        return OK
    facts = [
        count(len(train), "example"),
        count(len(best), "query", "queries"),
        arguments.curvature,
        arguments.mode,
    ]
    head = Text.assemble((printable(str(train.path)), "bold"), "  ", ", ".join(facts))
    output.print(folded(head), "", table(_COLUMNS, _cells(best, known), output.width))
    if arguments.out is not None:
        output.print("", folded(f"saved to {printable(str(arguments.out))}"))
    return OK


def _scores(arguments: Attribute, train: Logs, queries: Logs, output: CommandOutput) -> Scores:
    check_projected(train, queries)
    names = matching_layers(train, arguments.names)
    selected = with_ids(Logs(queries, names=names), arguments.query)
    with _pool(arguments.workers) as executor:
        return influence.attribute(
            train,
            selected,
            curvature=arguments.curvature,
            damping=damping_of(arguments),
            mode=arguments.mode,
            top_k=arguments.top or None,
            sign=arguments.sign,
            per_layer=arguments.per_layer,
            names=names,
            budget=budget_of(arguments),
            executor=executor,
            checkpoint=arguments.checkpoint,
            progress=output.shows_progress,
            weights=arguments.weights,
            nonfinite=arguments.nonfinite,
        )


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Executor | None]:
    if not integer("--workers", workers, least=0):
        yield None
        return
    fresh = multiprocessing.get_context("spawn")  # threads do not survive a fork
    try:
        with ProcessPoolExecutor(workers, mp_context=fresh) as pool:
            yield pool
    except BrokenProcessPool:
        raise ArgumentError(
            "A worker was killed, probably for lack of memory. Hint: use fewer --workers, or a "
            "smaller --budget; with --checkpoint, finished parts are kept."
        ) from None


# -- tables, JSON and files -----------------------------------------------------------------------


def _ranked(best: Scores) -> Iterator[tuple[int, int, Any, Any, float]]:
    """Yield ``(place of the query, rank from 0 on, query, id, score)``, query by query."""
    ids, values = best.ids.tolist(), best.values.tolist()
    for place, query in enumerate(best.queries.tolist()):
        for rank, (each, value) in enumerate(zip(ids[place], values[place], strict=True)):
            yield place, rank, query, each, value


def _cells(best: Scores, known: Mapping[str, str]) -> list[list[Cell]]:
    coloured = best.about.get("mode") != "l2"
    return [
        [
            "" if rank else printable_name(query),
            str(rank + 1),
            printable_name(each),
            score_cell(value, coloured),
            _greatest_layers(best, place, rank),
            text_cell(known.get(str(each), "")),
        ]
        for place, rank, query, each, value in _ranked(best)
    ]


def _greatest_layers(best: Scores, place: int, rank: int) -> str:
    """Return the layers that contribute most to a score, as text."""
    parts = {name: float(values[place, rank]) for name, values in best.layers.items()}
    first = sorted(parts, key=lambda name: -abs(parts[name]))[:_MOST_LAYERS]
    more = ["..."] if len(parts) > _MOST_LAYERS else []
    return ", ".join([f"{printable_name(name)} {number(parts[name])}" for name in first] + more)


def _to_json(
    arguments: Attribute, train: Logs, queries: Logs, best: Scores, known: Mapping[str, str]
) -> dict[str, Any]:
    results: list[dict[str, Any]] = [
        {"query": query, "examples": []} for query in best.queries.tolist()
    ]
    for place, rank, _, each, value in _ranked(best):
        example: dict[str, Any] = {"rank": rank + 1, "id": each, "score": value}
        if best.layers:
            example["layers"] = {n: float(v[place, rank]) for n, v in best.layers.items()}
        if str(each) in known:
            example["text"] = known[str(each)]
        results[place]["examples"].append(example)
    return {
        "train": train.path,
        "queries": queries.path,
        "examples": len(train),
        "curvature": arguments.curvature,
        "damping": best.about["damping"],
        "mode": arguments.mode,
        "sign": arguments.sign,
        "results": results,
        "out": None if arguments.out is None else str(arguments.out),
    }


def _save(path: Path, scores: Scores, best: Scores, known: Mapping[str, str]) -> None:
    if not _out_file.is_sheet(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scores.save(path)
        return
    each = best.values.shape[1]
    ids = best.ids.ravel()
    columns: dict[str, Any] = {
        "query": np.repeat(best.queries, each),
        "rank": np.tile(np.arange(1, each + 1), len(best)),
        "id": ids,
        "score": best.values.ravel(),
        **{name: values.ravel() for name, values in best.layers.items()},
    }
    if known:
        columns["text"] = [known.get(str(each), "") for each in ids.tolist()]
    _out_file.write(path, columns)
