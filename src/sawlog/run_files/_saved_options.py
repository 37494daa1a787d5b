"""The options of a run in its folder, so that another program can continue without them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from sawlog._atomic import replacing
from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options, read
from sawlog.store._format._loose_json import read_loose_file

NAME = "run.json"


def save_options(
    path: Path,
    options: Options,
    blocks: Sequence[Block],
    skipped: Sequence[tuple[str, str]] = (),
    parameters: int | None = None,
) -> None:
    """Write the options and watched blocks of a run, in place of earlier ones.

    Args:
        path: the folder of the run.
        options: its options.
        blocks: the watched blocks.
        skipped: the names of parameters that are not watched, and why.
        parameters: the number of parameters of the model; None if unknown.
    """
    values = {
        "options": options.to_json(),
        "blocks": [block.to_json() for block in blocks],
        "skipped": [list(each) for each in skipped],
        "parameters": parameters,
    }
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values)
    with contextlib.suppress(OSError):
        if read_loose_file(path, NAME) == text.encode():
            return
    with replacing(path / NAME) as file:
        file.write(text.encode())


def load_options(path: Path) -> tuple[Options, list[Block]] | None:
    """Return the options and blocks that a run was last set up with; None for a new run.

    Raises:
        ArgumentError: the file is damaged, or the path cannot be a folder.
    """
    try:
        data = read_loose_file(path, NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be the folder of a run: {error.strerror or error}. Hint: choose "
            "another `root` or `project`."
        ) from error
    try:
        values = json.loads(data)
        return read(values["options"]), [Block.from_json(each) for each in values["blocks"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArgumentError(
            f"{path / NAME} does not contain the options of a run: {error}. Hint: remove it, and "
            "call run.setup(...) again."
        ) from error
