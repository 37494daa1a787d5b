"""One pass over the data: rows go to a store, statistics are added up and saved."""

from __future__ import annotations

import dataclasses
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sawlog import store
from sawlog._array_device import to_numpy
from sawlog.errors import CaptureError, DuplicateIdError, WeightsMismatchError
from sawlog.influence import Logs
from sawlog.run_files import _checkpoint as saved
from sawlog.run_files import ragged
from sawlog.run_files._blocks import Block, Report
from sawlog.run_files._folders import label_of, logs_of, measured, statistics_of
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import CHANGING, Provenance, check_same_weights, note, noted
from sawlog.run_files._statistics import Staged, Statistics
from sawlog.torch._begun import (
    REMEDY,
    check_about,
    check_projection,
    matrices_of,
    projection_fingerprint,
)
from sawlog.torch._capture import Gathering
from sawlog.torch._fingerprint import Fingerprint
from sawlog.torch._finite import Odd, odd_rows, odd_sums
from sawlog.torch._known import Claims, Known
from sawlog.torch._watched import Watched


class Pass:
    """One pass over the data with the same options: a store for rows, and statistics."""

    def __init__(
        self,
        path: Path,
        project: str,
        options: Options,
        watched: Watched,
        axis: int,
        fingerprint: Fingerprint,
    ) -> None:
        self._options, self._watched, self._axis = options, watched, axis
        self._logs = logs_of(path, options)
        self._folder = statistics_of(path, options)
        self._part = self._folder / f"part-{uuid.uuid4().hex[:16]}"
        found = None
        if "ekfac" in options.statistic:
            found = measured(path, label_of(options), watched.blocks)
        self._matrices = matrices_of(path, options, watched, found)
        self._fingerprint = fingerprint
        self._provenance = fingerprint.now(projection_fingerprint(self._matrices, options))
        self._about = {
            "project": project,
            "options": options.to_json(),
            "blocks": [block.to_json() for block in watched.blocks],
            "provenance": self._provenance.to_json(),
            "factors": None if found is None else found.factors(),
        }
        if found is not None:
            self._check_weights(found.provenance, f"the statistics at {self._folder.parent}")
        self._statistics = Statistics(options.precision, offload=options.offload)
        self._staged = Staged()
        self._writer: store.Writer | None = None
        self.known = Known()
        self._claims = Claims(self._folder / options.dtype)
        self._rooms: dict[Any, Tensor] = {}
        self._counted: list[np.ndarray] = []
        self._saved_at = time.monotonic()
        self._changing = False
        self._is_noted = False
        self.nbytes = 0
        self._resume()
        if options.saved:
            self._open_store()

    def _open_store(self) -> None:
        said = {name: self._about[name] for name in ("project", "options", "blocks")}
        self._writer = store.create(
            self._logs,
            exists="append",
            meta=said,
            duplicates="replace" if self._options.duplicates == "last" else "first",
            interval=self._options.interval,
            segment_bytes=_segment_bytes(self._watched.blocks, self._options.dtype),
        )
        try:
            check_about(self._writer.meta, said, self._logs)
            with store.open(self._logs) as reader:
                there = noted(reader)
                tables = reader.schema.tables
                ids = np.asarray(reader.ids(tables[0].names[0])) if tables else None
            self._check_weights(there, f"the rows at {self._logs}")
            check_projection(there, self._provenance, self._logs)
        except BaseException:
            self._writer.close()
            raise
        if not self._options.statistic and ids is not None and self._options.duplicates != "last":
            self.known.begin_with(ids)

    def _resume(self) -> None:
        """Take in which examples are in statistics already, whoever measured them."""
        if not self._options.statistic:
            return
        there: list[np.ndarray] = []
        for part in saved.load_parts(self._folder):
            check_about(part.about, self._about, self._folder)
            own = Provenance.from_json(part.about["provenance"])
            self._check_weights([own], f"the statistics at {self._folder}")
            there += [] if part.ids is None else [part.ids]
        if there:
            self.known.begin_with(np.concatenate(there))

    # -- the weights ------------------------------------------------------------------------------

    def _check_weights(self, there: Sequence[Provenance], what: str) -> None:
        """What is there must come from the weights of now."""
        if self._options.weights != "any":
            check_same_weights(there, [self._provenance], what, "the model now", REMEDY)

    def _check_unchanged(self) -> None:
        """Rows of one pass come from the same weights."""
        if self._changing:
            return
        changed = self._fingerprint.changed()
        if not changed:
            return
        if self._options.weights != "any":
            listed = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
            raise WeightsMismatchError(
                f"The weights of the model changed since this pass over the data began, which was "
                f"with the weights {self._provenance.short}: {len(changed)} tensors are others "
                f"({listed}). Gradients of different weights do not go together. Hint: finish the "
                "pass before the next optimizer.step(), and log each checkpoint to a project of "
                "its own; model.eval() where a forward pass changes buffers; "
                'run.setup(weights="any") allows it knowingly.'
            )
        self._changing = True
        self._provenance = dataclasses.replace(self._provenance, weights=CHANGING, tensors={})
        self._about["provenance"] = self._provenance.to_json()
        self._is_noted = False

    # -- a batch ----------------------------------------------------------------------------------

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
        return self._claims.take(ids, self.known.missing(ids))

    def gathering(
        self, batch: int, todo: Tensor | None, mask: Tensor | None, scaler: Any, views: int = 1
    ) -> Gathering:
        """What gathers the logs of a batch."""
        self._check_unchanged()
        self._staged = Staged()
        factor = 1.0 if scaler is None else float(scaler.get_scale())
        return Gathering(
            self._watched,
            self._options,
            self._matrices,
            self._staged,
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
        batch.add_statistics(logs, len(ids))
        good = self._good(logs, ids)
        if self._writer is not None and good.any():
            columns = batch.columns(logs)
            if not good.all():
                columns = {name: rows[good] for name, rows in columns.items()}
            if not self._is_noted:
                note(self._writer, self._provenance)
                self._is_noted = True
            self.nbytes += ragged.append(self._writer, ids[good], columns)
        if self._options.statistic:
            self._staged.commit(self._statistics)
            self._counted.append(ids)
        self.known.add(ids)
        if time.monotonic() - self._saved_at > self._options.interval:
            self.flush()

    def _good(self, logs: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
        """Which examples are stored: those with finite logs, or all, as the options say.

        Raises:
            CaptureError: the options refuse others, or statistics would become infinite or NaN.
        """
        every = np.ones(len(ids), bool)
        if self._options.nonfinite == "store":
            return every
        kept = {n: rows for n, rows in logs.items() if n.partition("/")[0] in self._options.saved}
        odd = odd_rows(kept, len(ids), self._options.dtype)
        if odd is not None:
            if self._options.nonfinite == "error" or self._options.statistic:
                raise CaptureError(_odd_text(odd, ids, self._options))
            warnings.warn(
                f"{int(odd.rows.sum())} examples were left out, whose logs are not finite: "
                f"{_listed(ids[odd.rows])}.",
                stacklevel=5,
            )
            return ~odd.rows
        sums = odd_sums(self._staged) if self._options.statistic else ()
        if sums:
            raise CaptureError(
                f"The statistics of this batch are infinite or NaN ({', '.join(sums[:3])}), for "
                f"the examples {_listed(ids)}. Nothing of this batch was logged. Hint: look for a "
                "loss or an input that is NaN, or overflows."
            )
        return every

    def flush(self) -> None:
        """Put everything on disk: rows first, so that what is counted is stored."""
        if self._writer is not None:
            self._writer.flush()
        if self._counted:
            ids = np.concatenate(self._counted)
            saved.save(self._part, self._statistics.arrays(), ids, self._about)
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


def _odd_text(odd: Odd, ids: np.ndarray, options: Options) -> str:
    listed, names = _listed(ids[odd.rows]), ", ".join(odd.names[:3])
    head = f"The logs of {int(odd.rows.sum())} of {len(ids)} examples"
    if odd.fits:
        said = (
            f"{head} have numbers too large for dtype={options.dtype!r} ({names}), of the examples "
            f"{listed}: they would be stored as infinite. Nothing of this batch was logged. Hint: "
            'run.setup(dtype="bfloat16") or "float32"'
        )
    else:
        said = (
            f"{head} are infinite or NaN ({names}), of the examples {listed}. Nothing of this "
            "batch was logged. Hint: look for a loss or an input that is NaN, or overflows"
        )
    if options.statistic:
        return f"{said}; leave these examples out of the batch, as statistics would have them."
    return f'{said}; run.setup(nonfinite="skip") leaves such examples out, "store" stores them.'


def _listed(ids: np.ndarray) -> str:
    return ", ".join(map(repr, ids[:5].tolist())) + (", ..." if len(ids) > 5 else "")


def _segment_bytes(blocks: Sequence[Block], dtype: str) -> int:
    """Small files, so that little is left to write at the end, but with hundreds of rows each."""
    rows = 256 * Report(tuple(blocks), dtype).bytes_per_example
    return min(32 << 20, max(16 << 20, rows))


class Asking:
    """Batches of queries: logged as the rest is, and given back instead of stored."""

    def __init__(
        self, path: Path, options: Options, watched: Watched, axis: int, fingerprint: Fingerprint
    ) -> None:
        self._options = dataclasses.replace(options, statistic=(), save=None)
        self.watched, self._axis, self._fingerprint = watched, axis, fingerprint
        self.matrices = matrices_of(path, self._options, watched, None)
        self._projection = projection_fingerprint(self.matrices, options)
        self._provenance = fingerprint.now(self._projection)

    def gathering(
        self, batch: int, todo: Tensor | None, mask: Tensor | None, scaler: Any, views: int = 1
    ) -> Gathering:
        """What gathers the logs of a batch."""
        if self._fingerprint.changed():
            self._provenance = self._fingerprint.now(self._projection)
        return Gathering(
            self.watched,
            self._options,
            self.matrices,
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
        if self._options.nonfinite != "store":
            odd = odd_rows(rows, len(ids), "float64")
            if odd is not None:
                raise CaptureError(_odd_text(odd, ids, self._options))
        meta = {
            "options": self._options.to_json(),
            "blocks": [block.to_json() for block in self.watched.blocks],
            "provenance": [self._provenance.to_json()],
        }
        return Logs({name: to_numpy(each) for name, each in rows.items()}, ids=ids, meta=meta)
