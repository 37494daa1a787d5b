"""Select the logs that a transformation uses, by name and by tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sawlog._names import matches_any
from sawlog._validate import refuse, string
from sawlog.jax._core.site import Site


@dataclasses.dataclass(frozen=True)
class Selection:
    """The selected names and tags, or patterns of those; None means all."""

    argnames: frozenset[str] | None
    tags: frozenset[str] | None

    def keys(self, site: Site) -> tuple[str, ...]:
        """Return the names of a site that are selected."""
        if self.tags is not None and not any(matches_any(self.tags, tag) for tag in site.tags):
            return ()
        if self.argnames is None:
            return site.keys
        return tuple(key for key in site.keys if matches_any(self.argnames, key))


def selection(argnames: Any, tags: Any) -> Selection:
    """Read ``argnames`` and ``tags``; a string is one name."""
    return Selection(_names(argnames, "argnames"), _names(tags, "tags"))


def _names(given: str | Iterable[str] | None, what: str) -> frozenset[str] | None:
    if given is None:
        return None
    several = (given,) if isinstance(given, str) else given
    names = tuple(several) if isinstance(several, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        hint = f'{what}="loss" or {what}=["loss", "accuracy"].'
        refuse(what, "a name or several names", given, hint)
    return frozenset(names)


def check_prefix(prefix: Any) -> None:
    """Check that a prefix is a string.

    Raises:
        ArgumentError: it is not.
    """
    string("prefix", prefix, 'prefix="train/"')
