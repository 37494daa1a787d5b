"""``Prefix``: add a prefix to names."""

from __future__ import annotations

import dataclasses

from sawlog._validate import string
from sawlog.records import Records
from sawlog.sinks._base import Sink, WrapperSink
from sawlog.sinks._logdict_metadata import prefixed


class Prefix(WrapperSink):
    """Add a prefix to every name.

    Raises:
        ArgumentError: ``sink`` is not a sink, or the prefix is not a string.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> memory = MemorySink()
    >>> Prefix(memory, "eval/").write(Records({"loss": Entries(np.array([0.5]))}))
    >>> memory.logs
    {'eval/loss': array([0.5])}
    """

    def __init__(self, sink: Sink, prefix: str) -> None:
        super().__init__(sink)
        self._prefix = string("prefix", prefix)

    def __repr__(self) -> str:
        return f"Prefix({self._sink!r}, {self._prefix!r})"

    def _write(self, records: Records) -> None:
        self._forward(
            {
                self._prefix + name: dataclasses.replace(
                    entries, attrs=prefixed(entries.attrs, self._prefix)
                )
                for name, entries in records.items()
            }
        )
