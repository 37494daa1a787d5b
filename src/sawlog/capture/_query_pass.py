"""``QueryPass``: batches of queries, returned as logs in memory instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sawlog._array_device import to_numpy
from sawlog.capture._backend import ActiveBatch, Backend, BatchRequest
from sawlog.capture._nonfinite import nonfinite_error
from sawlog.capture._pass_matrices import pass_matrices
from sawlog.influence import Logs
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options


class QueryPass:
    """Captures queries with the layers and projections of a run, and leaves no files.

    Args:
        path: the folder of the run.
        options: those of the run; statistics and stored kinds are ignored.
        backend: the watched model.
        blocks: its blocks with their ranks.
    """

    def __init__(
        self, path: Path, options: Options, backend: Backend, blocks: Sequence[Block]
    ) -> None:
        self._options = options.without_statistic(save=None)
        self._backend, self.blocks = backend, tuple(blocks)
        self.matrices = pass_matrices(path, self._options, blocks, None)
        self._capturer = backend.capturer(self._options, blocks, self.matrices, reuse_memory=False)
        self._provenance = backend.provenance(self.matrices.fingerprint)

    def batch(self, request: BatchRequest) -> ActiveBatch:
        """Prepare the capture of a batch."""
        if self._backend.changed_weights():
            self._provenance = self._backend.provenance(self.matrices.fingerprint)
        return self._capturer.batch(request)

    def finish(self, batch: ActiveBatch, ids: np.ndarray) -> Logs:
        """Return the logs of a batch in full precision.

        Raises:
            CaptureError: a log is infinite or NaN, and the options refuse that.
        """
        rows = batch.rows(len(ids))
        if self._options.nonfinite != "store":
            found = self._backend.nonfinite_rows(rows, "float64")
            if found is not None:
                raise nonfinite_error(found, ids, self._options)
        meta = {
            "options": self._options.to_json(),
            "blocks": [block.to_json() for block in self.blocks],
            "provenance": [self._provenance.to_json()],
        }
        return Logs({name: to_numpy(each) for name, each in rows.items()}, ids=ids, meta=meta)
