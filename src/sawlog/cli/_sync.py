"""``sawlog sync``: send what stores hold to a tracker, later and again."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from tyro.conf import arg

import sawlog.store
from sawlog._format import count
from sawlog._optional import require
from sawlog._table import TableColumn, table
from sawlog._text import printable_name
from sawlog._validate import positive_integer
from sawlog.cli._arguments import Json, Runs
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput, ProgressCallback
from sawlog.cli._run_paths import named_runs
from sawlog.cli._sync_state import SyncState, default_folder
from sawlog.errors import ArgumentError, SawlogError
from sawlog.inspect import run_summary, writer_activity
from sawlog.records import Entries, Records
from sawlog.sinks import MLflowSink, Sink, TensorBoardSink, TrackioSink, WandbSink, fail
from sawlog.store import Reader

_PIECE = 1000  # entries of each name that are sent at a time
_EVERY = 1.0  # seconds between two readings with --follow
_HIDDEN = ("provenance",)  # notes of capture runs

_COLUMNS = (
    TableColumn("run", folds=16, style="bold"),
    TableColumn("sent", right=True),
    TableColumn("sent before", right=True),
)


@dataclasses.dataclass(frozen=True)
class Sync:
    """Send the series of stores to a tracker; what was sent before is not sent again.

    Each run becomes a run of the tracker, which later calls continue. It is named by its path in
    the folder that holds the runs, and the project by that folder: "sawlog sync runs" and "sawlog
    sync runs/seed-0" both send to the project "runs" the run "seed-0". What was sent is remembered
    in --state after each piece, so an interrupted upload sends at most one piece twice. W&B
    writes in a process of its own: if that is killed too, it loses what it had not written yet.

    examples:
      sawlog sync runs --to wandb --project ppo --jobs 4
      sawlog sync runs/seed-0 --to tensorboard --out tensorboard --follow
    """

    runs: Runs
    to: Annotated[Literal["wandb", "mlflow", "tensorboard", "trackio"], arg(help="The tracker.")]
    project: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="The project of W&B or Trackio, or the experiment of MLflow.",
            help_behavior_hint="(default: the name of the folder that holds the runs)",
        ),
    ] = None
    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="FOLDER",
            help="The folder for TensorBoard's files.",
            help_behavior_hint="",
        ),
    ] = None
    follow: Annotated[
        bool,
        arg(aliases=["-f"], help="Send what is logged until the runs end.", help_behavior_hint=""),
    ] = False
    jobs: Annotated[
        int, arg(aliases=["--workers"], metavar="N", help="How many processes send runs.")
    ] = 1
    state: Annotated[
        Path | None,
        arg(
            metavar="FOLDER",
            help="The folder that records what was sent.",
            help_behavior_hint="(default: ~/.local/state/sawlog/sync)",
        ),
    ] = None
    json: Json = False


@dataclasses.dataclass(frozen=True)
class _Sent:
    run: str
    sent: int
    before: int


def run(arguments: Sync, output: CommandOutput) -> int:
    """Run ``sawlog sync``."""
    positive_integer("--jobs", arguments.jobs)
    if arguments.to == "tensorboard" and arguments.out is None:
        raise ArgumentError("--to tensorboard needs a folder. Hint: --out FOLDER.")
    _check_where(arguments)
    folder, found_runs = named_runs(arguments.runs)
    runs = list(found_runs.items())
    if not arguments.project:
        arguments = dataclasses.replace(arguments, project=_project(folder))
    jobs = min(arguments.jobs, len(runs))
    with output.progress(f"sending to {arguments.to}") as progress:
        if arguments.follow:
            progress = None  # the total is unknown
        if jobs == 1:
            found = _sync_all(arguments, runs, progress)
        else:
            with _refusals_of(arguments.to, runs[0][0]):
                _prepare(arguments.to)
            found = _in_processes(arguments, [runs[i::jobs] for i in range(jobs)], progress)
    if arguments.json:
        output.print_json([dataclasses.asdict(each) for each in found])
        return OK
    rows = [[printable_name(each.run), f"{each.sent:,}", f"{each.before:,}"] for each in found]
    total = count(sum(each.sent for each in found), "entry", "entries")
    output.print(table(_COLUMNS, rows, output.width), "", f"{total} sent to {arguments.to}")
    return OK


def _project(folder: Path) -> str:
    """Return the project of the runs in a folder: they belong together however they are given."""
    return Path(os.path.abspath(folder)).name or "sawlog"


def _check_where(arguments: Sync) -> None:
    """Refuse --out and --project where the tracker does not use them."""
    board = arguments.to == "tensorboard"
    unused = "--project" if board else "--out"
    if (arguments.project if board else arguments.out) is not None:
        raise ArgumentError(
            f"--to {arguments.to} does not use {unused}. Hint: "
            f"{'--out FOLDER' if board else '--project NAME'} says where runs go."
        )
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise ArgumentError(f"--out {arguments.out} is a file. Hint: give a folder.")


def _prepare(tracker: str) -> None:
    """Create what processes would otherwise create at once: the tables of a new MLflow database."""
    if tracker == "mlflow":
        client = require("mlflow", "mlflow", "sawlog sync --to mlflow").MlflowClient()
        client.search_experiments(max_results=1)


def _in_processes(
    arguments: Sync, shares: list[list[tuple[str, Path]]], progress: ProgressCallback | None
) -> list[_Sent]:
    fresh = multiprocessing.get_context("spawn")  # threads do not survive a fork
    try:
        with ProcessPoolExecutor(len(shares), mp_context=fresh) as pool:
            waiting = [pool.submit(_sync_all, arguments, share) for share in shares]
            found: list[_Sent] = []
            for each in as_completed(waiting):
                found += each.result()
                if progress is not None:
                    progress(len(found), sum(map(len, shares)))
            return sorted(found, key=lambda s: s.run)
    except BrokenProcessPool:
        raise ArgumentError(
            "A process was killed, probably for lack of memory. Hint: use fewer --jobs; what was "
            "sent is remembered."
        ) from None


def _sync_all(
    arguments: Sync, runs: list[tuple[str, Path]], progress: ProgressCallback | None = None
) -> list[_Sent]:
    """Send some runs one after the other; with --follow in turns, until all have ended."""
    found: dict[str, _Sent] = {}
    waiting = runs
    # Trackers print what they do; standard output is for the result.
    with contextlib.redirect_stdout(sys.stderr), _OpenSinks() as sinks:
        while waiting:
            going = []
            for at, (name, path) in enumerate(waiting):
                part = None if progress is None else _part_of(progress, at, len(waiting))
                with _refusals_of(arguments.to, name):
                    sent, is_open = _sync_one(arguments, name, path, sinks, part)
                first = found.get(name, _Sent(name, 0, sent.before))
                found[name] = _Sent(name, first.sent + sent.sent, first.before)
                if is_open and arguments.follow:
                    going.append((name, path))
                else:
                    with _refusals_of(arguments.to, name):
                        sinks.close(name)
            waiting = going
            if waiting:
                time.sleep(_EVERY)
    return list(found.values())


@contextlib.contextmanager
def _refusals_of(tracker: str, run: str) -> Iterator[None]:
    """Turn an error of a tracker into one line; such errors often cannot be pickled either."""
    try:
        yield
    except (SawlogError, OSError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
        raise ArgumentError(
            f"{tracker} failed at run {printable_name(run)}: {said}. Hint: what was sent is "
            "remembered, so the same command continues where it stopped."
        ) from error


def _part_of(progress: ProgressCallback, at: int, runs: int) -> ProgressCallback:
    """Return the progress of one of several runs, as progress of all of them."""
    return lambda done, total: progress(at * total + done, runs * total)


class _OpenSinks:
    """The runs of the tracker that are open, by the name of the run."""

    def __init__(self) -> None:
        self.by_name: dict[str, Sink] = {}

    def close(self, name: str) -> None:
        """Close the sink of a run, if it was opened."""
        sink = self.by_name.pop(name, None)
        if sink is not None:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            for name in list(self.by_name):
                stack.callback(self.close, name)


def _sync_one(
    arguments: Sync,
    name: str,
    path: Path,
    sinks: _OpenSinks,
    progress: ProgressCallback | None = None,
) -> tuple[_Sent, bool]:
    """Send what is new of a run; return what was sent, and whether the run is still open."""
    summary = run_summary(path)
    place = summary.series_path
    if place is None:
        return _Sent(name, 0, 0), False
    activity = writer_activity(place).state  # first: what was published before it ended is read
    with sawlog.store.open(place) as reader:
        state = SyncState(
            arguments.state or default_folder(), reader.id, _destination(arguments, name)
        )
        before, pieces = sum(state.sent.values()), list(_pieces(reader, state.sent))
        if pieces:
            if name not in sinks.by_name:
                sinks.by_name[name] = _open_sink(arguments, name, summary.config, reader.id, state)
            _send(sinks.by_name[name], pieces, reader, state, progress)
        if activity == "failed" and name in sinks.by_name:
            fail(sinks.by_name[name])
        sent = sum(state.sent.values()) - before
    return _Sent(name, sent, before), activity == "writing"


def _destination(arguments: Sync, name: str) -> str:
    """Return what tells apart where entries of a store go, however the runs were given."""
    if arguments.to == "tensorboard":
        assert arguments.out is not None
        return f"tensorboard\0{arguments.out.absolute() / name}"
    run = name if arguments.to == "trackio" else ""  # others know their run by an id
    return f"{arguments.to}\0{arguments.project}\0{run}"


Piece = dict[str, tuple[int, int]]  # the entries of each name, from and to


def _pieces(reader: Reader, sent: dict[str, int]) -> Iterator[Piece]:
    """Yield what is new in pieces; names that are logged together stay together."""
    left = {}
    for series in reader.schema.series:
        name = series.column.name
        total = sum(c.rows for s in reader.segments for c in s.chunks if name in c.names)
        if name not in _HIDDEN and total > sent.get(name, 0):
            left[name] = (sent.get(name, 0), total)
    while left:
        yield {name: (start, min(stop, start + _PIECE)) for name, (start, stop) in left.items()}
        left = {
            name: (start + _PIECE, stop)
            for name, (start, stop) in left.items()
            if start + _PIECE < stop
        }


def _send(
    sink: Sink,
    pieces: list[Piece],
    reader: Reader,
    state: SyncState,
    progress: ProgressCallback | None = None,
) -> None:
    everything = {each: reader.entries(each) for each in {n for p in pieces for n in p}}
    for at, piece in enumerate(pieces):
        records = {n: _part(everything[n], *bounds) for n, bounds in piece.items()}
        sink.write(Records(records))
        sink.flush()
        state.sent.update({each: stop for each, (_, stop) in piece.items()})
        state.save()
        if progress is not None:
            progress(at + 1, len(pieces))


def _part(entries: Entries, start: int, stop: int) -> Entries:
    """Return some entries; those without steps are numbered."""
    steps = {axis: own[start:stop] for axis, own in entries.steps.items()}
    mask = None if entries.mask is None else entries.mask[start:stop]
    return Entries(
        np.asarray(entries.values[start:stop]),
        steps or {"entry": np.arange(start, stop)},
        mask,
        entries.attrs,
    )


def _open_sink(
    arguments: Sync, name: str, config: dict[str, Any], store: str, state: SyncState
) -> Sink:
    """Open the run of the tracker, or continue it."""
    project = str(arguments.project)
    if arguments.to == "tensorboard":
        assert arguments.out is not None
        return TensorBoardSink(arguments.out / name, config={} if state.sent else config)
    if arguments.to == "mlflow":
        sink = MLflowSink(project, name=name, config=config, run_id=state.run_id)
        state.run_id = sink.run_id
        state.save()
        return sink
    if arguments.to == "trackio":
        return TrackioSink(project, name, config=config, resume="allow")
    return WandbSink(project, name, config=config, id=store[:32], resume="allow")
