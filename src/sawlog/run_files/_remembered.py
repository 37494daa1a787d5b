"""The options of a run, kept in its folder, so that another program need not repeat them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sawlog._atomic import replacing
from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options, read

NAME = "run.json"


def remember(
    path: Path,
    options: Options,
    blocks: Sequence[Block],
    skipped: Sequence[tuple[str, str]] = (),
    parameters: int | None = None,
) -> None:
    """Keep the options of a run, and what it watches, in the place of earlier ones.

    Args:
        path: the folder of the run.
        options: its options.
        blocks: what it watches.
        skipped: the names of parameters that it does not watch, and why.
        parameters: how many parameters the model has; None if unknown.
    """
    said = {
        "options": options.to_json(),
        "blocks": [block.to_json() for block in blocks],
        "skipped": [list(each) for each in skipped],
        "parameters": parameters,
    }
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(said)
    if (path / NAME).exists() and (path / NAME).read_text() == text:
        return
    with replacing(path / NAME) as file:
        file.write(text.encode())


def remembered(path: Path) -> tuple[Options, list[Block]] | None:
    """What a run was set up with last; None for one that is new.

    Raises:
        ArgumentError: the file does not say it.
    """
    try:
        text = (path / NAME).read_text()
    except FileNotFoundError:
        return None
    try:
        said = json.loads(text)
        return read(said["options"]), [Block.from_json(each) for each in said["blocks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"{path / NAME} does not say what the run was set up with: {error}. Hint: remove it, "
            "and set the run up again."
        ) from error
