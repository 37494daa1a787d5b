"""``MemorySink``: keep logs in memory, for tests and notebooks."""

from __future__ import annotations

import numpy as np

from sawlog.records import Entries, Records
from sawlog.sinks._base import BaseSink
from sawlog.sinks._entries import check_alike, copied, deepened, joined, logged
from sawlog.sinks._logdict_metadata import DisplayedNames, is_news


class MemorySink(BaseSink):
    """Keep everything in memory, also after ``close``.

    Raises:
        LogMismatchError: from ``write``: a name has another dtype, shape or other step axes than
            before.

    >>> from sawlog.records import Entries, Records
    >>> sink = MemorySink()
    >>> for i in range(3):
    ...     sink.write(Records({"loss": Entries(np.array([1 / (i + 1)]), {"step": np.array([i])})}))
    >>> sink.logs["loss"], sink.records["loss"].steps["step"]
    (array([1.        , 0.5       , 0.33333333]), array([0, 1, 2]))
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, list[Entries]] = {}

    def __repr__(self) -> str:
        return f"MemorySink({', '.join(self._parts)})"

    def _write(self, records: Records) -> None:
        for name, entries in records.items():
            if name in self._parts:
                check_alike(name, self._parts[name][0], entries)
        for name, entries in records.items():
            self._parts.setdefault(name, []).append(copied(entries))

    @property
    def records(self) -> Records:
        """All entries of every name, with steps, masks, and the attributes of the first write."""
        with self._turn.taken():
            for name, parts in self._parts.items():
                self._parts[name] = [joined(parts)]
            return Records({name: parts[0] for name, parts in self._parts.items()})

    @property
    def logs(self) -> dict[str, np.ndarray]:
        """The values of every name, ``[n, ...]``, without entries that are masked entirely.

        ``{"loss": {"policy": x}}``, logged from JAX, has the name ``loss/policy``. If only parts of
        an entry were logged, such as some lanes of a ``vmap``, the array is a masked array.
        """
        records = DisplayedNames().records(self.records)
        shown = {name: entries for name, entries in records.items() if is_news(entries)}
        return {name: _with_mask(logged(entries)) for name, entries in shown.items()}

    def clear(self) -> None:
        """Remove all entries."""
        with self._turn.taken():
            self._parts.clear()


def _with_mask(entries: Entries) -> np.ndarray:
    """Return the values, as a masked array if some were not logged."""
    if entries.mask is None or entries.mask.all():
        return entries.values
    mask = np.broadcast_to(deepened(entries.mask, entries.values.ndim), entries.values.shape)
    return np.ma.array(entries.values, mask=~mask)
