"""``sawlog demo``: train small models, and end with a page that shows them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import arg

from sawlog._optional import is_installed
from sawlog._text import printable
from sawlog.cli._arguments import Json
from sawlog.cli._browser import open_in_browser
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.demo import Sizes, run_demo
from sawlog.errors import StoreExistsError


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train small models, log and attribute them, and end with a page that shows it.

    Takes a minute or two. Needs the extra demo, and neither a terminal nor a network.

    examples:
      sawlog demo
      sawlog demo -o sawlog-demo --no-open
    """

    out: Annotated[
        Path | None,
        arg(
            aliases=["-o"],
            metavar="FOLDER",
            help="An empty folder for the runs and the page.",
            help_behavior_hint="(default: a new temporary folder)",
        ),
    ] = None
    quick: Annotated[
        bool, arg(help="Smaller models and data, for a few seconds.", help_behavior_hint="")
    ] = False
    quiet: Annotated[
        bool, arg(name="no-open", help="Do not open a browser.", help_behavior_hint="")
    ] = False
    json: Json = False


def run(arguments: Demo, output: CommandOutput) -> int:
    """Run ``sawlog demo``."""
    from sawlog.cli._main import main

    folder = _folder(arguments.out)
    sizes = Sizes.quick() if arguments.quick else None
    if arguments.json:  # the story goes where remarks go
        with contextlib.redirect_stdout(sys.stderr):
            page = run_demo(folder, main, sizes=sizes, console=Console(stderr=True))
        output.print_json({"folder": str(folder), "report": str(page)})
        return OK
    page = run_demo(folder, main, sizes=sizes, console=Console())
    opened = not arguments.quiet and sys.stdout.isatty() and open_in_browser(page.as_uri())
    said = "The page is open in your browser" if opened else "Open this page in a browser"
    output.print(f"{said}: {printable(page.as_uri())}")
    if is_installed("starlette") and is_installed("uvicorn"):
        output.print(f"or see it live: sawlog view {printable(str(folder))}")
    return OK


def _folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="sawlog-demo-"))
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        raise StoreExistsError(f"{given} is not empty. Hint: use another folder for -o.")
    given.mkdir(parents=True, exist_ok=True)
    return given.absolute()
