"""What the commands that score examples have in common: options, and cells of tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from sawlog.cli._commands import Attribute, SelfInfluence
from sawlog.cli._format import bytes_of, number, plain, short
from sawlog.cli._screen import Screen
from sawlog.cli._texts import texts_of
from sawlog.curvature import Damping, Relative, Typical
from sawlog.errors import ArgumentError
from sawlog.influence._logs import BUDGET

_MOST_TEXT = 120  # characters


def damping_of(arguments: Attribute | SelfInfluence) -> Damping:
    """What was asked for, in one of three ways.

    Raises:
        ArgumentError: in several.
    """
    asked = {
        "--damping": arguments.damping,
        "--relative": arguments.relative,
        "--typical": arguments.typical,
    }
    given = [option for option, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} say the same in two ways. Hint: give one.")
    if arguments.relative is not None:
        return Relative(arguments.relative)
    return arguments.damping if arguments.typical is None else Typical(arguments.typical)


def budget_of(arguments: Attribute | SelfInfluence) -> int:
    """How many bytes of memory to use."""
    return BUDGET if arguments.budget is None else bytes_of(arguments.budget, "--budget")


def check_top(top: int) -> None:
    """Raise an ArgumentError for what is no number of examples."""
    if top < 0:
        raise ArgumentError(f"--top is at least 0, not {top}")


def texts(path: Path | None, ids: Iterable[Any], screen: Screen) -> dict[str, str]:
    """The texts of examples, if there is a file of them; says how many are not in it."""
    if path is None:
        return {}
    wanted = {str(each) for each in ids}
    found = texts_of(path, wanted)
    lacking = len(wanted) - len(found)
    if lacking:
        screen.remark(f"note: {path} has no text of {lacking} of the {len(wanted)} examples")
    return found


def text_cell(text: str) -> str:
    """A text in one line, cut where it is long."""
    return short(plain(" ".join(text.split())), _MOST_TEXT)


def score_cell(value: float, coloured: bool = True) -> Text:
    """A score, green if it helps and red if it hurts."""
    style = "" if not coloured or not value else "green" if value > 0 else "red"
    return Text(number(value), style)
