"""``sawlog plot``: curves of runs in the terminal, or as a PNG or SVG file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import arg

from sawlog import _figures
from sawlog._optional import require
from sawlog._table import folded
from sawlog._text import printable
from sawlog.cli._arguments import Json, Overwrite, Runs
from sawlog.cli._braille import draw
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.cli._run_paths import given_runs
from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.inspect import Curve, run_summary, series_curves
from sawlog.inspect._patterns import matching_names

_SUFFIXES = (".png", ".svg", ".pdf")
_MOST = 6  # names that are drawn unless some are chosen
_POINTS = 1000


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw curves of runs in the terminal, or as a PNG or SVG file.

    examples:
      sawlog plot runs/seed-0
      sawlog plot runs --names loss 'eval/*' --log -o curves.svg
    """

    runs: Runs
    names: Annotated[
        tuple[str, ...],
        arg(
            metavar="NAME [NAME ...]",
            help="The names to draw, or patterns such as 'eval/*'.",
            help_behavior_hint=f"(default: the first {_MOST})",
        ),
    ] = ()
    axis: Annotated[
        str | None,
        arg(
            metavar="AXIS",
            help="The step axis.",
            help_behavior_hint="(default: the first of each name)",
        ),
    ] = None
    log: Annotated[bool, arg(help="Draw values on a log scale.", help_behavior_hint="")] = False
    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="FILE",
            help="Write a .png, .svg or .pdf file instead.",
            help_behavior_hint="",
        ),
    ] = None
    overwrite: Overwrite = False
    json: Json = False


Curves = dict[str, dict[str, Curve]]  # by name, then by run


def run(arguments: Plot, output: CommandOutput) -> int:
    """Run ``sawlog plot``."""
    _check_out(arguments)
    curves, left_out = _curves(arguments)
    if arguments.out is not None:
        _write(curves, arguments)
    if arguments.json:
        output.print_json(
            {
                name: {label: _to_json(curve) for label, curve in own.items()}
                for name, own in curves.items()
            }
        )
        return OK
    if arguments.out is None:
        for name, own in curves.items():
            output.print(draw(name, own, output.width, arguments.log, output.unicode), "")
    else:
        output.print(folded(f"wrote {printable(str(arguments.out))}"))
    if left_out:
        output.remark(f"note: {left_out} more names; --names chooses")
    return OK


def _check_out(arguments: Plot) -> None:
    if arguments.out is None:
        return
    if arguments.out.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"-o must be a .png, .svg or .pdf file; got {str(arguments.out)!r}.")
    if arguments.out.exists() and not arguments.overwrite:
        raise StoreExistsError(f"{arguments.out} exists. Hint: --overwrite replaces it.")
    require("matplotlib", "plot", "sawlog plot -o")


def _curves(arguments: Plot) -> tuple[Curves, int]:
    found: Curves = {}
    for label, path in given_runs(arguments.runs).items():
        place = run_summary(path).series_path
        for series in [] if place is None else series_curves(place, points=_POINTS):
            own = [c for c in series.curves if arguments.axis in (None, c.axis) and c.entries]
            if own:
                found.setdefault(series.name, {})[label] = own[0]
    if not found:
        hint = "" if arguments.axis is None else f" over {arguments.axis!r}"
        raise ArgumentError(f"These runs have no numbers{hint} to draw. Hint: sawlog show RUN.")
    names = list(found)[:_MOST]
    if arguments.names:
        names = matching_names(found, arguments.names, "These runs have no curve of the name")
        return {name: found[name] for name in names}, 0
    return {name: found[name] for name in names}, len(found) - len(names)


def _to_json(curve: Curve) -> dict[str, Any]:
    return {
        "axis": curve.axis,
        "entries": curve.entries,
        "steps": curve.steps.tolist(),
        "mean": curve.mean.tolist(),
        "min": curve.least.tolist(),
        "max": curve.greatest.tolist(),
    }


def _write(curves: Curves, arguments: Plot) -> None:
    across = min(3, len(curves))
    down = -(-len(curves) // across)
    figure = _figures.new_figure(4.6 * across, 3.2 * down, "sawlog plot -o")
    plots = np.atleast_1d(figure.subplots(down, across, squeeze=False)).reshape(-1)
    for axes, (name, own) in zip(plots, curves.items(), strict=False):
        for label, curve in own.items():
            (line,) = axes.plot(curve.steps, curve.mean, linewidth=1.4, label=_figures.label(label))
            if curve.thinned:
                shade = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
                axes.fill_between(curve.steps, curve.least, curve.greatest, **shade)
        axes.set_title(_figures.label(name), fontsize=10)
        axes.set_xlabel(_figures.label(next(iter(own.values())).axis or "entry"), fontsize=9)
        axes.grid(alpha=0.25)
        if arguments.log:
            axes.set_yscale("log")
        if 1 < len(own) <= 10:
            axes.legend(fontsize=7)
    for axes in plots[len(curves) :]:
        axes.set_axis_off()
    assert arguments.out is not None
    _figures.save(figure, arguments.out, dpi=150)
