"""The table of commands. A module is only imported when its command is typed."""

from __future__ import annotations

import dataclasses
import importlib
from types import ModuleType
from typing import Any


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Args:
        module: the module of ``sawlog.cli`` that has its arguments and ``run(arguments, output)``.
        arguments: the name of the dataclass of its arguments in that module.
        summary: one line of help, which is also the first line of that class's docstring.
    """

    module: str
    arguments: str
    summary: str

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(f"sawlog.cli.{self.module}")

    def arguments_class(self) -> type[Any]:
        """Import the module, and return the dataclass of the arguments."""
        kind: type[Any] = getattr(self.load(), self.arguments)
        return kind


COMMANDS = {
    "ls": Command("_ls", "Ls", "List the stores under a folder, without reading their data."),
    "show": Command(
        "_show", "Show", "Show what a store contains: names, types, counts, last values, trends."
    ),
    "tail": Command(
        "_tail", "Tail", "Print the last logged values of a run; with --follow, new ones too."
    ),
    "plot": Command(
        "_plot", "Plot", "Draw curves of runs in the terminal, or as a PNG or SVG file."
    ),
    "compare": Command(
        "_compare",
        "Compare",
        "Compare runs: the settings in which they differ, and their last values.",
    ),
    "sync": Command(
        "_sync",
        "Sync",
        "Send the series of stores to a tracker; what was sent before is not sent again.",
    ),
    "verify": Command("_verify", "Verify", "Check every byte of stores against its checksum."),
    "compact": Command(
        "_compact", "Compact", "Merge small segments into large ones, and drop replaced rows."
    ),
    "repair": Command(
        "_repair", "Repair", "Set damaged files aside, so that the rest of a store can be used."
    ),
    "export": Command(
        "_export", "Export", "Write a store, or some of its names, in a format of other programs."
    ),
    "describe": Command(
        "_describe",
        "Describe",
        "Store what the examples of a run look like, so that tables and pages can show them.",
    ),
    "report": Command(
        "_report", "WriteReport", "Write a page about runs: one HTML file that needs no network."
    ),
    "view": Command("_view", "View", "Show the runs of a folder in the browser, live."),
    "attribute": Command(
        "_attribute", "Attribute", "Score the examples of a run by their influence on queries."
    ),
    "self-influence": Command(
        "_self_influence",
        "SelfInfluence",
        "Rank the examples of a run by self-influence: likely label errors first.",
    ),
    "validate": Command(
        "_validate", "Validate", "Compare scores with what retraining on subsets of the data does."
    ),
    "demo": Command(
        "_demo",
        "Demo",
        "Train small models, log and attribute them, and end with a page that shows it.",
    ),
    "completion": Command(
        "_completion",
        "Completion",
        "Print a script that completes commands, options and paths in a shell.",
    ),
}
