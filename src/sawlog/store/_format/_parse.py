"""JSON from a file as checked values: what is not as it should be is said in a few words.

Whoever reads a file of a store takes its parts with these functions, so nothing that a file says
is used before its type and its bounds are known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

MOST = 2**63 - 1
MOST_AXES = 64  # of an array of numpy
_DEEPEST = 300  # levels of lists and objects in what users note
_WRITER = re.compile(r"[a-z0-9]{1,32}")


class Malformed(ValueError):
    """A file says something that it cannot say; the text is part of a sentence."""


def fail(what: str) -> NoReturn:
    """Refuse a file."""
    raise Malformed(what)


def load(data: bytes | str) -> dict[str, Any]:
    """Parse an object.

    Raises:
        Malformed: it is no JSON, or has a key twice, a number that is not finite, or too many
            levels.
    """
    try:
        value = _decoder.decode(data if isinstance(data, str) else data.decode())
    except Malformed:
        raise
    except RecursionError:
        fail("it is nested too deeply")
    except ValueError as error:
        fail(f"it is no JSON ({_short(error)})")
    return mapping(value, "it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        fail(f"the key {shown(twice)} is there twice")
    return made


def _no_number(text: str) -> NoReturn:
    fail(f"it has {text}, which JSON lacks")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        fail(f"the number {text[:20]} is too large")
    return value


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite
)


def _short(error: Exception) -> str:
    return str(error)[:100]


def shown(value: object) -> str:
    """A value for a message, in one line of bounded length."""
    try:
        text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else ""
    except ValueError:  # an integer with too many digits to show
        text = "a huge number"
    text = text or f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def mapping(value: Any, what: str) -> dict[str, Any]:
    """An object."""
    if type(value) is not dict:
        fail(f"{what} is {shown(value)}, not an object")
    return value


def sequence(value: Any, what: str) -> list[Any]:
    """A list."""
    if type(value) is not list:
        fail(f"{what} is {shown(value)}, not a list")
    return value


def field(value: dict[str, Any], key: str) -> Any:
    """What an object has under a key."""
    if key not in value:
        fail(f"{key!r} is missing")
    return value[key]


def integer(value: Any, what: str, low: int = 0, high: int = MOST) -> int:
    """A whole number within bounds; true and false are none."""
    if type(value) is not int:
        fail(f"{what} is {shown(value)}, not an integer")
    if not low <= value <= high:
        fail(f"{what} is {shown(value)}, not within {low} and {high}")
    return value


def flag(value: Any, what: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        fail(f"{what} is {shown(value)}, not true or false")
    return value


def text(value: Any, what: str) -> str:
    """A string that is valid Unicode."""
    if type(value) is not str:
        fail(f"{what} is {shown(value)}, not a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            fail(f"{what} is {shown(value)}, which is not valid Unicode")
    return value


def name(value: Any, what: str) -> str:
    """A string that is not empty."""
    if not text(value, what):
        fail(f"{what} is empty")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    """Strings that are all different."""
    found = tuple([text(item, what) for item in sequence(value, what)])
    if len(found) > 1 and len(set(found)) != len(found):
        fail(f"{what} has a name twice")
    return found


def writer(value: Any, what: str) -> str:
    """The name of a writer."""
    if type(value) is not str or not _WRITER.fullmatch(value):
        fail(f"{what} is {shown(value)}, not the name of a writer")
    return value


def shape(value: Any, what: str, axes: int = MOST_AXES) -> tuple[int, ...]:
    """Sizes of axes whose product is bounded as well."""
    sizes = tuple(integer(item, what) for item in sequence(value, what))
    if len(sizes) > axes:
        fail(f"{what} has {len(sizes)} axes")
    if math.prod(size for size in sizes if size) > MOST:
        fail(f"{what} has more items than can be counted")
    return sizes


def choice(value: Any, what: str, choices: Iterable[str]) -> str:
    """One of some strings."""
    listed = tuple(choices)
    if type(value) is not str or value not in listed:
        fail(f"{what} is {shown(value)}, not one of {', '.join(map(repr, listed))}")
    return value


def notes(value: Any, what: str) -> dict[str, Any]:
    """An object of the user, of bounded depth, with valid strings all over."""
    found = mapping(value, what)
    level: list[Any] = [found]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                for key in item:
                    text(key, f"a key of {what}")
                below += item.values()
            elif type(item) is list:
                below += item
            elif type(item) is str:
                text(item, f"a string of {what}")
        if not below:
            return found
        level = below
    fail(f"{what} is nested too deeply")


def check_depth(value: Any, what: str) -> None:
    """Refuse what could be written and not be read again."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [x for item in level for x in _below(item)]
        if not level:
            return
    fail(f"{what} is nested too deeply")


def _below(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, (list, tuple)) else ()
