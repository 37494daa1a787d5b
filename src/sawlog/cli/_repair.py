"""``sawlog repair``: give up what is damaged, once somebody said ``--yes``."""

from __future__ import annotations

import dataclasses
from typing import Any

import sawlog.store
from sawlog.cli._commands import Repair
from sawlog.cli._format import count, plain
from sawlog.cli._outcome import BAD, OK
from sawlog.cli._screen import Screen
from sawlog.cli._verify import show_problems, show_report
from sawlog.store import Problem

_ANNOUNCED = (
    "Nothing was changed. With --yes, the damaged files of this list are moved to the folder "
    "damaged/ of the store, and they and the missing ones no longer count."
)


def run(arguments: Repair, screen: Screen) -> int:
    """Carry out ``sawlog repair``."""
    return _repair(arguments, screen) if arguments.yes else _announce(arguments, screen)


def _repair(arguments: Repair, screen: Screen) -> int:
    with screen.progress(f"repairing {arguments.path.name}"):
        given_up = sawlog.store.repair(arguments.path)
    if arguments.json:
        screen.print_json(_to_json(arguments, True, given_up))
    elif given_up:
        screen.print(f"{plain(str(arguments.path))}: gave up {count(len(given_up), 'file')}")
        show_problems(given_up, screen)
    else:
        screen.print(_nothing(arguments))
    return OK


def _announce(arguments: Repair, screen: Screen) -> int:
    with screen.progress(f"verifying {arguments.path.name}") as progress:
        found = sawlog.store.verify(arguments.path, progress)
    if arguments.json:
        screen.print_json(_to_json(arguments, False, found.problems))
    elif found.problems:
        show_report(found, screen)
        screen.print("", _ANNOUNCED)
    else:
        screen.print(_nothing(arguments))
    return BAD if found.problems else OK


def _to_json(arguments: Repair, done: bool, problems: list[Problem]) -> dict[str, Any]:
    listed = [dataclasses.asdict(problem) for problem in problems]
    return {"path": str(arguments.path), "repaired": done, "given_up": listed}


def _nothing(arguments: Repair) -> str:
    return f"{plain(str(arguments.path))}: nothing is damaged"
