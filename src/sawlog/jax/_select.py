"""Which logs a transformation takes: by name and by tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.jax._site import Site


@dataclasses.dataclass(frozen=True)
class Selection:
    """The names and tags that were asked for; None means all."""

    argnames: frozenset[str] | None
    tags: frozenset[str] | None

    def keys(self, site: Site) -> tuple[str, ...]:
        """The names of a site that are taken."""
        if self.tags is not None and self.tags.isdisjoint(site.tags):
            return ()
        if self.argnames is None:
            return site.keys
        return tuple(key for key in site.keys if key in self.argnames)


def selection(argnames: Any, tags: Any) -> Selection:
    """Read ``argnames`` and ``tags``; a plain string is one name, not its letters."""
    return Selection(_names(argnames, "argnames"), _names(tags, "tags"))


def _names(given: str | Iterable[str] | None, what: str) -> frozenset[str] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(f"{what} takes a name or several names, got {name!r} among them.")
    return frozenset(names)
