"""Argument checks, in one wording for the whole package.

Each function returns the value in the type that the caller needs, or raises
:class:`~sawlog.errors.ArgumentError`: "`top_k` must be a positive integer; got 0." Names that begin
with ``--`` are options of the command line and appear as they are typed.

>>> positive_integer("top_k", 3)
3
>>> one_of("mode", "cosin", ["dot", "cosine"])
Traceback (most recent call last):
sawlog.errors.ArgumentError: `mode` must be one of 'dot', 'cosine'; got 'cosin'. Hint: did you \
mean 'cosine'?
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from sawlog._names import nearest
from sawlog._paths import absolute
from sawlog.errors import ArgumentError

T = TypeVar("T")

_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def refuse(name: str, required: str, value: Any, hint: str = "") -> NoReturn:
    """Raise the error of an argument: what it must be, what it is, and what to type instead."""
    shown = name if name.startswith("-") else f"`{name}`"
    more = f" Hint: {hint}" if hint else ""
    raise ArgumentError(f"{shown} must be {required}; got {value!r:.200}.{more}")


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """Return None for None, and otherwise what ``check`` returns.

    >>> optional(positive_integer, "total", None) is None
    True
    """
    return None if value is None else check(name, value)


def one_of(
    name: str, value: Any, allowed: Iterable[Any], hint: str = "", *, or_else: str = ""
) -> Any:
    """Check that a value is one of a few; the nearest one is the hint, unless one is given.

    ``or_else`` describes further values, which the caller has accepted before.

    >>> one_of("curvature", 3, ["kfac", "fisher"], or_else="a fitted curvature")
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `curvature` must be one of 'kfac', 'fisher', or a fitted \
curvature; got 3.
    """
    choices = tuple(allowed)
    if any(value is each or (isinstance(value, type(each)) and value == each) for each in choices):
        return value
    if not hint and isinstance(value, str):
        close = nearest(value, (each for each in choices if isinstance(each, str)))
        hint = f"did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(map(repr, choices)) + (f", or {or_else}" if or_else else "")
    refuse(name, f"one of {listed}", value, hint)


def integer(name: str, value: Any, least: int | None = None, hint: str = "") -> int:
    """Check that a value is an integer, of numpy or Python, and at least ``least``.

    >>> integer("--limit", -1, least=0)
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: --limit must be a non-negative integer; got -1.
    """
    kinds = {None: "an integer", 0: "a non-negative integer", 1: "a positive integer"}
    required = kinds.get(least, f"an integer of at least {least}")
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        refuse(name, required, value, hint)
    return int(found)


def positive_integer(name: str, value: Any, hint: str = "") -> int:
    """Check that a value is an integer of at least 1."""
    return integer(name, value, 1, hint)


def number(name: str, value: Any, hint: str = "") -> float:
    """Check that a value is a finite real number."""
    return _number(name, value, "a finite number", lambda _: True, hint)


def positive_number(name: str, value: Any, hint: str = "") -> float:
    """Check that a value is a finite number above 0."""
    return _number(name, value, "a positive number", lambda found: found > 0, hint)


def non_negative_number(name: str, value: Any, hint: str = "") -> float:
    """Check that a value is a finite number of at least 0."""
    return _number(name, value, "a non-negative number", lambda found: found >= 0, hint)


def fraction(name: str, value: Any, hint: str = "") -> float:
    """Check that a value is between 0 and 1.

    >>> fraction("share", 1.5)
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `share` must be a number from 0 to 1; got 1.5.
    """
    return _number(name, value, "a number from 0 to 1", lambda found: 0 <= found <= 1, hint)


def _number(
    name: str, value: Any, required: str, fits: Callable[[float], bool], hint: str
) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not fits(float(value)):
        refuse(name, required, value, hint)
    return float(value)


def byte_size(name: str, value: Any, hint: str = "") -> int:
    """Check that a value is a number of bytes: a positive integer, or text with a unit.

    >>> byte_size("budget", "2GB"), byte_size("budget", "1.5 MiB"), byte_size("budget", 800)
    (2000000000, 1572864, 800)
    >>> byte_size("--budget", "lots")
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: --budget must be a number of bytes, such as 500MiB or 2GB; got \
'lots'.
    """
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        digits, unit, binary = found.groups()
        power = " kmgt".index(unit.lower() or " ")
        nbytes = int(float(digits) * (1024 if binary else 1000) ** power)
    else:
        try:
            nbytes = 0 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            nbytes = 0
    if nbytes < 1:
        refuse(name, "a number of bytes, such as 500MiB or 2GB", value, hint)
    return int(nbytes)


def flag(name: str, value: Any, hint: str = "") -> bool:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        refuse(name, "True or False", value, hint)
    return value


def string(name: str, value: Any, hint: str = "") -> str:
    """Check that a value is a string."""
    if not isinstance(value, str):
        refuse(name, "a string", value, hint)
    return value


def function(name: str, value: Any, hint: str = "") -> Callable[..., Any]:
    """Check that a value can be called."""
    if not callable(value):
        refuse(name, "a function", value, hint)
    return value


def path(name: str, value: Any, hint: str = "") -> Path:
    """Check that a value is a path, and return it as an absolute one.

    >>> path("folder", 3)
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `folder` must be a path: a string or a pathlib.Path; got 3.
    """
    if not isinstance(value, str | os.PathLike):
        refuse(name, "a path: a string or a pathlib.Path", value, hint)
    return absolute(value)


def instance(name: str, value: Any, kind: type[T], hint: str = "") -> T:
    """Check that a value is an instance of a class.

    >>> instance("writer", 3, Path)
    Traceback (most recent call last):
    sawlog.errors.ArgumentError: `writer` must be a Path; got 3.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        refuse(name, f"{article} {kind.__name__}", value, hint)
    return value
