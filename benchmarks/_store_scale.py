"""How opening, compacting and showing a store grow: with segments, with flushes, with names.

Times here are seconds, and the marks bound them, or bound how much more one segment or name costs
in the largest store than in one of a thousandth.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _timing import Row, seconds_of

import sawlog.store
from sawlog.cli import main
from sawlog.store._format import _chunks, _header, _segment_writer
from sawlog.store._format._layout import Folder, identity_of

NAMES = ("open", "show", "compact")
WRITER = "bench"


def scattered(path: Path, count: int) -> Path:
    """A store of so many small segments that nobody merged, written without waiting for a disk."""
    shutil.rmtree(path, ignore_errors=True)
    with sawlog.store.create(path) as writer:
        writer.append([0], {"row": np.zeros((1, 4), np.float32)})
        writer.log({"loss": 0.0}, step=0)
    identity = identity_of(Folder(path))
    table, series = {"table": ["row"], "ids": "int"}, {"series": "loss", "steps": ["step"]}
    for number in range(1, count):
        description = {
            "version": _header.PLAIN,
            "store": identity.id,
            "writer": WRITER,
            "sequence": number,
            "order": [10 + number, WRITER, number],
            "chunks": [{**table, "rows": 1}, {**series, "rows": 1}],
        }
        tensors = {
            "row": np.full((1, 4), number, np.float32),
            _chunks.ids_name(["row"]): np.array([number]),
            "loss": np.array([float(number)]),
            _chunks.step_name("step", "loss"): np.array([number]),
        }
        made = _segment_writer.prepare(description, tensors)
        file = path / "segments" / _header.file_name(WRITER, number)
        file.write_bytes(b"".join([made.header, *made.pieces, made.checksums]))
    return path


def flushed(path: Path, count: int) -> Path:
    """A store of one writer that flushed so many times."""
    shutil.rmtree(path, ignore_errors=True)
    with sawlog.store.create(path, interval=None) as writer:
        for number in range(count):
            writer.append([number], {"row": np.full((1, 4), number, np.float32)})
            writer.log({"loss": float(number)}, step=number)
            writer.flush()
    return path


def show(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["show", str(path)]) == 0


def _seconds(path: Path, rounds: int) -> dict[str, float]:
    """The best of some rounds; a store can be compacted once."""
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: sawlog.store.open(path).close(),
        "show": lambda: show(path),
    }
    found = {name: min(seconds_of(call) for _ in range(rounds)) for name, call in calls.items()}
    rows = sawlog.store.open(path).count("row")
    found["compact"] = seconds_of(lambda: sawlog.store.compact(path))
    assert sawlog.store.open(path).count("row") == rows
    return found


def _row(what: str, who: str, seconds: float, limit: float | None) -> Row:
    return Row(what, who, seconds, seconds, seconds, seconds, limit)


def segments(folder: Path, quick: bool) -> list[Row]:
    """Segments that nobody merged: what they cost is near linear."""
    counts, rows = (10, 100, 1000, 5000 if quick else 20_000), []
    times = {n: _seconds(scattered(folder / "scattered", n), 3 if n < 5000 else 1) for n in counts}
    for name in NAMES:
        for count in counts:
            seconds = times[count][name]
            limit = 10.0 if (name, count) == ("compact", 20_000) else None
            rows.append(_row(name, f"{count:,} segments, s", seconds, limit))
        more = times[counts[-1]][name] / times[1000][name] / (counts[-1] / 1000)
        rows.append(_row(name, f"a segment of {counts[-1]:,} / of 1,000", more, 2.0))
    return rows


def flushes(folder: Path, quick: bool) -> list[Row]:
    """A program that flushes often: its writer merges as it goes."""
    count = 1000 if quick else 10_000
    path = flushed(folder / "flushed", count)
    there = len(sawlog.store.open(path).segments)
    limits = {"open": 0.3, "show": 2.0, "compact": 10.0}
    return [
        _row(name, f"{count:,} flushes ({there} segments), s", seconds, limits[name])
        for name, seconds in _seconds(path, 3).items()
    ]


def names(folder: Path, quick: bool) -> list[Row]:
    """Many names: the first log of all of them, and opening the store.

    Each store is opened once, like a user's: small headers that the process has read before are
    not parsed again, so a second time says nothing about how opening grows.
    """
    rows, path = [], folder / "names"
    counts = (10, 100, 1000, 10_000 if quick else 100_000)
    times: dict[str, dict[int, float]] = {"first log": {}, "open": {}}
    for count in counts:
        values = {f"layer/{number}": 0.5 for number in range(count)}
        logged, opened = [], []
        for _ in range(3):
            shutil.rmtree(path, ignore_errors=True)
            with sawlog.store.create(path, interval=None) as writer:
                logged.append(seconds_of(lambda w=writer, v=values: w.log(v, step=0)))
            opened.append(seconds_of(lambda: sawlog.store.open(path).close()))
        times["first log"][count], times["open"][count] = min(logged), min(opened)
    for what, found in times.items():
        for count, seconds in found.items():
            limit = 2.0 if count == 100_000 else None
            rows.append(_row(what, f"{count:,} names, s", seconds, limit))
        more = found[counts[-1]] / found[1000] / (counts[-1] / 1000)
        rows.append(_row(what, f"a name of {counts[-1]:,} / of 1,000", more, 2.0))
    return rows


def one_by_one(folder: Path, quick: bool) -> list[Row]:
    """Names that are declared one after the other."""
    path, count = folder / "one-by-one", 500 if quick else 2000
    shutil.rmtree(path, ignore_errors=True)
    with sawlog.store.create(path, interval=None) as writer:

        def more(start: int) -> None:
            for number in range(start, start + count // 2):
                writer.log({f"name/{number}": 0.5}, step=0)

        first = seconds_of(lambda: more(0))
        second = seconds_of(lambda: more(count // 2))
    who = f"the second {count // 2} / the first"
    return [Row("a new name", who, second / first, second / first, second / first, second, 2.0)]


def scale(folder: Path, quick: bool) -> list[Row]:
    """All of it."""
    parts = (segments, flushes, names, one_by_one)
    return [row for part in parts for row in part(folder, quick)]
