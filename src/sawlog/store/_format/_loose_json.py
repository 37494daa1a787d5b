"""Read small files beside stores: those of runs, which have no checksum and no fixed form.

They are read as files of a store are, because any program may have written them: links are not
followed, only regular files are opened, and their size is bounded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sawlog.store._disk import LocalDisk
from sawlog.store._format._layout import MOST_JSON


def read_loose_file(folder: Path, name: str) -> bytes:
    """Return the bytes of a file in a folder.

    Raises:
        OSError: there is no such file, or it is a link, a device or a pipe, or too large.
    """
    return LocalDisk(folder).read(name, MOST_JSON)


def read_loose_json(folder: Path, name: str) -> Any:
    """Parse a JSON file in a folder.

    Raises:
        OSError: as :func:`read_loose_file`.
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_loose_file(folder, name))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
