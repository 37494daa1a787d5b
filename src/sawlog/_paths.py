"""Paths are made absolute once, when they are given: the program may go elsewhere later."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the path as it is meant now, whatever ``os.chdir`` does later.

    A link is kept as it is, but ``..`` behind a link means what it means to the system.

    >>> absolute("/runs/./first/") == Path("/runs/first")
    True
    """
    text = os.fsdecode(path)
    if ".." in Path(text).parts:
        return Path(os.path.realpath(text))
    return Path(os.path.abspath(text))
