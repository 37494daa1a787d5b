"""``sawlog describe``: store what the examples of a run look like."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from sawlog._format import count
from sawlog._table import folded
from sawlog._text import printable
from sawlog.cli._arguments import Json
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.errors import ArgumentError
from sawlog.example_data import check_described, describe
from sawlog.inspect._run_summary import is_capture_run


@dataclasses.dataclass(frozen=True)
class Describe:
    """Store what the examples of a run look like, so that tables and pages can show them.

    examples:
      sawlog describe sawlog/mnist train.jsonl
      sawlog describe sawlog/faces images/ --ids position
    """

    path: Positional[Annotated[Path, arg(metavar="RUN", help="The folder of the run.")]]
    data: Positional[
        Annotated[
            Path,
            arg(metavar="FILE", help="JSON lines, CSV, Parquet, text, or a folder of images."),
        ]
    ]
    ids: Annotated[
        str | None,
        arg(
            metavar="COLUMN",
            help="The column of ids, or position to count from 0.",
            help_behavior_hint="(default: id, or else position)",
        ),
    ] = None
    text: Annotated[
        str | None, arg(metavar="COLUMN", help="The column of texts.", help_behavior_hint="")
    ] = None
    image: Annotated[
        str | None, arg(metavar="COLUMN", help="The column of images.", help_behavior_hint="")
    ] = None
    json: Json = False


def run(arguments: Describe, output: CommandOutput) -> int:
    """Run ``sawlog describe``."""
    if not is_capture_run(arguments.path):
        raise ArgumentError(
            f"{arguments.path} is not the folder of a run with examples, as sawlog.init makes it. "
            "Hint: sawlog ls FOLDER lists the stores under a folder; a run has its rows in logs/."
        )
    described = describe(
        arguments.path, arguments.data, arguments.ids, text=arguments.text, image=arguments.image
    )
    if not described:
        raise ArgumentError(
            f"{arguments.data} has no examples. Hint: a file with a line or row for each example."
        )
    check_described(arguments.path)
    if arguments.json:
        output.print_json({"path": str(arguments.path), "examples": described})
    else:
        said = f"{count(described, 'example')} described in {printable(str(arguments.path))}"
        output.print(folded(said))
    return OK
