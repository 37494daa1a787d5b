"""``sawlog view``: show the runs of a folder in the browser, live."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from sawlog._text import printable
from sawlog.cli._arguments import Json
from sawlog.cli._browser import open_in_browser
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.report._server import make_server


@dataclasses.dataclass(frozen=True)
class View:
    """Show the runs of a folder in the browser, live.

    The page is for this computer alone: it is served on the loopback address, under a random token.
    It reads files of the folder and nothing else, and it writes nothing. Ctrl-C ends it.

    examples:
      sawlog view runs
      sawlog view runs --port 8000 --no-open     # then ssh -L 8000:127.0.0.1:8000 HOST
    """

    path: Positional[
        Annotated[Path, arg(metavar="[FOLDER]", help="A folder; its subfolders are searched too.")]
    ] = Path(".")
    port: Annotated[int, arg(help="The port to use; 0 chooses a free one.")] = 0
    quiet: Annotated[
        bool,
        arg(name="no-open", help="Do not open a browser.", help_behavior_hint=""),
    ] = False
    json: Json = False


def run(arguments: View, output: CommandOutput) -> int:
    """Run ``sawlog view``."""
    server, bound, address = make_server(arguments.path, arguments.port)
    with bound:
        if arguments.json:
            output.print_json({"address": address})
        else:
            output.print(f"{printable(str(arguments.path))} is shown at {address} (Ctrl-C ends it)")
        if not arguments.quiet:
            open_in_browser(address)
        server.run(sockets=[bound])
    return OK
