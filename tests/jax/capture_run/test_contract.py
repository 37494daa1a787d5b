"""Runs of JAX functions against the hand-written gradients of ``sawlog.testing``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sawlog
from sawlog.capture import Block
from sawlog.testing import CaptureCase, CaptureContract
from tests.jax.capture_run.models import batch_of, loss_of, params_of


class TestJaxRuns(CaptureContract):
    """What a run stores, and what its influence is."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def _run(self, case: CaptureCase) -> Any:
        run = sawlog.init(case.name, root=self.root)
        params, batch = params_of(case), batch_of(case)
        run.watch(loss_of(case), params, batch, quiet=True)
        losses = run.record(range(len(case.inputs)), params, batch)
        np.testing.assert_allclose(losses, case.losses, rtol=1e-5)
        run.finalize()
        return run

    def gradients(self, case: CaptureCase) -> Mapping[str, Any]:
        run = self._run(case)
        with sawlog.store.open(run.store_path) as reader:
            blocks = [Block.from_json(each) for each in reader.meta["blocks"]]
            rows = reader.gather(range(len(case.inputs)))
            parts = {
                name: part
                for block in blocks
                for name, part in block.parts(rows[f"grad/{block.name}"]).items()
            }
        return {name: part.reshape(-1, *case.weights[name].shape) for name, part in parts.items()}

    def scores(self, case: CaptureCase) -> Any:
        run = self._run(case)
        run.eval()
        run.record(range(len(case.inputs)), params_of(case), batch_of(case))
        found = sawlog.influence.attribute(run.store_path, run.get_log(), curvature="identity")
        return found.values
