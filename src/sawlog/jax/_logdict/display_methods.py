"""How a logdict shows itself: as text, and as a table in notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from sawlog.jax._logdict.entries import LogdictPart


class DisplayMethods:
    """``repr`` of a logdict, and its table in notebooks."""

    __slots__ = ()

    def _parts(self) -> Iterator[LogdictPart]:
        raise NotImplementedError

    def __repr__(self) -> str:
        from sawlog.jax._logdict.display import describe

        return describe(list(self._parts()))

    def _repr_html_(self) -> str:
        """Return the keys as a small table for notebooks."""
        from sawlog.jax._logdict.display import describe_html

        return describe_html(list(self._parts()))
