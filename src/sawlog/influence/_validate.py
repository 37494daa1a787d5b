"""Checks of arguments that several functions share, in one wording."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from sawlog.errors import ArgumentError


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise an ArgumentError unless ``value`` is one of ``allowed``.

    >>> one_of("mode", "cos", ("dot", "cosine"))
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `mode` must be one of 'dot', 'cosine'; got 'cos'.
    """
    choices = tuple(allowed)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"`{name}` must be one of {listed}; got {value!r}.")


def positive_integer(name: str, value: Any) -> int:
    """Return ``value`` as an integer; raise an ArgumentError unless it is at least 1."""
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = 0
    if found < 1:
        raise ArgumentError(f"`{name}` must be a positive integer; got {value!r}.")
    return int(found)
