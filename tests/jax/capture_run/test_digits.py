"""Digits from JAX and from PyTorch: the same weights give equal stores, scores and LDS."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.influence import attribute

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")

TRAIN, TEST, HIDDEN, SUBSETS = 160, 12, 16, 8


def digits() -> tuple[Any, Any]:
    x, y = datasets.load_digits(return_X_y=True)
    return (x[: TRAIN + TEST] / 16).astype(np.float32), y[: TRAIN + TEST].astype(np.int64)


def trained(x: Any, y: Any, steps: int = 40) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y)).backward()
        optimizer.step()
    return model


def loss_fn(params: Any, batch: Any) -> Any:
    hidden = jax.nn.relu(batch["x"] @ params["0.weight"].T + params["0.bias"])
    logits = jax.nn.log_softmax(hidden @ params["2.weight"].T + params["2.bias"])
    return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


def from_torch(model: Any, x: Any, y: Any, root: Path, compress: Any) -> tuple[Path, Any]:
    run = sawlog.torch.Run("digits", root=root / "torch")
    run.setup(statistic="kfac", compress=compress)
    run.watch(model, quiet=True)
    for part in (slice(0, TRAIN), slice(TRAIN, None)):
        if part.start:
            run.eval()
        with run(data_id=np.arange(len(x[part]))):
            outputs = model(torch.as_tensor(x[part]))
            run.backward(torch.nn.functional.cross_entropy(outputs, torch.as_tensor(y[part])))
    return run.store_path, run.get_log()


def from_jax(model: Any, x: Any, y: Any, root: Path, compress: Any) -> tuple[Path, Any]:
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    batch = {"x": x[:TRAIN], "y": y[:TRAIN].astype(np.int32)}
    run = sawlog.init("digits", root=root / "jax")
    run.setup(statistic="kfac", compress=compress)
    run.watch(loss_fn, params, batch, quiet=True)
    run.record(np.arange(TRAIN), params, batch)
    run.eval()
    run.record(np.arange(TEST), params, {"x": x[TRAIN:], "y": y[TRAIN:].astype(np.int32)})
    return run.store_path, run.get_log()


def lds(scores: Any, subsets: Any, losses: Any) -> float:
    """The linear datamodeling score: how well sums of scores rank models of random halves."""

    def ranks(values: Any) -> Any:
        return values.argsort(0).argsort(0).astype(float)

    found = []
    for predicted, true in zip(ranks(subsets @ scores.T).T, ranks(-losses).T, strict=True):
        found.append(np.corrcoef(predicted, true)[0, 1])
    return float(np.mean(found))


def of_halves(x: Any, y: Any) -> tuple[Any, Any]:
    """Return random halves of the training data, and the test losses of their models."""
    rng = np.random.default_rng(3)
    subsets = np.array([rng.permutation(TRAIN) < TRAIN // 2 for _ in range(SUBSETS)])
    losses = []
    for subset in subsets:
        model = trained(x[:TRAIN][subset], y[:TRAIN][subset], steps=25)
        with torch.no_grad():
            outputs = model(torch.as_tensor(x[TRAIN:]))
            own = torch.nn.functional.cross_entropy(
                outputs, torch.as_tensor(y[TRAIN:]), reduction="none"
            )
        losses.append(own.numpy())
    return subsets.astype(float), np.array(losses)


@pytest.mark.parametrize("compress", [None, {"rank": 8}], ids=["whole", "rank 8"])
def test_scores_and_lds_are_those_of_torch(tmp_path: Path, compress: Any):
    x, y = digits()
    model = trained(x[:TRAIN], y[:TRAIN])
    ours, theirs = (run(model, x, y, tmp_path, compress) for run in (from_jax, from_torch))
    with sawlog.store.open(ours[0]) as own, sawlog.store.open(theirs[0]) as other:
        rows, wanted = own.gather(range(TRAIN)), other.gather(range(TRAIN))
        assert {n for n in rows if n.startswith("grad/")} == {
            n for n in wanted if n.startswith("grad/")
        }
        for name in rows:
            if name.startswith("grad/"):
                scale = np.abs(wanted[name]).max()
                np.testing.assert_allclose(rows[name], wanted[name], atol=1e-5 * scale, rtol=0)
    subsets, losses = of_halves(x, y)
    for curvature in ("identity", "ekfac"):
        found, wanted = (
            np.asarray(attribute(*logs, curvature=curvature).values) for logs in (ours, theirs)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)
        value = lds(found, subsets, losses)
        assert value == pytest.approx(lds(wanted, subsets, losses), abs=1e-3)
    assert value > 0.3
