"""The command line: list, show, verify, compact, repair and export stores, and score examples.

``sawlog --help`` lists the commands. Each prints tables for people, JSON for programs with
``--json``, and progress at a terminal only. It needs the extra ``cli``: ``pip install
"sawlog[cli]"``.

A command is one module, with a dataclass of its arguments and ``run(arguments, output)``, and one
entry in the table of ``_commands``.
"""

from __future__ import annotations

from sawlog.cli._main import main as main

__all__ = ["main"]
