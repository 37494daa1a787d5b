"""``Select``: write some names only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records
from sawlog.sinks._base import Sink, WrapperSink
from sawlog.sinks._logdict_metadata import matches
from sawlog.sinks._unmatched import UnmatchedPatterns

Patterns = str | Iterable[str]


class Select(WrapperSink):
    """Write the names that match; drop the others.

    Args:
        sink: the sink to write to.
        names: a pattern or several, such as ``"train/*"`` (``*``, ``?`` and ``[abc]`` as in a
            shell; case-sensitive). A pattern that equals a name selects that name, even if it has
            special characters. The key of a pytree logged from JAX selects all its leaves, and
            ``loss/policy`` selects one. None selects all names.
        exclude: patterns of names to drop from these.

    The first ``flush``, or ``close``, reports patterns that match nothing by an
    :class:`~sawlog.errors.UnmatchedNameWarning` with the nearest names.

    Raises:
        ArgumentError: ``sink`` is not a sink, a pattern is not a string, or neither ``names`` nor
            ``exclude`` is given.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> memory = MemorySink()
    >>> sink = Select(memory, names=["train/*", "lr"], exclude="*/grad")
    >>> names = ("train/loss", "train/grad", "lr", "x")
    >>> sink.write(Records({name: Entries(np.ones(1)) for name in names}))
    >>> list(memory.logs)
    ['train/loss', 'lr']
    """

    def __init__(
        self, sink: Sink, names: Patterns | None = None, *, exclude: Patterns | None = None
    ) -> None:
        super().__init__(sink)
        if names is None and exclude is None:
            raise ArgumentError(
                "Select needs `names` or `exclude`. "
                'Hint: Select(sink, names="train/*"), or exclude="debug/*".'
            )
        self._names = ("*",) if names is None else _patterns(names, "names")
        self._exclude = () if exclude is None else _patterns(exclude, "exclude")
        self._unmatched = UnmatchedPatterns("Select", (*self._names, *self._exclude))

    def __repr__(self) -> str:
        return f"Select({self._sink!r}, names={self._names!r}, exclude={self._exclude!r})"

    def _write(self, records: Records) -> None:
        self._forward({n: entries for n, entries in records.items() if self._takes(n, entries)})
        self._unmatched.see(records.items())

    def _flush(self) -> None:
        self._unmatched.warn()
        super()._flush()

    def _close(self) -> None:
        self._unmatched.warn()
        super()._close()

    def _takes(self, name: str, entries: Entries) -> bool:
        return any(matches(name, entries, pattern) for pattern in self._names) and not any(
            matches(name, entries, pattern) for pattern in self._exclude
        )


def _patterns(given: Any, what: str) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str) else given
    patterns = tuple(several) if isinstance(several, Iterable) else (None,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        hint = f'{what}="loss" or {what}=["loss", "train/*"].'
        refuse(what, "a pattern or a list of patterns", given, hint)
    return patterns
