"""Warnings about name patterns that match nothing."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from sawlog._names import did_you_mean
from sawlog.errors import UnmatchedNameWarning
from sawlog.records import Entries
from sawlog.sinks._logdict_metadata import is_value, matches, shown_name


class UnmatchedPatterns:
    """Warns once of patterns that match no logged name."""

    def __init__(self, what: str, patterns: Iterable[str]) -> None:
        self._what = what
        self._left = dict.fromkeys(pattern for pattern in patterns if pattern != "*")
        self._seen: set[str] = set()

    def see(self, records: Iterable[tuple[str, Entries]]) -> None:
        """Match names that were logged."""
        if not self._left:
            return
        for name, entries in records:
            if name not in self._seen and is_value(entries):
                self._seen.add(name)
                self._seen.add(shown_name(name, entries))
                for pattern in [each for each in self._left if matches(name, entries, each)]:
                    del self._left[pattern]

    def warn(self) -> None:
        """Warn of patterns that matched nothing, if anything was logged at all."""
        if not self._left or not self._seen:
            return
        left, self._left = list(self._left), {}
        for pattern in left:
            warn_unmatched(
                f"{self._what}: no logged name matches {pattern!r}. "
                f"{did_you_mean(pattern, self._seen)}"
            )


def warn_unmatched(text: str) -> None:
    """Warn of a name that matches nothing; with ``-W error``, print instead of failing a sink."""
    try:
        warnings.warn(text, UnmatchedNameWarning, stacklevel=4)
    except UnmatchedNameWarning:
        print(f"{UnmatchedNameWarning.__name__}: {text}", file=sys.stderr)
