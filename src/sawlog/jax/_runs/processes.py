"""Runs in a job of ``jax.distributed``: which process writes what.

By default the first process writes. All processes run the same program, so what the others log
outside of programs over all devices is the same, and is dropped. Programs over the devices of all
processes call back in the process of the first device only, except for logs inside of
``shard_map``, which belong to one shard each: those of another process would be lost, so they are
an error.
"""

from __future__ import annotations

from typing import Any

from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks import BaseSink


class OtherProcessSink(BaseSink):
    """Drops what a process logs that is not the first.

    Args:
        name: the name of the run, for messages.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _write(self, records: Records) -> None:
        del records

    def refuse_shards(self, names: Any) -> None:
        """Raise an ArgumentError for logs of single shards, which no other process has."""
        raise ArgumentError(
            f"{', '.join(map(repr, names))} was logged inside of shard_map on devices of this "
            f"process, and only the first process writes the run {self.name!r}. Hint: create the "
            'logger with processes="each" for one run in each process, or log a value that is the '
            "same on all devices, such as jax.lax.pmean(x, axis), outside of shard_map."
        )
