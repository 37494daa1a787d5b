"""Absolute paths: made when a path is given, since the program may change its directory later."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, which ``os.chdir`` does not change.

    Links are kept, except in front of ``..``, where they are resolved as the system does.

    >>> absolute("/runs/./first/") == Path("/runs/first")
    True
    """
    text = os.fsdecode(path)
    if ".." in Path(text).parts:
        return Path(os.path.realpath(text))
    return Path(os.path.abspath(text))
