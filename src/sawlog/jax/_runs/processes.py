"""Runs in a job of ``jax.distributed``: which process writes what.

By default the first process writes. All processes run the same program, so what the others log
outside of programs over all devices is the same, and is dropped. Programs over the devices of all
processes call back in the process of the first device only, except for logs inside of
``shard_map``, which belong to one shard each: those of another process would be lost, so they are
an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks import BaseSink


class OtherProcessSink(BaseSink):
    """Drops what a process logs that is not the first."""

    def _write(self, records: Records) -> None:
        del records


def shards_error(names: Iterable[str], run: str) -> ArgumentError:
    """Return the error for logs of single shards, some of which other processes have."""
    return ArgumentError(
        f"{', '.join(map(repr, names))} was logged inside of shard_map, by the devices of several "
        f"processes, and only the first process writes the run {run!r}. Hint: create the logger "
        'with processes="each" for one run in each process; or log outside of shard_map.'
    )
