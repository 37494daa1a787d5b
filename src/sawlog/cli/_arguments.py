"""Types of arguments that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from tyro.conf import Positional, arg

from sawlog.errors import ArgumentError

Json: TypeAlias = Annotated[
    bool,
    arg(help="Print JSON, and nothing else, on standard output.", help_behavior_hint=""),
]
Store: TypeAlias = Positional[Annotated[Path, arg(metavar="PATH", help="The folder of the store.")]]
Stores: TypeAlias = Positional[
    Annotated[tuple[Path, ...], arg(metavar="PATH [PATH ...]", help="The folders of the stores.")]
]


def given_paths(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the paths, after checking that there is one.

    Raises:
        ArgumentError: no path was given.
    """
    if not paths:
        raise ArgumentError("No store was given. Hint: sawlog ls FOLDER lists the stores there.")
    return paths
