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
Overwrite: TypeAlias = Annotated[bool, arg(help="Replace what exists.", help_behavior_hint="")]
Names: TypeAlias = Annotated[
    tuple[str, ...],
    arg(
        metavar="NAME [NAME ...]",
        help="Only these names, or those that match a pattern such as 'eval/*'.",
        help_behavior_hint="(default: all)",
    ),
]
PositionalNames: TypeAlias = Positional[
    Annotated[
        tuple[str, ...],
        arg(
            metavar="[NAME ...]",
            help="Only these names, or those that match a pattern such as 'eval/*'.",
            help_behavior_hint="(default: all)",
        ),
    ]
]
NamesAgain: TypeAlias = Annotated[
    tuple[str, ...],
    arg(
        name="names",
        metavar="NAME [NAME ...]",
        help="The same, as the option that other commands have.",
        help_behavior_hint="",
    ),
]
Queries: TypeAlias = Annotated[
    tuple[str, ...],
    arg(metavar="ID [ID ...]", help="Only these queries.", help_behavior_hint="(default: all)"),
]
Runs: TypeAlias = Positional[
    Annotated[
        tuple[Path, ...],
        arg(
            metavar="RUN [RUN ...]",
            help="Runs, stores, or folders that have some in them.",
            help_behavior_hint="(required)",
        ),
    ]
]
Store: TypeAlias = Positional[Annotated[Path, arg(metavar="PATH", help="The folder of the store.")]]
Stores: TypeAlias = Positional[
    Annotated[
        tuple[Path, ...],
        arg(
            metavar="PATH [PATH ...]",
            help="The folders of the stores.",
            help_behavior_hint="(required)",
        ),
    ]
]


def given_paths(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the paths, after checking that there is one.

    Raises:
        ArgumentError: no path was given.
    """
    if not paths:
        raise ArgumentError("No store was given. Hint: sawlog ls FOLDER lists the stores there.")
    return paths
