"""Which logs a transformation takes: by name and by tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sawlog._names import matches_any
from sawlog.errors import ArgumentError
from sawlog.jax._core.site import Site


@dataclasses.dataclass(frozen=True)
class Selection:
    """The names and tags that were asked for, or patterns of those; None means all."""

    argnames: frozenset[str] | None
    tags: frozenset[str] | None

    def keys(self, site: Site) -> tuple[str, ...]:
        """The names of a site that are taken."""
        if self.tags is not None and not any(matches_any(self.tags, tag) for tag in site.tags):
            return ()
        if self.argnames is None:
            return site.keys
        return tuple(key for key in site.keys if matches_any(self.argnames, key))


def selection(argnames: Any, tags: Any) -> Selection:
    """Read ``argnames`` and ``tags``; a plain string is one name, not its letters."""
    return Selection(_names(argnames, "argnames"), _names(tags, "tags"))


def _names(given: str | Iterable[str] | None, what: str) -> frozenset[str] | None:
    if given is None:
        return None
    several = (given,) if isinstance(given, str) else given
    names = tuple(several) if isinstance(several, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"{what} takes a name or several names, got {given!r}. "
            f'Hint: {what}="loss" or {what}=["loss", "accuracy"].'
        )
    return frozenset(names)


def check_prefix(prefix: Any) -> None:
    """Refuse a prefix that is no string.

    Raises:
        ArgumentError: naming what was given.
    """
    if not isinstance(prefix, str):
        raise ArgumentError(f'prefix must be a string, as in prefix="train/", got {prefix!r}.')
