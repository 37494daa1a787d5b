"""Numbers, sizes and times as text, for the command line and the console.

:func:`number` is compact, for tables that are printed once. :func:`steady_number` always has four
significant digits, so that a value that is drawn again and again does not change its width.
"""

from __future__ import annotations

import datetime
import math
import time
from typing import Any

from sawlog._text import printable

Number = int | float

_ASCII = {"±": "+/-", "…": "...", "━": "#", "╸": "#", "─": "-", "·": "-"}


# -- numbers --------------------------------------------------------------------------------------


def number(value: Any) -> str:
    """Format a number in few characters; None is empty.

    >>> number(3), number(0.123456), number(1e-9), number(12345.6), number(None)
    ('3', '0.1235', '1e-09', '12346', '')
    """
    if value is None:
        return ""
    if isinstance(value, float) and not 1e4 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def steady_number(value: Number) -> str:
    """Format a number with four significant digits; integers as they are.

    >>> [steady_number(x) for x in (3, 0.5, -12.3456, 12345.6, 1e-9, 2**64, float("inf"))]
    ['3', '0.5000', '-12.35', '12,346', '1.000e-09', '1.845e+19', 'inf']
    """
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**9 else f"{float(value):.3e}"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-4 <= abs(value) < 9999.5:
        return f"{value:#.4g}".rstrip(".")
    return f"{value:,.0f}" if 1 <= abs(value) < 999999.5 else f"{value:.3e}"


def spread(value: float) -> str:
    """Format a standard deviation with two significant digits.

    >>> spread(0.02), spread(0.0), spread(1234.5), spread(1e-7)
    ('0.020', '0', '1,234', '1.0e-07')
    """
    if value == 0:
        return "0"
    if 9.95 <= abs(value) < 999999.5:
        return f"{value:,.0f}"
    return f"{value:#.2g}"


def rate(value: float) -> str:
    """Format a number per second with three significant digits.

    >>> rate(1234.5), rate(105.2), rate(1.234), rate(0.01234)
    ('1,234', '105', '1.23', '0.0123')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def step(value: Number) -> str:
    """Format a step.

    >>> step(12345), step(0.25)
    ('12,345', '0.25')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def count(number: int, one: str, many: str = "") -> str:
    """Format a number with the noun that it counts.

    >>> count(1, "row"), count(1200, "row"), count(0, "entry", "entries")
    ('1 row', '1,200 rows', '0 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(nbytes: int) -> str:
    """Format a number of bytes.

    >>> size(1), size(999), size(12_345), size(2_000_000_000)
    ('1 B', '999 B', '12.3 kB', '2.0 GB')
    """
    number, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.95 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.0f} B" if units[0] == "B" else f"{number:,.1f} {units[0]}"


def shape(sizes: tuple[int, ...]) -> str:
    """Format the shape of an array.

    >>> shape((3, 4))
    '[3,4]'
    """
    return f"[{','.join(map(str, sizes))}]"


# -- times ----------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Format a duration in days, hours, minutes and seconds.

    >>> duration(59.9), duration(3661), duration(100 * 3600)
    ('0:00:59', '1:01:01', '4d 4:00:00')
    """
    if not math.isfinite(seconds) or seconds >= 1000 * 86400:
        return "years"
    minutes, whole = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{whole:02}"


def age(when: float | None, now: float | None = None) -> str:
    """Format how long ago a time was, or its date if that is more than a day; None is empty.

    >>> age(100.0, now=103.0), age(0.0, now=7200.0), age(None)
    ('3 s ago', '2 h ago', '')
    """
    if when is None:
        return ""
    seconds = max(0.0, (time.time() if now is None else now) - when)
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 86400)):
        if seconds < limit:
            return f"{int(seconds // length)} {unit} ago"
    return datetime.datetime.fromtimestamp(when).strftime("%Y-%m-%d")


def iso(when: float | None) -> str | None:
    """Format a time as ISO 8601, in UTC; None stays None.

    >>> iso(0.0)
    '1970-01-01T00:00:00+00:00'
    """
    if when is None:
        return None
    return datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat(timespec="seconds")


# -- text -----------------------------------------------------------------------------------------


def short(value: Any, width: int = 24) -> str:
    """Format a value in one line, cut off at ``width`` characters.

    >>> short("a long description", 8), short(0.25)
    ('a long …', '0.25')
    """
    text = printable(value) if isinstance(value, str) else number(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def shortened(text: str, width: int) -> str:
    """Cut text in the middle: names differ at both ends.

    >>> shortened("encoder/layers/12/attention/norm", 16)
    'encoder/…on/norm'
    """
    if len(text) <= width:
        return text
    if width < 5:
        return text[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def ascii_only(text: str) -> str:
    """Replace what is not ASCII, for terminals and files that cannot show it.

    >>> ascii_only("1 ± 2 …"), ascii_only("é")
    ('1 +/- 2 ...', '\\\\xe9')
    """
    for fancy, plain in _ASCII.items():
        text = text.replace(fancy, plain)
    return text.encode("ascii", "backslashreplace").decode()
