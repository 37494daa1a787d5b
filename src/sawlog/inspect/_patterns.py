"""Names of logs that match patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from sawlog.store._format._schema import unknown_name


def matching_names(
    names: Iterable[str], patterns: Sequence[str], lacks: str = "This store has no log named"
) -> list[str]:
    """Return the names that match any of the patterns, in their own order; without any, all.

    ``lacks`` is the beginning of the sentence that says that a name does not exist.

    >>> matching_names(["loss", "grad/a", "grad/b"], ["grad/*", "loss"])
    ['loss', 'grad/a', 'grad/b']

    Raises:
        UnknownNameError: no name matches one of the patterns.
    """
    known = dict.fromkeys(names)
    found: set[str] = set()
    for pattern in patterns:
        matches = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not matches:
            raise unknown_name(pattern, known, lacks=lacks)
        found.update(matches)
    return [name for name in known if name in found] if patterns else list(known)
