"""``sawlog repair``: set damaged files of a store aside, with ``--yes``."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from tyro.conf import arg

import sawlog.store
from sawlog._format import count
from sawlog._text import printable
from sawlog.cli._arguments import Json, Store
from sawlog.cli._exit_codes import BAD, OK
from sawlog.cli._folders import one_store
from sawlog.cli._output import CommandOutput
from sawlog.cli._verify import show_problems, show_report
from sawlog.store import Problem

_ANNOUNCED = (
    "Nothing was changed. With --yes, the damaged files of this list are moved to the folder "
    "damaged/ of the store, and these and the missing files are no longer part of it."
)


@dataclasses.dataclass(frozen=True)
class Repair:
    """Set damaged files aside, so that the rest of a store can be used.

    Damaged files are moved to the folder damaged/ of the store. Without --yes nothing is changed:
    the command lists what would be set aside, and exits with 2.

    examples:
      sawlog repair runs/seed-0
      sawlog repair runs/seed-0 --yes
    """

    path: Store
    yes: Annotated[bool, arg(help="Repair the store.", help_behavior_hint="")] = False
    json: Json = False


def run(arguments: Repair, output: CommandOutput) -> int:
    """Run ``sawlog repair``."""
    arguments = dataclasses.replace(arguments, path=one_store(arguments.path))
    return _repair(arguments, output) if arguments.yes else _announce(arguments, output)


def _repair(arguments: Repair, output: CommandOutput) -> int:
    with output.progress(f"repairing {arguments.path.name}"):
        given_up = sawlog.store.repair(arguments.path)
    if arguments.json:
        output.print_json(_to_json(arguments, True, given_up))
    elif given_up:
        lost = count(len(given_up), "file")
        output.print(f"{printable(str(arguments.path))}: repaired; set aside or missing: {lost}")
        show_problems(given_up, output)
    else:
        output.print(_nothing(arguments))
    return OK


def _announce(arguments: Repair, output: CommandOutput) -> int:
    with output.progress(f"verifying {arguments.path.name}") as progress:
        found = sawlog.store.verify(arguments.path, progress)
    if arguments.json:
        output.print_json(_to_json(arguments, False, found.problems))
    elif found.problems:
        show_report(found, output)
        output.print("", _ANNOUNCED)
    else:
        output.print(_nothing(arguments))
    return BAD if found.problems else OK


def _to_json(arguments: Repair, done: bool, problems: list[Problem]) -> dict[str, Any]:
    listed = [dataclasses.asdict(problem) for problem in problems]
    return {"path": str(arguments.path), "repaired": done, "given_up": listed}


def _nothing(arguments: Repair) -> str:
    return f"{printable(str(arguments.path))}: nothing is damaged"
