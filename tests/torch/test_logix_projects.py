"""Programs of LogIX that measure different Hessians in one project."""

import numpy as np
import pytest
import torch

from sawlog.errors import ArgumentError
from sawlog.logix import DataIDGenerator, LogIX, LogIXScheduler
from tests.torch.programs import mlp


def scored(folder, hessian, lora="none", passes=9):
    """Run a program of LogIX, or its first passes, and return its scores."""
    program, name = mlp(size=6), DataIDGenerator()
    run = LogIX("run", {"root_dir": str(folder), "lora": {"rank": 2}})
    run.watch(program.model)
    for _, _ in zip(range(passes), LogIXScheduler(run, lora, hessian, "grad"), strict=False):
        with run(data_id=list("abcdef")):
            program.of().backward()
        run.finalize()
    if passes == 9:
        run.setup({"grad": ["log"]})
        run.eval()
        with run(data_id=name(torch.zeros(1))):
            program.of(program.part(slice(0, 1))).backward()
        return run.influence.compute_influence_all(run.get_log(), damping=1e-3)
    return None


@pytest.mark.parametrize("lora", ["none", "pca"])
def test_programs_with_other_hessians_share_a_project(lora, tmp_path):
    """As those of LogIX that compare them: each scores as if it were the only one."""
    for turn, hessian in enumerate(("none", "kfac", "ekfac", "raw", "kfac", "none")):
        found = scored(tmp_path / "shared", hessian, lora)
        alone = scored(tmp_path / str(turn), hessian, lora)
        assert found.ids.tolist() == alone.ids.tolist() == list("abcdef")
        np.testing.assert_array_equal(found.values, alone.values)
    scored(tmp_path / "interrupted", "ekfac", passes=1)  # K-FAC, without rows
    with pytest.raises(ArgumentError, match=r"save was \[\], now \['grad'\]"):
        scored(tmp_path / "interrupted", "kfac")
