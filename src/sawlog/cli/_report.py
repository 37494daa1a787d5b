"""``sawlog report``: write a self-contained page about runs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import arg

from sawlog import influence
from sawlog._format import size
from sawlog._table import folded
from sawlog._text import printable
from sawlog._validate import integer, refuse
from sawlog.cli._arguments import Json, Overwrite, Queries, Runs
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.cli._scoring import CurvatureOption, open_logs, with_ids
from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.example_data import check_described, describe
from sawlog.influence import Logs, Scores
from sawlog.inspect._run_summary import is_capture_run
from sawlog.inspect._runs import matching_row_stores
from sawlog.report import PageOptions, write_report
from sawlog.report._attribution import ScoredRun
from sawlog.report._source import scored_from

_SUFFIXES = (".html", ".htm")
_MOST_TOKENS = 50  # listed examples of a query whose tokens are scored


@dataclasses.dataclass(frozen=True)
class WriteReport:
    """Write a page about runs: one HTML file that needs no network.

    It has the runs with their configuration, curves, histograms and images of arrays, the store
    with its layers and spectra, likely label errors, and attributions: the scores that are saved in
    the folder `scores` of a run, those of --scores, and those for --queries.

    examples:
      sawlog report runs -o report.html
      sawlog report sawlog/mnist --data train.jsonl --queries sawlog/mnist-test -o report.html
    """

    runs: Runs
    out: Annotated[Path, arg(aliases=["-o"], metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    )
    title: Annotated[
        str | None,
        arg(
            metavar="TITLE",
            help="The title of the page.",
            help_behavior_hint="(default: the folder)",
        ),
    ] = None
    scores: Annotated[
        tuple[Path, ...],
        arg(
            metavar="PATH [PATH ...]",
            help="Saved scores, such as those of sawlog attribute --out FOLDER.",
            help_behavior_hint="",
        ),
    ] = ()
    queries: Annotated[
        Path | None,
        arg(
            metavar="RUN",
            help="Score the examples of the first run for the rows of this one.",
            help_behavior_hint="",
        ),
    ] = None
    query: Queries = ()
    curvature: CurvatureOption = "ekfac"
    data: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="What the examples of the first run look like: JSON lines, CSV, Parquet, text, "
            "or a folder of images. It is stored with the run.",
            help_behavior_hint="",
        ),
    ] = None
    query_data: Annotated[
        Path | None,
        arg(metavar="FILE", help="The same for the run of --queries.", help_behavior_hint=""),
    ] = None
    points: Annotated[
        int | None,
        arg(
            metavar="N",
            help="How many points a curve has at most.",
            help_behavior_hint="(default: by size)",
        ),
    ] = None
    labels: Annotated[
        bool,
        arg(
            name="no-labels",
            help="Leave out likely label errors, which take a pass over all rows.",
            help_behavior_hint="",
        ),
    ] = False
    overwrite: Overwrite = False
    json: Json = False


def run(arguments: WriteReport, output: CommandOutput) -> int:
    """Run ``sawlog report``."""
    if not arguments.runs:
        raise ArgumentError("No run was given. Hint: sawlog ls FOLDER lists the stores there.")
    out = arguments.out
    if out.is_dir():
        raise StoreExistsError(f"{out} is a folder. Hint: -o {out / 'report.html'}.")
    if out.exists() and not arguments.overwrite:
        raise StoreExistsError(f"{out} exists. Hint: --overwrite replaces it.")
    if out.suffix.lower() not in _SUFFIXES:
        refuse("-o", "an .html file", str(out), "-o report.html")
    _check_needs_queries(arguments)
    if arguments.points is not None:
        integer("--points", arguments.points, least=2)
    _describe(arguments.runs[0], arguments.data)
    more: list[str | os.PathLike[str] | ScoredRun] = [*arguments.scores]
    if arguments.queries is not None:
        _describe(arguments.queries, arguments.query_data)
        more.append(_scored(arguments, arguments.queries))
    title = arguments.title or arguments.runs[0].absolute().name or "sawlog"
    options = PageOptions(title, arguments.points, labels=not arguments.labels)
    with output.progress("writing the report") as progress:
        write_report(arguments.runs, out, options=options, scores=more, progress=progress)
    nbytes = out.stat().st_size
    if arguments.json:
        output.print_json({"file": str(out.absolute()), "bytes": nbytes})
    else:
        where = printable(out.absolute().as_uri())
        output.print(folded(f"wrote {printable(str(out))}, {size(nbytes)}: {where}"))
    return OK


def _check_needs_queries(arguments: WriteReport) -> None:
    """Refuse options that say something about queries, where there are none to score."""
    given = {"--query": arguments.query, "--query-data": arguments.query_data}
    unused = [option for option, value in given.items() if value]
    if unused and arguments.queries is None:
        verb = "needs" if len(unused) == 1 else "need"
        raise ArgumentError(
            f"{' and '.join(unused)} {verb} the run of the queries. Hint: --queries RUN."
        )


def _describe(folder: Path, data: Path | None) -> None:
    if data is None:
        return
    if not is_capture_run(folder):
        raise ArgumentError(
            f"{folder} is not the folder of one run, so data cannot be stored with it. Hint: give "
            "the run itself first."
        )
    if not describe(folder, data):
        raise ArgumentError(
            f"{data} has no examples. Hint: --data takes a file with a line or row for each "
            "example."
        )
    check_described(folder)


def _scored(arguments: WriteReport, queries: Path) -> ScoredRun:
    first = arguments.runs[0]
    train, asked = map(open_logs, matching_row_stores(first, queries))
    selected = with_ids(asked, arguments.query)
    kind = arguments.curvature
    scores = influence.attribute(train, selected, curvature=kind, per_layer=True)
    tokens = _token_scores(train, selected, scores, kind)
    title = f"{first.absolute().name}, queries of {queries.absolute().name}"
    return scored_from(first, title, scores, queries, tokens)


def _token_scores(
    train: Logs, queries: Logs, scores: Scores, kind: str
) -> dict[Any, dict[Any, Any]]:
    """Score the tokens of the examples that the page lists, if the store has both factors."""
    found: dict[Any, dict[Any, Any]] = {}
    for place, query in enumerate(scores.queries.tolist()):
        order = np.argsort(-scores.values[place], kind="stable")
        half = _MOST_TOKENS // 2
        ids = scores.ids[np.unique(np.concatenate([order[:half], order[-half:]]))]
        try:
            asked = queries.of(queries.gather([query]))
            own = influence.token_scores(train, asked, ids, curvature=kind)
        except ArgumentError:
            return {}  # the store has gradients only, which cannot be split
        found[query] = dict(zip(ids.tolist(), own[0].tolist(), strict=True))
    return found
