"""Numbers, sizes, times and names as text, and values as what JSON can hold."""

from __future__ import annotations

import datetime
import math
import re
import time
from typing import Any

import numpy as np

from sawlog._text import printable
from sawlog.errors import ArgumentError

plain = printable


def count(number: int, one: str, many: str = "") -> str:
    """A number with what it counts.

    >>> count(1, "row"), count(1200, "row"), count(0, "entry", "entries")
    ('1 row', '1,200 rows', '0 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(nbytes: int) -> str:
    """Bytes.

    >>> size(1), size(999), size(12_345), size(2_000_000_000)
    ('1 B', '999 B', '12.3 kB', '2.0 GB')
    """
    number, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.95 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.0f} B" if units[0] == "B" else f"{number:,.1f} {units[0]}"


def bytes_of(text: str, option: str) -> int:
    """The reverse of :func:`size`: so many bytes, with a unit or without.

    >>> bytes_of("2GB", "--budget"), bytes_of("1.5 MiB", "--budget"), bytes_of("800", "--budget")
    (2000000000, 1572864, 800)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?\s*", text.lower())
    try:
        number, unit, binary = found.groups() if found else ("", "", "")
        nbytes = int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))
    except ValueError:
        nbytes = 0
    if nbytes < 1:
        raise ArgumentError(f"{option} is a number of bytes, as 2GB or 500MiB, not {text!r}.")
    return nbytes


def age(when: float | None, now: float | None = None) -> str:
    """How long ago something was, or the day.

    >>> age(100.0, now=103.0), age(0.0, now=7200.0), age(None)
    ('3 s ago', '2 h ago', '')
    """
    if when is None:
        return ""
    seconds = max(0.0, (time.time() if now is None else now) - when)
    for unit, length, most in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 86400)):
        if seconds < most:
            return f"{int(seconds // length)} {unit} ago"
    return datetime.datetime.fromtimestamp(when).strftime("%Y-%m-%d")


def iso(when: float | None) -> str | None:
    """A time as ISO 8601, UTC."""
    if when is None:
        return None
    return datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(timespec="seconds")


def number(value: Any) -> str:
    """A number in few characters.

    >>> number(3), number(0.123456), number(1e-9), number(12345.6), number(None)
    ('3', '0.1235', '1e-09', '12346', '')
    """
    if value is None:
        return ""
    if isinstance(value, float) and not 1e4 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def short(value: Any, most: int = 24) -> str:
    """A value in one line of at most so many characters."""
    text = plain(value) if isinstance(value, str) else number(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def item(value: Any) -> Any:
    """One item of an array as Python has it: bool, int, float, or text for anything else."""
    if isinstance(value, np.generic) and value.dtype.type.__module__ == "ml_dtypes":
        return str(value) if "complex" in value.dtype.name else float(value)
    if isinstance(value, (np.bool_, np.integer, np.floating)) and value.dtype.kind in "biuf":
        plainly = value.item()
        return plainly if isinstance(plainly, (bool, int, float)) else float(plainly)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def jsonable(value: Any) -> Any:
    """The same in types that every JSON reader takes: what is not finite becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(inner) for inner in value]
    return value
