"""Names of logs: patterns that match them, and the nearest ones to a name that matches nothing."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable


def matches(pattern: str, name: str) -> bool:
    """Whether ``pattern`` is the name, or a pattern such as ``"train/*"`` that it matches.

    >>> matches("train/*", "train/loss"), matches("loss[0]", "loss[0]"), matches("loss", "loss2")
    (True, True, False)
    """
    return pattern == name or fnmatch.fnmatchcase(name, pattern)


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Whether any of the patterns matches the name."""
    return any(matches(pattern, name) for pattern in patterns)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names most like ``name``, best first; at most three.

    >>> nearest("los", ["loss", "accuracy"])
    ['loss']
    """
    listed = sorted(set(known))
    folded = {each.casefold(): each for each in listed}
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    inside = [each for each in listed if name and name.casefold() in each.casefold()]
    return list(dict.fromkeys([folded[each] for each in close] + inside))[:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest names, or else those that there are."""
    listed = sorted(set(known))
    close = nearest(name, listed)
    if close:
        return f"Hint: did you mean {' or '.join(map(repr, close))}?"
    if not listed:
        return "Hint: there are no names at all."
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return f"Hint: the names are {', '.join(map(repr, listed[:12]))}{more}."
