"""Paths: absolute ones, made when a path is given, since the program may change its directory
later, and the order in which people expect them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sawlog.errors import ArgumentError


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, which ``os.chdir`` does not change.

    Links are kept, except in front of ``..``, where they are resolved as the system does.

    Raises:
        ArgumentError: the path is relative, and the current directory does not exist any more.

    >>> absolute("/runs/./first/") == Path("/runs/first")
    True
    """
    text = os.fsdecode(path)
    try:
        if ".." in Path(text).parts:
            return Path(os.path.realpath(text))
        return Path(os.path.abspath(text))
    except FileNotFoundError as error:
        raise ArgumentError(
            f"{text!r:.200} is a relative path, and the current directory was removed. "
            "Hint: pass an absolute path, or os.chdir to a directory that exists."
        ) from error


def natural_order(path: str | os.PathLike[str]) -> list[str | int]:
    """Return a key that sorts paths with the numbers in them as numbers.

    >>> sorted(["seed-10", "seed-2", "a"], key=natural_order)
    ['a', 'seed-2', 'seed-10']
    """
    pieces = re.split(r"([0-9]+)", os.fsdecode(path))
    return [int(piece) if at % 2 else piece for at, piece in enumerate(pieces)]
