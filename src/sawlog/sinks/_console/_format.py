"""Numbers and times as text, in widths that do not jump about."""

from __future__ import annotations

import math

from sawlog.sinks._console._digest import Number

_PLAIN = {"±": "+/-", "…": "...", "━": "#", "╸": "#", "─": "-", "·": "-"}


def number(value: Number) -> str:
    """A number with four digits that count; whole ones as they are.

    >>> [number(value) for value in (3, 0.5, -12.3456, 12345.6, 1e-9, 2**64, float("inf"))]
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
    """A standard deviation: two digits that count.

    >>> spread(0.02), spread(0.0), spread(1234.5), spread(1e-7)
    ('0.020', '0', '1,234', '1.0e-07')
    """
    if value == 0:
        return "0"
    if 9.95 <= abs(value) < 999999.5:
        return f"{value:,.0f}"
    return f"{value:#.2g}"


def step(value: Number) -> str:
    """A step.

    >>> step(12345), step(0.25)
    ('12,345', '0.25')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(59.9), duration(3661), duration(100 * 3600)
    ('0:00:59', '1:01:01', '4d 4:00:00')
    """
    if not math.isfinite(seconds) or seconds >= 1000 * 86400:
        return "years"
    minutes, whole = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{whole:02}"


def rate(value: float) -> str:
    """How many a second, with three digits that count.

    >>> rate(1234.5), rate(105.2), rate(1.234), rate(0.01234)
    ('1,234', '105', '1.23', '0.0123')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def shape(sizes: tuple[int, ...]) -> str:
    """The shape of an array.

    >>> shape((3, 4))
    '[3,4]'
    """
    return f"[{','.join(map(str, sizes))}]"


def count(many: int, one: str) -> str:
    """A number with what it counts.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{many:,} {one}{'' if many == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """Text of at most so many characters, cut in the middle: both ends of a name tell it apart.

    >>> shortened("encoder/layers/12/attention/norm", 16)
    'encoder/…on/norm'
    """
    if len(text) <= most:
        return text
    if most < 5:
        return text[:most]
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def ascii_only(text: str) -> str:
    """The same without what an old terminal or file cannot show.

    >>> ascii_only("1 ± 2 …"), ascii_only("é")
    ('1 +/- 2 ...', '\\\\xe9')
    """
    for fine, plain in _PLAIN.items():
        text = text.replace(fine, plain)
    return text.encode("ascii", "backslashreplace").decode()
