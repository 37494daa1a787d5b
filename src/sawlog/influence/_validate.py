"""Checks of arguments that several functions share, in one wording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError


def check_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise an ArgumentError unless ``value`` is one of ``choices``.

    >>> check_one_of("mode", "cos", ("dot", "cosine"))
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `mode` must be one of 'dot', 'cosine'; got 'cos'.
    """
    choices = tuple(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"`{name}` must be one of {listed}; got {value!r}.")


def check_positive_integer(name: str, value: Any) -> None:
    """Raise an ArgumentError unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ArgumentError(f"`{name}` must be a positive integer; got {value!r}.")


def check_budget(budget: Any) -> None:
    """Raise an ArgumentError unless ``budget`` is a number of bytes."""
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ArgumentError(
            f"`budget` must be a positive integer, a number of bytes; got {budget!r}."
        )
