"""Names of logs: patterns that match them, and similar names for one that is unknown."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern, such as ``"train/*"``, matches a name or is equal to it.

    >>> matches("train/*", "train/loss"), matches("loss[0]", "loss[0]"), matches("loss", "loss2")
    (True, True, False)
    """
    return pattern == name or fnmatch.fnmatchcase(name, pattern)


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether any of the patterns matches a name."""
    return any(matches(pattern, name) for pattern in patterns)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are most similar to ``name``, best first; at most three.

    >>> nearest("los", ["loss", "accuracy"])
    ['loss']
    """
    listed = sorted(set(known))
    folded = {each.casefold(): each for each in listed}
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    inside = [each for each in listed if name and name.casefold() in each.casefold()]
    return list(dict.fromkeys([folded[each] for each in close] + inside))[:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest names, or else with the known ones."""
    listed = sorted(set(known))
    close = nearest(name, listed)
    if close:
        return f"Hint: did you mean {' or '.join(map(repr, close))}?"
    if not listed:
        return "Hint: there are no names at all."
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return f"Hint: the names are {', '.join(map(repr, listed[:12]))}{more}."


@dataclasses.dataclass(frozen=True)
class ByName:
    """An option with one value for all names, or with values by name or pattern; hashable.

    >>> option = ByName.read({"loss": "mean", "train/*": "last"})
    >>> option.of("loss"), option.of("train/lr"), option.of("other")
    ('mean', 'last', None)
    """

    overall: Any = None
    named: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def read(cls, given: Any) -> ByName:
        """Read a user's option: a dict has values by name, anything else is for all names."""
        return cls(None, tuple(given.items())) if isinstance(given, Mapping) else cls(given)

    @property
    def names(self) -> tuple[str, ...]:
        """The names and patterns that have a value."""
        return tuple(name for name, _ in self.named)

    def names_it(self, key: str) -> bool:
        """Return whether a name or pattern with a value matches ``key``."""
        return matches_any(self.names, key)

    def of(self, key: str) -> Any:
        """Return the value for ``key``: by name, by the first matching pattern, or for all."""
        exact = dict(self.named)
        if key in exact:
            return exact[key]
        patterns = (value for pattern, value in self.named if matches(pattern, key))
        return next(patterns, self.overall)


#: An option without any value.
NOTHING = ByName()
