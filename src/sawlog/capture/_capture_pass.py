"""``CapturePass``: one pass over the data, from batches to the store and the statistics."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog.capture._backend import ActiveBatch, Backend, BatchRequest
from sawlog.capture._data_ids import are_kept
from sawlog.capture._label_sampling import check_no_rows
from sawlog.capture._nonfinite import check_sums, rows_to_store
from sawlog.capture._pass_matrices import pass_matrices
from sawlog.capture._ranks import Ranks
from sawlog.capture._resume import (
    REMEDY,
    check_projection,
    check_same_fisher,
    check_same_setup,
)
from sawlog.capture._seen_ids import Claims, SeenIds
from sawlog.errors import DuplicateIdError, WeightsMismatchError
from sawlog.run_files import _checkpoint as checkpoint
from sawlog.run_files import ragged
from sawlog.run_files._blocks import Block, Report
from sawlog.run_files._folders import label_of, logs_of, measured, statistics_of
from sawlog.run_files._log_names import kind_of
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import (
    CHANGING,
    Provenance,
    check_same_weights,
    note,
    noted,
)
from sawlog.run_files._statistics import RunStatistics, Staged


class CapturePass:
    """One pass over the data with the same options: a store of rows, and statistics.

    Args:
        path: the folder of the run.
        project: the name of the run.
        options: what to log.
        backend: the watched model.
        blocks: its blocks with their ranks.
        ranks: the processes that share the run; None if there is only one.
    """

    def __init__(
        self,
        path: Path,
        project: str,
        options: Options,
        backend: Backend,
        blocks: Sequence[Block],
        ranks: Ranks | None = None,
    ) -> None:
        check_no_rows(options)
        self._options, self._backend, self._blocks = options, backend, blocks
        self._store_path = logs_of(path, options)
        self._folder = statistics_of(path, options)
        self._part = self._folder / f"part-{uuid.uuid4().hex[:16]}"
        factors = None
        if "ekfac" in options.statistic:
            factors = measured(path, label_of(options), blocks)
        matrices = pass_matrices(path, options, blocks, factors)
        self._capturer = backend.capturer(options, blocks, matrices, reuse_memory=True)
        self._provenance = backend.provenance(matrices.fingerprint)
        self._about = {
            "project": project,
            "options": options.to_json(),
            "blocks": [block.to_json() for block in blocks],
            "provenance": self._provenance.to_json(),
            "factors": None if factors is None else factors.factors(),
        }
        if factors is not None:
            check_same_fisher(factors.fisher, options.fisher, self._folder.parent)
            self._check_weights(factors.provenance, f"the statistics at {self._folder.parent}")
        self._statistics = RunStatistics(options.precision, offload=options.offload)
        self._staged = Staged()
        self._writer: store.Writer | None = None
        self.seen = SeenIds()
        self._claims = Claims(ranks, str((self._folder / options.dtype).relative_to(path)))
        self._counted: list[np.ndarray] = []
        self._saved_at = time.monotonic()
        self._changing = False
        self._is_noted = False
        self._ranks = ranks
        self.nbytes = 0
        self._resume()
        if options.saved:
            self._open_store()

    def _open_store(self) -> None:
        meta = {name: self._about[name] for name in ("project", "options", "blocks")}
        self._writer = store.create(
            self._store_path,
            exists="append",
            meta=meta,
            duplicates="replace" if self._options.duplicates == "last" else "first",
            interval=self._options.interval,
            segment_bytes=_segment_bytes(self._blocks, self._options.dtype),
        )
        try:
            # Rows are the same whatever is measured beside them.
            check_same_setup(self._writer.meta, meta, self._store_path, ["statistic"])
            with store.open(self._store_path) as reader:
                before, ids = noted(reader), _ids_in(reader)
            self._check_weights(before, f"the rows at {self._store_path}")
            check_projection(before, self._provenance, self._store_path)
        except BaseException:
            self._writer.close()
            raise
        if not self._options.statistic and ids is not None and self._options.duplicates != "last":
            self.seen.load(ids)

    def _resume(self) -> None:
        """Read which examples the statistics of all earlier programs and processes include."""
        if not self._options.statistic:
            return
        before: list[np.ndarray] = []
        for part in checkpoint.load_parts(self._folder):
            free = ["save"] if self._has_rows(part) else []
            check_same_setup(part.about, self._about, self._folder, free)
            own = Provenance.from_json(part.about["provenance"])
            self._check_weights([own], f"the statistics at {self._folder}")
            before += [] if part.ids is None else [part.ids]
        if before:
            self.seen.load(np.concatenate(before))

    def _has_rows(self, part: checkpoint.Saved) -> bool:
        """Return whether examples of a part of the statistics have all rows that are wanted now."""
        before = {**Options().to_json(), **(part.about.get("options") or {})}
        kept = before["log"] if before["save"] is None else before["save"]
        if {*self._options.saved} <= {*kept}:
            return True
        if part.ids is None or not self._store_path.exists():
            return False
        with store.open(self._store_path) as reader:
            ids = _ids_in(reader)
        return ids is not None and bool(np.isin(part.ids, ids).all())

    # -- the weights ------------------------------------------------------------------------------

    def _check_weights(self, before: Sequence[Provenance], what: str) -> None:
        """Raise a WeightsMismatchError if existing data was computed with other weights."""
        if self._options.weights != "any":
            check_same_weights(before, [self._provenance], what, "the model now", REMEDY)

    def _check_unchanged(self) -> None:
        """Raise a WeightsMismatchError if the weights changed during the pass."""
        if self._changing:
            return
        changed = self._backend.changed_weights()
        if not changed:
            return
        if self._options.weights != "any":
            some = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
            raise WeightsMismatchError(
                "The weights of the model changed since this pass over the data started, which was "
                f"with the weights {self._provenance.short}: {len(changed)} tensors differ "
                f"({some}). Gradients of different weights cannot be compared. Hint: finish the "
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
        """Return which examples of a batch to log, as a mask.

        Raises:
            DuplicateIdError: this pass logged one of them before.
        """
        twice = self.seen.seen_now(ids)
        if self._options.duplicates == "error" and twice.any():
            some = ", ".join(map(repr, ids[twice][:5].tolist()))
            raise DuplicateIdError(
                f"{int(twice.sum())} of the ids were logged before: {some}. Nothing of this "
                "batch was logged. Hint: give each example an id of its own; "
                "run.setup(duplicates='first') or 'last' keeps one of several."
            )
        if self._options.duplicates == "last":
            return are_kept(ids, last=True)
        return self._claims.take(ids, self.seen.missing(ids) & are_kept(ids))

    def batch(self, request: BatchRequest) -> ActiveBatch:
        """Prepare the capture of a batch."""
        self._check_unchanged()
        self._staged = Staged()
        return self._capturer.batch(request)

    def finish(self, batch: ActiveBatch, ids: np.ndarray) -> None:
        """Write the logs of a batch and add its statistics."""
        logs = batch.rows(len(ids))
        batch.add_statistics(self._staged, logs, len(ids))
        good = self._to_store(logs, ids)
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
        self.seen.add(ids)
        if self._ranks is not None:
            self._ranks.beat()
        if time.monotonic() - self._saved_at > self._options.interval:
            self.flush()

    def _to_store(self, logs: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
        """Return which examples to store, as a mask: by default only finite ones.

        Raises:
            CaptureError: the options refuse others, or statistics would become infinite or NaN.
        """
        everything = np.ones(len(ids), bool)
        if self._options.nonfinite == "store":
            return everything
        kept = {n: rows for n, rows in logs.items() if kind_of(n) in self._options.saved}
        found = self._backend.nonfinite_rows(kept, self._options.dtype)
        if found is not None:
            return rows_to_store(found, ids, self._options)
        if self._options.statistic:
            check_sums(self._backend.nonfinite_sums(self._staged), ids)
        return everything

    # -- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything to disk: rows first, so that examples in statistics are stored."""
        if self._writer is not None:
            self._writer.flush()
        if self._counted:
            ids = np.concatenate(self._counted)
            checkpoint.save(self._part, self._statistics.arrays(), ids, self._about)
        self._saved_at = time.monotonic()

    def fail(self) -> None:
        """Mark the store as that of a failed program."""
        if self._writer is not None:
            self._writer.fail()

    def close(self) -> None:
        """Flush and close the store."""
        self.flush()
        if self._writer is not None:
            self._writer.close()


def _ids_in(reader: store.Reader) -> np.ndarray | None:
    """Return the ids of all rows; None if there are none."""
    tables = reader.schema.tables
    return np.asarray(reader.ids(tables[0].names[0])) if tables else None


def _segment_bytes(blocks: Sequence[Block], dtype: str) -> int:
    """Return a segment size: small, so that closing is quick, with hundreds of rows each."""
    rows = 256 * Report(tuple(blocks), dtype).bytes_per_example
    return min(32 << 20, max(16 << 20, rows))
