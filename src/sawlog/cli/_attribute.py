"""``sawlog attribute``: which examples of a run made the model answer queries as it does."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from sawlog import influence
from sawlog.cli import _rows, _sheet
from sawlog.cli._commands import Attribute
from sawlog.cli._format import count, number, plain
from sawlog.cli._outcome import OK
from sawlog.cli._scoring import budget_of, check_top, damping_of, score_cell, text_cell, texts
from sawlog.cli._screen import Screen
from sawlog.cli._table import Cell, Column, folded, table
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, Scores
from sawlog.influence._compatibility import check_projected

_COLUMNS = (
    Column("query", folds=12, style="bold"),
    Column("rank", right=True),
    Column("id", folds=12),
    Column("score", right=True),
    Column("layers", folds=16, rank=1),
    Column("text", folds=16),
)
_MOST_LAYERS = 3


def run(arguments: Attribute, screen: Screen) -> int:
    """Carry out ``sawlog attribute``."""
    check_top(arguments.top)
    _sheet.check(arguments.out, arguments.overwrite)
    train, queries = map(_rows.opened, _rows.two(arguments.train, arguments.queries))
    scores = _scores(arguments, train, queries, screen)
    best = scores
    if scores.whole:
        best = scores.top(max(1, len(scores.ids)), arguments.sign)
    known = texts(arguments.text, np.unique(best.ids).tolist(), screen)
    if arguments.out is not None:
        _save(arguments.out, scores, best, known)
    if arguments.json:
        screen.print_json(_to_json(arguments, train, queries, best, known))
        return OK
    said = [
        count(len(train), "example"),
        count(len(best), "query", "queries"),
        arguments.curvature,
        arguments.mode,
    ]
    head = Text.assemble((plain(str(train.path)), "bold"), "  ", ", ".join(said))
    screen.print(folded(head), "", table(_COLUMNS, _cells(best, known), screen.width))
    if arguments.out is not None:
        screen.print("", folded(f"saved to {plain(str(arguments.out))}"))
    return OK


def _scores(arguments: Attribute, train: Logs, queries: Logs, screen: Screen) -> Scores:
    check_projected(train, queries)
    names = _rows.layers(train, arguments.names)
    asked = _rows.some(Logs(queries, names=names), arguments.query)
    with _pool(arguments.workers) as executor:
        return influence.attribute(
            train,
            asked,
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
            progress=screen.watched,
            weights=arguments.weights,
            nonfinite=arguments.nonfinite,
        )


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Executor | None]:
    if workers < 0:
        raise ArgumentError(f"--workers is at least 0, not {workers}")
    if not workers:
        yield None
        return
    fresh = multiprocessing.get_context("spawn")  # threads do not survive a fork
    try:
        with ProcessPoolExecutor(workers, mp_context=fresh) as pool:
            yield pool
    except BrokenProcessPool:
        raise ArgumentError(
            "A worker was killed, probably for lack of memory. Hint: fewer --workers, or a smaller "
            "--budget; with --checkpoint nothing is done twice."
        ) from None


# -- for people, for programs, and to keep --------------------------------------------------------


def _ranked(best: Scores) -> Iterator[tuple[int, int, Any, Any, float]]:
    """``(place of the query, rank from 0 on, query, id, score)`` of all, query by query."""
    ids, values = best.ids.tolist(), best.values.tolist()
    for place, query in enumerate(best.queries.tolist()):
        for rank, (each, value) in enumerate(zip(ids[place], values[place], strict=True)):
            yield place, rank, query, each, value


def _cells(best: Scores, known: Mapping[str, str]) -> list[list[Cell]]:
    coloured = best.about.get("mode") != "l2"
    return [
        [
            "" if rank else plain(str(query)),
            str(rank + 1),
            plain(str(each)),
            score_cell(value, coloured),
            _greatest_layers(best, place, rank),
            text_cell(known.get(str(each), "")),
        ]
        for place, rank, query, each, value in _ranked(best)
    ]


def _greatest_layers(best: Scores, place: int, rank: int) -> str:
    """The layers with the greatest part in a score."""
    parts = {name: float(values[place, rank]) for name, values in best.layers.items()}
    first = sorted(parts, key=lambda name: -abs(parts[name]))[:_MOST_LAYERS]
    more = ["..."] if len(parts) > _MOST_LAYERS else []
    return ", ".join([f"{plain(name)} {number(parts[name])}" for name in first] + more)


def _to_json(
    arguments: Attribute, train: Logs, queries: Logs, best: Scores, known: Mapping[str, str]
) -> dict[str, Any]:
    results: list[dict[str, Any]] = [
        {"query": query, "examples": []} for query in best.queries.tolist()
    ]
    for place, rank, _, each, value in _ranked(best):
        said: dict[str, Any] = {"rank": rank + 1, "id": each, "score": value}
        if best.layers:
            said["layers"] = {n: float(v[place, rank]) for n, v in best.layers.items()}
        if str(each) in known:
            said["text"] = known[str(each)]
        results[place]["examples"].append(said)
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
    if not _sheet.is_sheet(path):
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
    _sheet.write(path, columns)
