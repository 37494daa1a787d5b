"""``PageSource``: everything a page shows, in parts that are computed on demand.

The parts are ``"index"``, ``"curves/RUN"``, ``"arrays/RUN"``, ``"store/RUN"``, ``"labels/RUN"`` and
``"attribution/RUN/N"``, where RUN is a short hash of the path of a run. A report has all of them
inside; the live page fetches them.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash

import sawlog
import sawlog.store
from sawlog._format import iso
from sawlog._paths import absolute
from sawlog._validate import integer, optional
from sawlog.errors import ArgumentError, SawlogError, StoreNotFoundError
from sawlog.example_data import ExampleData, load_examples
from sawlog.example_data._table import QUERIES
from sawlog.influence import load_scores
from sawlog.inspect import (
    RunSummary,
    curvature_spectra,
    find_runs,
    run_summary,
    store_summary,
)
from sawlog.inspect._store_folders import must_search
from sawlog.report._attribution import ScoredRun, attribution_part
from sawlog.report._label_part import checked_label_part
from sawlog.report._series_parts import arrays_part, curves_part, has_arrays

MOST_RUNS = 2_000
MOST_POINTS = 300_000  # points of all curves of a report together
_TABLE_NAMES = 400
_MOST_READ = 64  # runs whose schema is read to know what they have


@dataclasses.dataclass(frozen=True)
class PageOptions:
    """What a page contains.

    Args:
        title: the title of the page.
        points: how many points a curve has at most; None divides what a page can hold.
        labels: whether to rank examples by self-influence.
        fit: whether curvatures may be fitted and saved with runs for that.
    """

    title: str = "sawlog"
    points: int | None = None
    labels: bool = True
    fit: bool = True

    def __post_init__(self) -> None:
        optional(functools.partial(integer, least=2), "points", self.points)


@dataclasses.dataclass(frozen=True)
class PageRun:
    """A run on a page: its summary, and the scores that belong to it."""

    id: str
    name: str
    group: str
    summary: RunSummary
    scores: tuple[Path | ScoredRun, ...] = ()

    @property
    def rows(self) -> Path | None:
        """The store of rows of the run; the first of several."""
        if self.summary.kind == "store":
            return None
        return next(iter(self.summary.store_paths("logs")), None)

    def data(self) -> ExampleData | None:
        """Return the described examples of the run."""
        return load_examples(self.summary.path) if "data" in self.summary.stores else None


def _saved(path: str | os.PathLike[str]) -> Path:
    """Return the path of saved scores, after reading them: what is given must be on the page."""
    load_scores(path)
    return absolute(path)


class PageSource:
    """The runs under some folders, as the parts of a page.

    Args:
        paths: runs, or folders whose runs to show.
        options: what the page contains.
        scores: further scores: saved ones by path, or as :class:`ScoredRun`. They are shown with
            the first run.

    Raises:
        StoreNotFoundError: a path does not exist, or no run is found.
        ArgumentError: a store does not contain scores.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        options: PageOptions | None = None,
        scores: Sequence[str | os.PathLike[str] | ScoredRun] = (),
    ) -> None:
        self.options = options or PageOptions()
        several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        self._paths = [absolute(path) for path in several]
        self._scores = tuple(s if isinstance(s, ScoredRun) else _saved(s) for s in scores)
        self.live = False
        self.left_out = 0
        self.runs = self.find()

    def find(self) -> dict[str, PageRun]:
        """Return the runs under the paths, by id.

        Raises:
            StoreNotFoundError: a path does not exist, or no run is found.
        """
        unique = list(dict.fromkeys(run for path in self._paths for run in _runs_at(path)))
        if not unique:
            listed = ", ".join(map(str, self._paths))
            raise StoreNotFoundError(
                f"There is no run at {listed}. Hint: sawlog ls FOLDER lists the stores there."
            )
        root = Path(os.path.commonpath(list(self._paths)))
        runs = {}
        for number, path in enumerate(unique[:MOST_RUNS]):
            run = page_run(path, root, self._scores if number == 0 else ())
            runs[run.id] = run
        self.left_out = len(unique) - len(runs)
        return runs

    def parts(self) -> Iterable[str]:
        """Yield the names of all parts."""
        yield "index"
        for run in self.runs.values():
            for kind in ("curves", "arrays", "store"):
                yield f"{kind}/{run.id}"
            if run.rows is not None and self.options.labels:
                yield f"labels/{run.id}"
            for number in range(len(run.scores)):
                yield f"attribution/{run.id}/{number}"

    def part(self, name: str) -> dict[str, Any]:
        """Compute a part.

        Raises:
            KeyError: there is no such part.
        """
        kind, _, rest = name.partition("/")
        if kind == "index" and not rest:
            return self._index()
        run_id, _, number = rest.partition("/")
        run = self.runs[run_id]
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "curves": lambda: curves_part(run.summary.series_path, self._points()),
            "arrays": lambda: arrays_part(run.summary.series_path),
            "store": lambda: _store_part(run),
            "labels": lambda: self._labels(run),
        }
        scores = {str(place): path for place, path in enumerate(run.scores)}
        if kind == "attribution" and number in scores:
            return _checked(lambda: attribution_part(self._scored(run, scores[number])))
        if number:
            raise KeyError(name)
        return _checked(makers[kind])

    def _points(self) -> int:
        if self.options.points is not None:
            return self.options.points
        curves = sum(
            store.names or 0
            for run in self.runs.values()
            for name, store in run.summary.stores.items()
            if name in (".", "metrics")
        )
        return min(1_000, max(100, MOST_POINTS // max(1, curves)))

    def _scored(self, run: PageRun, scores: Path | ScoredRun) -> ScoredRun:
        """Load saved scores, with what is known about their examples and queries."""
        if isinstance(scores, ScoredRun):
            return scores
        loaded = load_scores(scores)
        train = loaded.about.get("train")
        own = run.rows  # scores that are saved in a run are about its rows
        if run.summary.path not in scores.parents:
            own = Path(train) if isinstance(train, str) else None
        coverage = run.summary.coverage
        return ScoredRun(
            scores.name,
            loaded,
            run.data(),
            self._query_data(loaded.about.get("queries"), run.summary.path),
            own if own is not None and own.is_dir() else None,
            None if coverage is None else coverage.share,
        )

    def _query_data(self, queries: Any, run: Path) -> ExampleData | None:
        """Return the described queries: of a run of this page, or of the run that was scored."""
        if isinstance(queries, str):
            folder = Path(queries).parent.parent
            for other in self.runs.values():
                if other.summary.path == folder:
                    return other.data()
        return load_examples(run / QUERIES)

    def _labels(self, run: PageRun) -> dict[str, Any]:
        if run.rows is None:
            return {"problem": "The run has no rows of examples."}
        return checked_label_part(run.rows, run.data(), fit=self.options.fit)

    def _index(self) -> dict[str, Any]:
        return {
            "title": self.options.title,
            "version": sawlog.__version__,
            "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "live": self.live,
            "left_out": self.left_out,
            "arrays": self._has_arrays(),
            "runs": [self._run_json(run) for run in self.runs.values()],
        }

    def _has_arrays(self) -> bool:
        """Return whether a run logged arrays; of many runs, only the first ones are read."""
        if len(self.runs) > _MOST_READ:
            return True
        return any(has_arrays(run.summary.series_path) for run in self.runs.values())

    def _run_json(self, run: PageRun) -> dict[str, Any]:
        summary = run.summary
        entries = sum(s.entries or 0 for n, s in summary.stores.items() if n in (".", "metrics"))
        rows = sum(
            store.rows or 0 for n, store in summary.stores.items() if n.startswith(("logs", "."))
        )
        return {
            "id": run.id,
            "name": run.name,
            "group": run.group,
            "path": str(summary.path),
            "kind": summary.kind,
            "state": summary.state,
            "created": summary.created,
            "written": iso(summary.written),
            "bytes": summary.nbytes,
            "entries": entries,
            "rows": rows,
            "config": summary.config,
            "error": next((s.error for s in summary.stores.values() if s.error), None),
            "problem": summary.problem
            or next((s.problem for s in summary.stores.values() if s.problem), None),
            "labels": run.rows is not None and self.options.labels,
            "attributions": [_title(each) for each in run.scores],
            "coverage": None if summary.coverage is None else summary.coverage.share,
        }


def _runs_at(path: Path) -> list[Path]:
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise StoreNotFoundError(f"{path} {what}. Hint: give the folder of a run, or of several.")
    return list(find_runs(path, must_search))


def page_run(path: Path, root: Path, more: tuple[Path | ScoredRun, ...] = ()) -> PageRun:
    """Summarize a run; ``more`` are scores that are not saved inside of it."""
    summary = run_summary(path)
    name = path.relative_to(root).as_posix() if path != root else path.name
    group = name.rpartition("/")[0] or (root.name if path != root else "")
    own: tuple[Path | ScoredRun, ...] = ()
    if summary.kind == "capture":
        own = tuple(summary.store_paths("scores"))
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(path))
    return PageRun(digest, name, group, summary, own + more)


def _title(scores: Path | ScoredRun) -> str:
    return scores.title if isinstance(scores, ScoredRun) else scores.name


def _checked(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a part, or why it cannot be read."""
    try:
        return make()
    except (SawlogError, OSError) as error:
        return {"problem": str(error)}


# -- the store ------------------------------------------------------------------------------------


def _store_part(run: PageRun) -> dict[str, Any]:
    summary = run.summary
    tables = []
    for name, overview in summary.stores.items():
        if name.split("/")[0] in (".", "logs") and overview.rows:
            found = store_summary(summary.path / name, limit=_TABLE_NAMES, damaged="skip")
            said = found.to_json()
            tables.append({"store": name, "tables": said["tables"], "problems": said["problems"]})
    return {
        "path": str(summary.path),
        "stores": {name: store.to_json() for name, store in summary.stores.items()},
        "coverage": None if summary.coverage is None else summary.coverage.to_json(),
        "spectra": [each.to_json() for each in curvature_spectra(summary.path)],
        "tables": tables,
    }


# -- scores ---------------------------------------------------------------------------------------


def scored_from(
    run: str | os.PathLike[str],
    title: str,
    scores: Any,
    queries: str | os.PathLike[str] | None,
    tokens: Any = None,
) -> ScoredRun:
    """Return scores that were just computed, with the data of both runs.

    Raises:
        ArgumentError: there is no run at ``run``.
    """
    summary = run_summary(run)
    if summary.kind != "capture":
        raise ArgumentError(
            f"{run} is not the folder of a run. Hint: sawlog ls FOLDER lists the stores below a "
            "folder."
        )
    coverage = summary.coverage
    return ScoredRun(
        title,
        scores,
        load_examples(summary.path),
        None if queries is None else load_examples(queries),
        next(iter(summary.store_paths("logs")), None),
        None if coverage is None else coverage.share,
        tokens or {},
    )
