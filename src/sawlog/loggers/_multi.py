"""``MultiLogger``: several loggers for one program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.jax._runs.logger import Logger
from sawlog.jax._runs.run_warnings import RunWarnings
from sawlog.sinks import Fanout, Sink


class MultiLogger(Logger):
    """Write each run to several loggers: ``MultiLogger(SaveLogger("runs"), CsvLogger("csv"))``.

    The program is traced once and calls back once, for any number of loggers. Each logger has its
    own options ``exists`` and ``processes``.
    """

    def __init__(self, *loggers: Logger) -> None:
        super().__init__(processes="any")
        if not loggers:
            raise ArgumentError(
                'MultiLogger needs at least one logger. Hint: MultiLogger(SaveLogger("runs"), ...).'
            )
        self.loggers = loggers

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a sink around those of all loggers for this run."""
        opened: list[Sink] = []
        try:
            for logger in self.loggers:
                opened.append(logger._sink_of(name, about))
        except BaseException:
            for sink in opened:
                sink.close()
            raise
        return Fanout(*opened)

    def _only_first(self) -> bool:
        return any(logger._only_first() for logger in self.loggers)

    def _warn_started(self) -> None:
        for logger in self.loggers:
            logger._warn_started()

    def _all_warnings(self) -> list[RunWarnings]:
        return [each for logger in self.loggers for each in logger._all_warnings()]
