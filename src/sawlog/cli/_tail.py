"""``sawlog tail``: the last logged values of a run, and those that are logged from now on."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

import sawlog.store
from sawlog._format import number, step
from sawlog._text import printable_name
from sawlog._validate import integer
from sawlog.cli._arguments import Json, NamesAgain, PositionalNames
from sawlog.cli._exit_codes import OK
from sawlog.cli._folders import one_store
from sawlog.cli._output import CommandOutput
from sawlog.errors import StoreNotFoundError
from sawlog.inspect import writer_activity
from sawlog.inspect._curves import drawable_entries, has_curve
from sawlog.inspect._patterns import matching_names
from sawlog.inspect._run_summary import is_capture_run
from sawlog.inspect._values import jsonable
from sawlog.store import Reader

_EVERY = 0.5  # seconds between two readings

Line = tuple[dict[str, float], dict[str, float]]  # steps by axis, values by name


@dataclasses.dataclass(frozen=True)
class Tail:
    """Print the last logged values of a run; with --follow, new ones too.

    --follow ends with the run, or with Ctrl-C.

    examples:
      sawlog tail runs/seed-0 -n 5
      sawlog tail runs/seed-0 loss 'eval/*' --follow
    """

    path: Positional[Annotated[Path, arg(metavar="RUN", help="The folder of a run or store.")]]
    names: PositionalNames = ()
    more_names: NamesAgain = ()
    lines: Annotated[int, arg(aliases=["-n"], help="How many steps to print first.")] = 10
    follow: Annotated[
        bool,
        arg(aliases=["-f"], help="Print what is logged from now on.", help_behavior_hint=""),
    ] = False
    json: Json = False


def run(arguments: Tail, output: CommandOutput) -> int:
    """Run ``sawlog tail``."""
    integer("--lines", arguments.lines, least=0)
    path = arguments.path / "metrics" if is_capture_run(arguments.path) else arguments.path
    if not path.is_dir():
        raise StoreNotFoundError(
            f"There is no run with logs of steps at {arguments.path}. Hint: sawlog ls FOLDER lists "
            "the stores under a folder."
        )
    names = arguments.names + arguments.more_names
    path = one_store(path)
    with sawlog.store.open(path) as reader:
        seen: dict[str, int] = {}
        lines = list(_new_lines(reader, names, seen, arguments.lines))
        for each in lines[len(lines) - arguments.lines :] if arguments.lines else []:
            _print(each, arguments.json, output)
        while arguments.follow:
            open_ = writer_activity(path).state == "writing"
            reader.refresh()  # after the state: what a writer published before it closed is read
            for each in _new_lines(reader, names, seen, None):
                _print(each, arguments.json, output)
            if not open_:
                output.remark(f"the run is {writer_activity(path).state}")
                break
            time.sleep(_EVERY)
    return OK


def _new_lines(
    reader: Reader, patterns: tuple[str, ...], seen: dict[str, int], most: int | None
) -> Iterator[Line]:
    """Yield what was logged since ``seen``, in order of the steps.

    What names logged at one step is one line; if a name has several entries there, it has several
    lines. ``most`` bounds how many entries of each name are read.
    """
    numbers = {s.column.name: s for s in reader.schema.series if has_curve(reader, s)}
    names = (
        matching_names(numbers, patterns, "This run has no curve of the name")
        if patterns and numbers
        else [*numbers]
    )
    found: dict[tuple[tuple[tuple[str, float], ...], int], Line] = {}
    for name in names:
        entries = drawable_entries(reader, numbers[name])
        times: Counter[tuple[tuple[str, float], ...]] = Counter()
        start = seen.get(name, 0)
        logged = np.ones(len(entries), bool) if entries.mask is None else np.asarray(entries.mask)
        places = start + np.flatnonzero(logged[start:])
        seen[name] = len(entries)
        for i in places if most is None else places[max(0, len(places) - most) :]:
            steps = {axis: _plain(own[i]) for axis, own in entries.steps.items()}
            key = tuple(steps.items()) or (("entry", float(i)),)
            line = found.setdefault((key, times[key]), (dict(key), {}))
            line[1][name] = _plain(entries.values[i])
            times[key] += 1
    for at in sorted(found, key=lambda at: ([value for _, value in at[0]], at[1])):
        yield found[at]


def _plain(value: Any) -> float:
    kept = np.asarray(value)
    return int(kept) if kept.dtype.kind in "biu" else float(kept)


def _print(line: Line, as_json: bool, output: CommandOutput) -> None:
    steps, values = line
    if as_json:
        print(json.dumps(jsonable({"steps": steps, "values": values}), allow_nan=False))
        sys.stdout.flush()
        return
    head = "  ".join(f"{printable_name(axis)} {step(value)}" for axis, value in steps.items())
    body = "  ".join(f"{printable_name(name)} {number(value)}" for name, value in values.items())
    output.print(f"{head}  {body}")
