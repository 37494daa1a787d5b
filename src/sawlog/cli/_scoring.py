"""What the commands that score examples have in common: arguments, and cells of tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

import numpy as np
from rich.text import Text
from tyro.conf import Positional, arg

from sawlog import store
from sawlog._format import number, short
from sawlog._text import printable
from sawlog._validate import byte_size, non_negative_number
from sawlog.cli._output import CommandOutput
from sawlog.cli._texts import texts_of
from sawlog.curvature import KINDS, Damping, FullMatrix, Kronecker, Relative, Typical
from sawlog.errors import ArgumentError, UnknownIdError
from sawlog.example_data import load_examples
from sawlog.influence import Logs
from sawlog.influence._logs import BUDGET
from sawlog.inspect._patterns import matching_names

_MOST_TEXT = 120  # characters

# -- arguments ------------------------------------------------------------------------------------

if TYPE_CHECKING:
    CurvatureKind = str
else:
    CurvatureKind = Literal[tuple(KINDS)]

_FACTORED, _DENSE = Kronecker.damping, FullMatrix.damping
_DAMPING = (
    "The number that is added to the eigenvalues of the curvature. By default it is a share of "
    "their mean, plus k / n times the eigenvalue that gradients typically meet, where n is the "
    f"number of examples: share {_FACTORED.share:g} and k = {_FACTORED.noise:g}, for fisher "
    f"share {_DENSE.share:g} and k = {_DENSE.noise:g}. identity has no damping."
)

Train: TypeAlias = Positional[
    Annotated[Path, arg(metavar="TRAIN", help="The folder of a run, or of a store of its rows.")]
]
CurvatureOption: TypeAlias = Annotated[
    CurvatureKind,
    arg(help="The curvature that preconditions gradients; it is kept with the run and reused."),
]
DampingOption: TypeAlias = Annotated[
    float | None, arg(metavar="X", help=_DAMPING, help_behavior_hint="")
]
RelativeOption: TypeAlias = Annotated[
    float | None,
    arg(
        metavar="SHARE",
        help="Damping as a share of the mean eigenvalue of each layer.",
        help_behavior_hint="",
    ),
]
TypicalOption: TypeAlias = Annotated[
    float | None,
    arg(
        metavar="SHARE",
        help="Damping as a share of the eigenvalue that gradients typically meet in each layer.",
        help_behavior_hint="",
    ),
]
LayersOption: TypeAlias = Annotated[
    tuple[str, ...],
    arg(
        metavar="LAYER [LAYER ...]",
        help="Only these layers, or those that match a pattern such as 'encoder.*'.",
        help_behavior_hint="(default: all)",
    ),
]
BudgetOption: TypeAlias = Annotated[
    str | None,
    arg(
        metavar="BYTES",
        help="Approximate memory to use, such as 2GB; each worker uses as much.",
        help_behavior_hint=f"(default: {BUDGET >> 20}MiB)",
    ),
]
TextOption: TypeAlias = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help="The texts of the examples, to show with them: JSON lines, CSV or Parquet with a "
        "field text, and a field id unless ids are line numbers from 0 on; or one text a line. "
        "Without it, the examples are shown as sawlog describe stored them.",
        help_behavior_hint="",
    ),
]
WeightsOption: TypeAlias = Annotated[
    Literal["same", "any"],
    arg(help="same: refuse rows of different weights of the model; any: compare them."),
]
NonfiniteOption: TypeAlias = Annotated[
    Literal["error", "keep"],
    arg(help="error: refuse infinite and NaN scores; keep: rank them last."),
]


class ScoringArguments(Protocol):
    """The arguments of all commands that score examples."""

    @property
    def damping(self) -> float | None:
        """``--damping``."""

    @property
    def relative(self) -> float | None:
        """``--relative``."""

    @property
    def typical(self) -> float | None:
        """``--typical``."""

    @property
    def budget(self) -> str | None:
        """``--budget``."""


def damping_of(arguments: ScoringArguments) -> Damping:
    """Return the damping of ``--damping``, ``--relative`` or ``--typical``.

    Raises:
        ArgumentError: more than one of them is given, or one is negative or not finite.
    """
    options = {
        "--damping": arguments.damping,
        "--relative": arguments.relative,
        "--typical": arguments.typical,
    }
    given = [option for option, value in options.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} exclude each other. Hint: give one of them.")
    for option in given:
        non_negative_number(option, options[option])
    if arguments.relative is not None:
        return Relative(arguments.relative)
    return arguments.damping if arguments.typical is None else Typical(arguments.typical)


def budget_of(arguments: ScoringArguments) -> int:
    """Return the memory to use, in bytes."""
    return BUDGET if arguments.budget is None else byte_size("--budget", arguments.budget)


# -- rows -----------------------------------------------------------------------------------------


def open_logs(path: Path) -> Logs:
    """Open the rows of a store."""
    return Logs(store.open(path))


def matching_layers(logs: Logs, patterns: tuple[str, ...]) -> list[str] | None:
    """Return the layers that match any of the patterns; None, which is all, without patterns."""
    lacks = f"{logs.path} has no layer of the name"
    return matching_names(logs.layers, patterns, lacks) if patterns else None


def with_ids(logs: Logs, typed: tuple[str, ...]) -> Logs:
    """Return the logs of the examples with the ids that were typed; without any, all logs.

    Raises:
        UnknownIdError: an id is not in the logs.
        ArgumentError: ids of the logs are integers, and something else was typed.
    """
    if not typed:
        return logs
    ids = _parsed_ids(logs, typed)
    known = set(logs.ids.tolist() if isinstance(logs.ids, np.ndarray) else logs.ids)
    unknown = [each for each in ids if each not in known]
    if unknown:
        raise UnknownIdError(
            f"--query: {logs.path} has no example {', '.join(map(repr, unknown[:5]))}. "
            f"Hint: sawlog show {logs.path} shows some of its ids."
        )
    return logs.of(logs.gather(ids))


def _parsed_ids(logs: Logs, typed: tuple[str, ...]) -> list[Any]:
    unique = list(dict.fromkeys(typed))
    if not isinstance(logs.ids, np.ndarray):
        return unique
    try:
        return [int(each) for each in unique]
    except ValueError:
        raise ArgumentError(
            f"--query {' '.join(unique)}: the ids in {logs.path} are integers. Hint: sawlog show "
            f"{logs.path} shows some of them."
        ) from None


# -- cells ----------------------------------------------------------------------------------------


def texts(
    path: Path | None, ids: Iterable[Any], output: CommandOutput, train: str | None
) -> dict[str, str]:
    """Return the texts of examples: those of a file, or else what the run says about them.

    Remarks how many are missing in the file. ``train`` is the path of the store of rows.
    """
    if path is None:
        return {} if train is None else _described(Path(train), ids)
    wanted = {str(each) for each in ids}
    found = texts_of(path, wanted)
    missing = len(wanted) - len(found)
    if missing:
        output.remark(f"note: {path} has no text of {missing} of the {len(wanted)} examples")
    return found


def _described(rows: Path, ids: Iterable[Any]) -> dict[str, str]:
    data = load_examples(rows.parent.parent)
    if data is None:
        return {}
    return {str(each): example.line for each, example in data.get(ids).items()}


def text_cell(text: str) -> str:
    """Return a text in one line, cut off if it is long."""
    return short(printable(" ".join(text.split())), _MOST_TEXT)


def score_cell(value: float, coloured: bool = True) -> Text:
    """Return a score, green if it is positive and red if it is negative."""
    style = "" if not coloured or not value else "green" if value > 0 else "red"
    return Text(number(value), style)
