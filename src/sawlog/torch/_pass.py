"""One pass over the data: rows go to a store, statistics are added up and saved."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog import store
from sawlog.capture import (
    Block,
    Measured,
    Options,
    Report,
    Statistics,
    label_of,
    logs_of,
    measured,
)
from sawlog.capture import checkpoint as saved
from sawlog.errors import ArgumentError, DuplicateIdError
from sawlog.influence import Logs
from sawlog.torch._capture import Gathering
from sawlog.torch._known import Known
from sawlog.torch._matrices import Matrices
from sawlog.torch._watched import Watched


class Pass:
    """One pass over the data with the same options: a store for rows, and statistics."""

    def __init__(
        self, path: Path, project: str, options: Options, watched: Watched, axis: int
    ) -> None:
        self._options, self._watched, self._axis = options, watched, axis
        label = label_of(options)
        self._logs = logs_of(path, options)
        self._folder = path / "statistics" / label / "+".join(options.statistic or ("none",))
        self._about = {
            "project": project,
            "options": options.to_json(),
            "blocks": [block.to_json() for block in watched.blocks],
        }
        whole = measured(path, "whole", watched.blocks)
        bases = None
        if "ekfac" in options.statistic:
            bases = _bases(measured(path, label, watched.blocks), watched.blocks)
        self._matrices = Matrices(watched.blocks, options.compress, whole, bases)
        self._statistics = Statistics(options.precision, offload=options.offload)
        self._writer: store.Writer | None = None
        self.known = Known()
        self._rooms: dict[Any, Tensor] = {}
        self._counted: list[np.ndarray] = []
        self._saved_at = time.monotonic()
        self.nbytes = 0
        if options.saved:
            self._writer = store.create(
                self._logs,
                exists="append",
                meta=self._about,
                duplicates="replace" if options.duplicates == "last" else "first",
                interval=options.interval,
                segment_bytes=_segment_bytes(watched.blocks, options.dtype),
            )
            _check_about(self._writer.meta, self._about, self._logs)
        self._resume()

    def _resume(self) -> None:
        there: np.ndarray | None = None
        if self._options.statistic:
            loaded = saved.load(self._folder)
            if loaded is not None:
                arrays, there, about = loaded
                _check_about(about, self._about, self._folder)
                tensors = {name: (torch.from_numpy(a), n) for name, (a, n) in arrays.items()}
                self._statistics.load(tensors)
                if there is not None:
                    self._counted.append(there)
        elif self._writer is not None and self._writer.schema:
            with store.open(self._logs) as reader:
                if reader.names:
                    there = np.asarray(reader.ids(reader.names[0]))
        if there is not None and self._options.duplicates != "last":
            self.known.begin_with(there)

    def todo(self, ids: np.ndarray) -> np.ndarray:
        """Which examples of a batch are to be logged.

        Raises:
            DuplicateIdError: one was logged before by this very pass.
        """
        twice = self.known.seen_now(ids)
        if self._options.duplicates == "error" and twice.any():
            listed = ", ".join(map(repr, ids[twice][:5].tolist()))
            raise DuplicateIdError(
                f"{int(twice.sum())} of the ids were logged before: {listed}. Nothing of this "
                "batch was logged. Hint: give each example an id of its own; "
                "run.setup(duplicates='first') or 'last' keeps one of several."
            )
        if self._options.duplicates == "last":
            return np.ones(len(ids), bool)
        return self.known.missing(ids)

    def gathering(
        self, batch: int, todo: Tensor | None, mask: Tensor | None, scaler: Any, views: int = 1
    ) -> Gathering:
        """What gathers the logs of a batch."""
        factor = 1.0 if scaler is None else float(scaler.get_scale())
        return Gathering(
            self._watched,
            self._options,
            self._matrices,
            self._statistics,
            batch=batch,
            todo=todo,
            mask=mask,
            factor=factor,
            axis=self._axis,
            rooms=self._rooms,
            views=views,
        )

    def finish(self, batch: Gathering, ids: np.ndarray) -> None:
        """Write what a batch gathered."""
        logs = batch.rows(len(ids))
        if self._writer is not None:
            columns = batch.columns(logs)
            self._writer.append(ids, columns)
            self.nbytes += sum(column.nbytes for column in columns.values())
        if self._options.statistic:
            batch.add_statistics(logs, len(ids))
            self._counted.append(ids)
        self.known.add(ids)
        if time.monotonic() - self._saved_at > self._options.interval:
            self.flush()

    def flush(self) -> None:
        """Put everything on disk: rows first, so that what is counted is stored."""
        if self._writer is not None:
            self._writer.flush()
        if self._options.statistic:
            ids = np.concatenate(self._counted) if self._counted else np.zeros(0, np.int64)
            saved.save(self._folder, self._statistics.arrays(), ids, self._about)
        self._saved_at = time.monotonic()

    def fail(self) -> None:
        """Note that the program failed."""
        if self._writer is not None:
            self._writer.fail()

    def close(self) -> None:
        """Flush, and end."""
        self.flush()
        if self._writer is not None:
            self._writer.close()


def _segment_bytes(blocks: Sequence[Block], dtype: str) -> int:
    """Small files, so that little is left to write at the end, but with hundreds of rows each."""
    rows = 256 * Report(tuple(blocks), dtype).bytes_per_example
    return min(32 << 20, max(16 << 20, rows))


class Asking:
    """Batches of queries: logged as the rest is, and given back instead of stored."""

    def __init__(self, path: Path, options: Options, watched: Watched, axis: int) -> None:
        self._options = dataclasses.replace(options, statistic=(), save=None)
        self._watched, self._axis = watched, axis
        whole = measured(path, "whole", watched.blocks)
        self._matrices = Matrices(watched.blocks, options.compress, whole)

    def gathering(
        self, batch: int, todo: Tensor | None, mask: Tensor | None, scaler: Any, views: int = 1
    ) -> Gathering:
        """What gathers the logs of a batch."""
        return Gathering(
            self._watched,
            self._options,
            self._matrices,
            Statistics(),
            batch=batch,
            todo=todo,
            mask=mask,
            factor=1.0 if scaler is None else float(scaler.get_scale()),
            axis=self._axis,
            views=views,
        )

    def log(self, batch: Gathering, ids: np.ndarray) -> Logs:
        """What a batch gathered, exactly: queries are few, and are not made smaller."""
        rows = batch.rows(len(ids))
        return Logs({name: rows[name].cpu().numpy() for name in rows}, ids=ids)


def _bases(
    found: Measured | None, blocks: Sequence[Block]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if found is None:
        raise ArgumentError(
            'statistic="ekfac" corrects the eigenvalues of K-FAC, which was not measured. Hint: '
            'run over the data with statistic="kfac" and the same compression, finalize(), and '
            "set up again."
        )
    return {block.name: found.eigenbasis(block.name) for block in blocks}


def _check_about(there: Any, now: Any, where: Path) -> None:
    """A run goes on only with what it began with."""
    for key in ("options", "blocks"):
        if there.get(key) != now[key]:
            was, wanted = there.get(key), now[key]
            if key == "options":
                differing = sorted(k for k in wanted if (was or {}).get(k) != wanted[k])
                differing = [k for k in differing if k not in ("interval", "offload")]
                if not differing:
                    continue
                said = {k: ((was or {}).get(k), wanted[k]) for k in differing}
                text = ", ".join(f"{k} was {a!r}, now {b!r}" for k, (a, b) in said.items())
            else:
                text = "other layers, or other shapes of them, were watched"
            raise ArgumentError(
                f"The logs at {where} were begun otherwise: {text}. Hint: another project, or "
                "sawlog.init(project, exists='replace')."
            )
