"""Loggers that store runs: on disk, in files, in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog._atomic import replacing
from sawlog._paths import absolute
from sawlog.errors import StoreExistsError
from sawlog.jax._runs.logger import Logger
from sawlog.jax._runs.runs import check_not_open
from sawlog.jax._saving.disk import LogSink
from sawlog.sinks import CsvSink, JsonlSink, MemorySink, Sink


def _with_metadata(sink: Sink, path: Path, about: Mapping[str, Any], exists: str) -> Sink:
    """Write the metadata of a run to a file next to it, and return the sink."""
    try:
        if exists == "append" and path.exists() and json.loads(path.read_text()) != dict(about):
            raise StoreExistsError(
                f"The run {path.stem!r} was started with other settings, which are in {path}, and "
                f"cannot continue with {about['config']}. Hint: exists='replace' deletes it first; "
                "or use another key."
            )
        with replacing(path) as file:
            file.write((json.dumps(about) + "\n").encode())
    except BaseException:
        sink.close()
        raise
    return sink


class SaveLogger(Logger):
    """Write each run to its own store, ``path/seed-0`` and so on.

    ``sawlog.load(path / "seed-0")`` returns the logs bit for bit: those of ``spool`` as
    :func:`sawlog.spool` would have returned them, those of several calls concatenated.

    Args:
        path: the folder of all runs. A run is named after its key: ``seed-7`` for
            ``jax.random.key(7)`` and for the seed 7, ``key-6b200159-99ba4efe`` for others; with
            ``init(key, name="ppo", group="sweep")`` it is ``sweep/ppo-seed-7``.
        exists: what to do with a run that already exists: ``"append"`` to it, ``"replace"`` it, or
            raise an ``"error"``. A run that this logger wrote itself is never replaced: a second
            ``init`` of a key continues its run.
        processes: which processes of a ``jax.distributed`` job write, see :class:`Logger`.
        options: those of :func:`sawlog.store.create`, such as ``nan="error"`` or ``interval=5.0``,
            the longest time in seconds until logs are on disk.

    ``sawlog.store.open(path / "seed-0").meta`` has the ``key`` of a run and its ``config``.
    Everything is on disk when ``flush``, ``finish`` or ``close`` returns, and at the end of the
    program.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        exists: str = "append",
        processes: str = "first",
        **options: Any,
    ) -> None:
        super().__init__(exists=exists, processes=processes)
        self.path = absolute(path)
        self._options = options

    def __repr__(self) -> str:
        return f"SaveLogger({str(self.path)!r}, exists={self._exists!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a store in a folder with the name of the run."""
        if exists == "replace":
            check_not_open(self.path / name)
        return LogSink(self.path / name, exists=exists, meta=about, **self._options)


class CsvLogger(Logger):
    """Write each run to its own CSV file, ``path/seed-0.csv``: name, steps, value.

    See :class:`sawlog.sinks.CsvSink` for the form of arrays. The file ``path/seed-0.json`` next to
    it has the ``key`` of the run and its ``config``.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, exists: str = "append", processes: str = "first"
    ) -> None:
        super().__init__(exists=exists, processes=processes)
        self.path = absolute(path)

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a file with the name of the run."""
        sink = CsvSink(self.path / f"{name}.csv", exists=exists)
        return _with_metadata(sink, self.path / f"{name}.json", about, exists)


class JsonlLogger(CsvLogger):
    """Write each run to a file of JSON lines, ``path/seed-0.jsonl``, with one line for each entry.

    The file ``path/seed-0.json`` next to it has the ``key`` of the run and its ``config``.
    """

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a file with the name of the run."""
        sink = JsonlSink(self.path / f"{name}.jsonl", exists=exists)
        return _with_metadata(sink, self.path / f"{name}.json", about, exists)


class MemoryLogger(Logger):
    """Keep the logs of each run in memory, for tests and notebooks.

    >>> import jax
    >>> logger = MemoryLogger()
    >>> logger.log(logger.init(7), {"loss": 0.5}, step=3)
    >>> logger.runs["seed-7"].logs["loss"]
    array([0.5], dtype=float32)
    """

    def __init__(self, *, exists: str = "append", processes: str = "first") -> None:
        super().__init__(exists=exists, processes=processes)
        self._runs: dict[str, MemorySink] = {}

    @property
    def runs(self) -> dict[str, MemorySink]:
        """The sink of each run by name, with everything logged so far."""
        self._settle()
        return self._runs

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a sink under the name of the run."""
        runs = self._runs
        if name in runs and exists == "error":
            raise StoreExistsError(f"The run {name!r} exists. Hint: exists='append'.")
        kept = runs[name].records if name in runs else None
        runs[name] = MemorySink()
        if kept:
            runs[name].write(kept)
        return runs[name]
