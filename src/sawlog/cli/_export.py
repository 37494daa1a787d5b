"""``sawlog export``: write a store in a format of other programs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

import sawlog.store
from sawlog._format import size
from sawlog._table import TableColumn, table
from sawlog._text import printable
from sawlog.cli._arguments import Json, Names, Overwrite, Store
from sawlog.cli._exit_codes import OK
from sawlog.cli._folders import one_store
from sawlog.cli._output import CommandOutput
from sawlog.errors import ArgumentError, SawlogError
from sawlog.inspect._patterns import matching_names
from sawlog.store._views._export import FORMATS

_COLUMNS = (TableColumn("file", folds=16, style="bold"), TableColumn("size", right=True))

_OPTIONS = {
    r"names=(\[\.\.\.\])?": "--names",
    r"long=True": "--long",
    r"overwrite=True": "--overwrite",
    r"format='(\w+)'": r"--format \1",
}

if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[tuple(FORMATS)]


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a store, or some of its names, in a format of other programs.

    The suffix of TARGET decides the format: .safetensors for everything in one file, or for one
    table parquet, arrow, feather, csv or jsonl. With --format, TARGET may be a folder, which gets a
    file for each table.

    examples:
      sawlog export runs/seed-0 seed-0.csv
      sawlog export runs/seed-0 -o seed-0.parquet
      sawlog export runs/seed-0 tables --format parquet --names loss 'eval/*'
    """

    path: Store
    target: Positional[
        Annotated[
            Path | None,
            arg(
                metavar="[TARGET]",
                help="The file or folder to write.",
                help_behavior_hint="(required, here or as -o)",
            ),
        ]
    ] = None
    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="TARGET",
            help="The same, as the option that other commands have.",
            help_behavior_hint="",
        ),
    ] = None
    names: Names = ()
    format: Annotated[
        Format | None,
        arg(
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}.",
            help_behavior_hint="(default: by the suffix of TARGET)",
        ),
    ] = None
    long: Annotated[
        bool,
        arg(help="Long format: one row for each entry of each name.", help_behavior_hint=""),
    ] = False
    overwrite: Overwrite = False
    json: Json = False


def run(arguments: Export, output: CommandOutput) -> int:
    """Run ``sawlog export``."""
    target = _target(arguments)
    with sawlog.store.open(one_store(arguments.path)) as reader:
        names = matching_names(reader.schema, arguments.names) if arguments.names else None
        with _hints_as_options(), output.progress(f"exporting {arguments.path.name}") as progress:
            written = sawlog.store.export(
                reader,
                target,
                names=names,
                format=arguments.format,
                long=arguments.long,
                overwrite=arguments.overwrite,
                progress=progress,
            )
    sizes = {path: path.stat().st_size for path in written}
    if arguments.json:
        files = [{"file": str(path), "bytes": nbytes} for path, nbytes in sizes.items()]
        output.print_json({"path": str(arguments.path), "files": files})
    else:
        rows = [[printable(str(path)), size(nbytes)] for path, nbytes in sizes.items()]
        output.print(table(_COLUMNS, rows, output.width))
    return OK


@contextlib.contextmanager
def _hints_as_options() -> Iterator[None]:
    """Name options in errors of ``sawlog.store.export``, which name Python arguments."""
    try:
        yield
    except SawlogError as error:
        text, marker, hint = str(error).partition("Hint: ")
        for argument, option in _OPTIONS.items():
            hint = re.sub(argument, option, hint)
        error.args = (text + marker + hint,)
        raise


def _target(arguments: Export) -> Path:
    given = [path for path in (arguments.target, arguments.out) if path is not None]
    if len(given) != 1:
        raise ArgumentError(
            f"There is {'no TARGET' if not given else 'more than one TARGET'}. "
            "Hint: sawlog export PATH TARGET, or sawlog export PATH -o TARGET."
        )
    return given[0]
