"""Ratios between ways of doing the same thing, measured side by side in one run.

The machines are noisy, so single times mean little: every round runs each contestant once, in
turn and in the other order every second time, and the figure is the median over rounds of the ratio
to the first one in the same round.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

_NAMED = (  # packages whose versions a result names
    *("jax", "torch", "numpy", "transformers", "wandb", "mlflow", "tensorboard", "trackio"),
    *("neptune", "h5py", "lance", "zarr", "pyarrow", "logix", "kronfluence", "bergson", "dattri"),
    *("dattri_llm", "trak", "lox", "dask"),
)


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way of doing it: a name and something to call."""

    name: str
    call: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured ratio: what, who, the median ratio, its spread, the mark it must not pass."""

    what: str
    who: str
    ratio: float
    low: float
    high: float
    seconds: float
    limit: float | None = None
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the mark is met; None where there is none."""
        if self.limit is None:
            return None
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


def seconds_of(call: Callable[[], Any], repeat: int = 1) -> float:
    """Wall time of one call, averaged over ``repeat`` calls in a row."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def compare(
    what: str,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    repeat: int = 1,
    limits: dict[str, float] | None = None,
    speed: bool = False,
    pause: float = 0.0,
) -> list[Row]:
    """Rows for every contestant but the first, as ratios to the first.

    Ratios of times, which marks bound from above; with ``speed`` of speeds, bounded from below. A
    ``pause`` before each call lets threads of the call before go to sleep: those of a matrix
    product keep a core busy for some time after it.
    """
    times: dict[str, list[float]] = {c.name: [] for c in contestants}
    for turn in track(range(rounds), description=what, transient=True):
        for contestant in contestants if turn % 2 else contestants[::-1]:
            time.sleep(pause)
            times[contestant.name].append(seconds_of(contestant.call, repeat))
    base = times[contestants[0].name]
    rows = []
    for contestant in contestants[1:]:
        own = times[contestant.name]
        pairs = zip(own, base, strict=True)
        ratios = sorted(b / a if speed else a / b for a, b in pairs)
        rows.append(
            Row(
                what,
                f"{contestant.name} / {contestants[0].name}",
                statistics.median(ratios),
                ratios[len(ratios) // 10],
                ratios[-1 - len(ratios) // 10],
                statistics.median(own),
                (limits or {}).get(contestant.name),
                speed,
            )
        )
    return rows


def report(rows: Sequence[Row], title: str, save: Path | None = None) -> bool:
    """Print the table; whether every mark is met."""
    table = Table(title=title)
    for name in ("what", "who", "ratio", "10-90 %", "time", "mark", ""):
        table.add_column(name, justify="right" if name in ("ratio", "time", "mark") else "left")
    for row in rows:
        sign = ">=" if row.at_least else "<="
        mark = "" if row.limit is None else f"{sign} {row.limit:g}"
        verdict = {None: "", True: "[green]holds[/]", False: "[red]missed[/]"}[row.holds]
        spread = f"{row.low:.2f}-{row.high:.2f}"
        table.add_row(
            row.what, row.who, f"{row.ratio:.3f}", spread, _time(row.seconds), mark, verdict
        )
    Console(width=130).print(table)
    if save is not None:
        save_result(save, rows)
    return all(row.holds is not False for row in rows)


def save_result(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with the command, the versions and the load, as ``tools.benchmark_page`` reads.

    Only packages that were imported are named: they are those that were measured.
    """
    names = {each.partition(".")[0] for each in sys.modules}
    found = importlib.metadata.packages_distributions()
    packages = {found[name][0] for name in _NAMED if name in names and name in found}
    versions = {name: importlib.metadata.version(name) for name in sorted(packages)}
    command = " ".join(["python", *_without_save(sys.argv)])
    result = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} in the last 5 minutes",
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def _without_save(args: Sequence[str]) -> list[str]:
    kept = [Path(args[0]).parent.name + "/" + Path(args[0]).name if args else "", *args[1:]]
    for at, each in enumerate(kept):
        if each == "--save":
            return kept[:at] + kept[at + 2 :]
    return kept


def _time(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
