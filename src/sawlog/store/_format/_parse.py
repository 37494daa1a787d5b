"""Parse JSON from files into checked values.

Every value of a file passes one of these functions, which check its type and bounds before it is
used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

MOST = 2**63 - 1
MOST_AXES = 64  # of a numpy array
_DEEPEST = 300  # levels of lists and objects in `meta` and `attrs`
_WRITER = re.compile(r"[a-z0-9]{1,32}")


class Malformed(ValueError):
    """A file has an invalid value; the text is part of a longer message."""


def fail(what: str) -> NoReturn:
    """Raise :class:`Malformed`."""
    raise Malformed(what)


def load(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        Malformed: the text is not JSON, has a key twice, a number that is not finite, or too many
            levels.
    """
    try:
        value = _decoder.decode(data if isinstance(data, str) else data.decode())
    except Malformed:
        raise
    except RecursionError:
        fail("it is nested too deeply")
    except ValueError as error:
        fail(f"it is not JSON ({_short(error)})")
    return mapping(value, "it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        fail(f"the key {shown(twice)} occurs twice")
    return made


def _no_number(text: str) -> NoReturn:
    fail(f"it has {text}, which is not JSON")


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
    """Return a value for a message, in one line of bounded length."""
    try:
        text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else ""
    except ValueError:  # an integer with too many digits to show
        text = "a huge number"
    text = text or f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Check that a value is an object."""
    if type(value) is not dict:
        fail(f"{what} is {shown(value)}, not an object")
    return value


def sequence(value: Any, what: str) -> list[Any]:
    """Check that a value is a list."""
    if type(value) is not list:
        fail(f"{what} is {shown(value)}, not a list")
    return value


def field(value: dict[str, Any], key: str) -> Any:
    """Return the value of a key that an object must have."""
    if key not in value:
        fail(f"{key!r} is missing")
    return value[key]


def integer(value: Any, what: str, low: int = 0, high: int = MOST) -> int:
    """Check that a value is an integer within bounds; true and false are not integers."""
    if type(value) is not int:
        fail(f"{what} is {shown(value)}, not an integer")
    if not low <= value <= high:
        fail(f"{what} is {shown(value)}, not within {low} and {high}")
    return value


def flag(value: Any, what: str) -> bool:
    """Check that a value is true or false."""
    if type(value) is not bool:
        fail(f"{what} is {shown(value)}, not true or false")
    return value


def text(value: Any, what: str) -> str:
    """Check that a value is a string of valid Unicode."""
    if type(value) is not str:
        fail(f"{what} is {shown(value)}, not a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            fail(f"{what} is {shown(value)}, which is not valid Unicode")
    return value


def name(value: Any, what: str) -> str:
    """Check that a value is a non-empty string."""
    if not text(value, what):
        fail(f"{what} is empty")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    """Check that a value is a list of distinct strings."""
    found = tuple([text(item, what) for item in sequence(value, what)])
    if len(found) > 1 and len(set(found)) != len(found):
        fail(f"{what} has a name twice")
    return found


def writer(value: Any, what: str) -> str:
    """Check that a value is the name of a writer."""
    if type(value) is not str or not _WRITER.fullmatch(value):
        fail(f"{what} is {shown(value)}, not the name of a writer")
    return value


def shape(value: Any, what: str, axes: int = MOST_AXES) -> tuple[int, ...]:
    """Check that a value is a shape, with a bounded number of items."""
    sizes = tuple(integer(item, what) for item in sequence(value, what))
    if len(sizes) > axes:
        fail(f"{what} has {len(sizes)} axes")
    if math.prod(size for size in sizes if size) > MOST:
        fail(f"{what} has more items than can be counted")
    return sizes


def choice(value: Any, what: str, choices: Iterable[str]) -> str:
    """Check that a value is one of some strings."""
    listed = tuple(choices)
    if type(value) is not str or value not in listed:
        fail(f"{what} is {shown(value)}, not one of {', '.join(map(repr, listed))}")
    return value


def notes(value: Any, what: str) -> dict[str, Any]:
    """Check an object of the user: bounded depth, and valid strings."""
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
    """Refuse a value that is nested too deeply to be read again."""
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
