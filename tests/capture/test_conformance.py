"""The same model in PyTorch and in JAX: equal stores, equal statistics, equal influence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog.errors import ArgumentError
from sawlog.testing import CASES, CaptureCase, assert_same_runs
from tests.jax.capture_run.models import batch_of, loss_of, params_of


class Model(nn.Module):
    """The models of the cases."""

    def __init__(self, case: CaptureCase) -> None:
        super().__init__()
        self.case = case
        for name, weight in case.weights.items():
            layer, _, kind = name.partition(".")
            if kind != "weight":
                continue
            rows, cols = weight.shape
            if layer == "table":
                module: nn.Module = nn.Embedding(rows, cols)
            else:
                module = nn.Linear(cols, rows, bias=f"{layer}.bias" in case.weights)
            setattr(self, layer, module)
        self.load_state_dict({n: torch.tensor(w) for n, w in case.weights.items()})

    def forward(self, x: Any) -> Any:
        name = self.case.name
        if name == "mlp":
            return self.fc2(torch.tanh(self.fc1(x)))
        if name == "embedding":
            return self.head(self.table(x).mean(1))
        if name == "tied":
            return self.fc(x) @ self.fc.weight
        return self.fc(x)


def step(model: Any, batch: Any) -> Any:
    x, y = batch
    squares = (model(x) - y) ** 2
    return squares.reshape(len(squares), -1).sum(1)


def both_runs(case: CaptureCase, root: Path, **options: Any) -> tuple[Any, Any]:
    """The same examples in two batches, once in each framework; then queries."""
    ours = sawlog.init("jax", root=root)
    theirs = sawlog.init("torch", root=root)
    x, y = batch_of(case)
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    params, loss_fn, model = params_of(case), loss_of(case), Model(case).float()
    tensors = [tuple(torch.tensor(np.asarray(part)) for part in batch) for batch in batches]
    tensors = [(x.long() if x.dtype == torch.int32 else x, y) for x, y in tensors]
    for run in (ours, theirs):
        run.setup(**options)
    ours.watch(loss_fn, params, batches[0], quiet=True)
    theirs.watch(model, quiet=True)
    ours.extract(loss_fn, params, batches, check=False, quiet=True)
    theirs.extract(step, tensors, check=False, quiet=True)
    ours.eval()
    theirs.eval()
    ours.extract(loss_fn, params, batches[:1], check=False, quiet=True)
    theirs.extract(step, tensors[:1], check=False, quiet=True)
    assert type(ours) is sawlog.jax.JaxRun
    assert type(theirs) is sawlog.torch.Run
    return ours, theirs


OPTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "random": {"compress": 2},
    "gaussian": {"compress": {"kind": "gaussian", "rank": 2, "seed": 3}},
    "pca and EK-FAC": {"compress": {"kind": "pca", "rank": 2}, "statistic": "ekfac"},
    "covariance": {"statistic": ["mean", "variance", "covariance"], "precision": "float64"},
    "K-FAC in float64": {"statistic": "kfac", "precision": "float64", "dtype": "float64"},
    "half": {"dtype": "bfloat16", "statistic": "ekfac"},
}

#: Every case and every option at least once.
PAIRS = [
    *((case, "pca and EK-FAC") for case in CASES if case != "tied"),
    *(("mlp", options) for options in OPTIONS if options != "pca and EK-FAC"),
    ("embedding", "random"),
    ("tokens", "covariance"),
    ("tied", "random"),
]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_equal_runs(name: str, options: str, tmp_path: Path) -> None:
    ours, theirs = both_runs(CASES[name](), tmp_path, **OPTIONS[options])
    # What is rounded to 8 bits may be rounded the other way.
    rtol = 1e-2 if options == "half" else 1e-5
    assert_same_runs(ours.store_path, theirs.store_path, rtol)
    curvature = "ekfac" if "ekfac" in ours.options.statistic else "identity"
    scores = [
        sawlog.influence.attribute(run.store_path, run.get_log(), curvature=curvature).values
        for run in (ours, theirs)
    ]
    assert scores[0].shape == (3, len(CASES[name]().inputs))
    np.testing.assert_allclose(*scores, rtol=rtol, atol=rtol * np.abs(scores[1]).max())


def test_a_loader_of_torch(tmp_path: Path) -> None:
    """Its tensors are arrays; one that shuffles does not say which examples a batch has."""
    case = CASES["linear"]()
    x, y = (torch.tensor(np.asarray(part)) for part in batch_of(case))
    data = torch.utils.data.TensorDataset(x, y)
    run = sawlog.init("run", root=tmp_path)
    params, loss_fn = params_of(case), loss_of(case)
    shuffled = torch.utils.data.DataLoader(data, 3, shuffle=True)
    with pytest.raises(ArgumentError, match=r"The loader shuffles.*data_id="):
        run.extract(loss_fn, params, shuffled, quiet=True)
    run.extract(loss_fn, params, torch.utils.data.DataLoader(data, 3), check=False, quiet=True)
    with sawlog.store.open(run.store_path) as reader:
        rows = reader.gather(range(6))["grad/fc.weight"]
    np.testing.assert_allclose(rows[..., :-1], case.gradients["fc.weight"], rtol=1e-4, atol=1e-5)


def test_a_difference_is_seen(tmp_path: Path) -> None:
    case = CASES["linear"]()
    ours, _ = both_runs(case, tmp_path / "one")
    _, theirs = both_runs(CASES["linear"](seed=1), tmp_path / "two")
    with pytest.raises(AssertionError, match=r"grad/fc\.weight"):
        assert_same_runs(ours.store_path, theirs.store_path)
