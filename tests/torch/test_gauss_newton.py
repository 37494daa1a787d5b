"""The exact Gauss-Newton matrix against dense linear algebra, in float64."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sawlog import curvature, influence
from sawlog.errors import ArgumentError, WeightsMismatchError
from sawlog.torch import Run, gauss_newton
from sawlog.torch import _gauss_newton as module
from sawlog.torch import _gauss_newton_products as products


@pytest.fixture
def model():
    torch.manual_seed(0)
    parts = nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    return nn.Sequential(*parts).double()


@pytest.fixture
def data():
    torch.manual_seed(1)
    return torch.randn(7, 2, 4, 4).double(), torch.randint(3, (7,))


def flat(model, grads):
    """Gradients of the outputs of an example in the layout of the blocks, ``[outputs, n]``."""
    named = dict(zip(dict(model.named_parameters()), grads, strict=True))
    conv = torch.cat(
        [named["0.weight"].reshape(3, 2, 2, 9), named["0.bias"].reshape(3, 2, 2, 1)], 3
    )
    linear = torch.cat([named["3.weight"], named["3.bias"][..., None]], 2)
    return torch.cat([conv.flatten(1), linear.flatten(1)], 1)


def dense(model, x, loss):
    total = 0.0
    for each in x:
        out = model(each[None])[0]
        rows = [torch.autograd.grad(o, list(model.parameters()), retain_graph=True) for o in out]
        jacobian = flat(model, [torch.stack(own) for own in zip(*rows, strict=True)])
        target = torch.zeros(3).double() if loss == "mse" else torch.tensor(0)
        of = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}[loss]
        second = torch.autograd.functional.hessian(
            lambda o, of=of, t=target: of(o, t), out.detach()
        )
        total = total + jacobian.mT @ second @ jacobian
    return (total / len(x)).numpy()


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_it_is_the_dense_one_whatever_the_batches(model, data, loss):
    x, y = data
    before = [p.clone() for p in model.parameters()]
    found = gauss_newton(model, [(x[:4], y[:4]), x[4:]], loss)
    assert found.kind == "gauss-newton"
    assert dict(found.joint.shapes) == {"0.weight": (2, 2, 10), "3.weight": (3, 17)}
    np.testing.assert_allclose(found.joint.matrix, dense(model, x, loss), rtol=1e-10, atol=1e-14)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("stripe", "chunk"), [(40, 1), (90, 8 * 91 * 3 * 2), (91, 1)])
def test_in_stripes_and_parts_with_a_remainder(model, data, monkeypatch, stripe, chunk):
    """91 elements: more than one stripe, the last of them short; one example or two at a time."""
    x, _ = data
    monkeypatch.setattr(module, "STRIPE", stripe)
    monkeypatch.setattr(module, "CHUNK", chunk)
    found = gauss_newton(model, [x[:5], x[5:5], x[5:]], "mse")
    np.testing.assert_allclose(found.joint.matrix, dense(model, x, "mse"), rtol=1e-10, atol=1e-14)
    assert found.count == 7


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_products_are_those_of_the_dense_one(model, data, loss, monkeypatch):
    monkeypatch.setattr(products, "ROWS", 2)
    x, y = data
    before = [p.clone() for p in model.parameters()]
    found = gauss_newton(
        model, [(x[:4], y[:4]), x[4:4], x[4:]], loss, preconditioner=curvature.IDENTITY
    )
    assert found.count == 7
    random = np.random.default_rng(0)
    rows = {name: random.normal(size=(3, *shape)) for name, shape in found.shapes.items()}
    flat_rows = np.concatenate([rows[n].reshape(3, -1) for n in ("0.weight", "3.weight")], 1)
    got = found.product(rows)
    got = np.concatenate([got[n].reshape(3, -1) for n in ("0.weight", "3.weight")], 1)
    np.testing.assert_allclose(got, flat_rows @ dense(model, x, loss), rtol=1e-10, atol=1e-14)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_are_those_of_the_model_as_it_was(dtype):
    """Training goes on, with dropout and other weights, while scores are computed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model.to(dtype).eval()
    found = gauss_newton(model, [torch.randn(6, 4).to(dtype)], preconditioner=curvature.IDENTITY)
    random = np.random.default_rng(0)
    rows = {name: random.normal(size=(2, *shape)) for name, shape in found.shapes.items()}
    before = found.product(rows)
    model.train()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1)
    after = found.product(rows)
    assert all(each.training for each in model.modules())
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert max(np.abs(values).max() for values in before.values()) > 1e-3


def test_conjugate_gradients_give_the_scores_of_the_matrix(tmp_path):
    """Preconditioned by EK-FAC of the same run."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(7, 4).double(), torch.randint(3, (7,))
    run = Run("run", root=tmp_path)
    run.setup(dtype="float64", statistic="kfac")
    run.watch(model, quiet=True)
    with run(data_id=range(7)):
        F.cross_entropy(model(x), y).backward()
    run.finalize()
    ekfac = influence.curvature_for(influence.Logs(run.store_path), "ekfac")
    solver = gauss_newton(run, [x], preconditioner=ekfac, tolerance=1e-5)
    matrix = gauss_newton(run, [x])
    rows = influence.Logs(run.store_path)
    asked = rows.of(rows.gather([2, 5]))
    found, wanted = (
        influence.attribute(rows, asked, curvature=each, damping=0.1).values
        for each in (solver, matrix)
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * abs(wanted).max())
    with torch.no_grad():
        model.bias.add_(1.0)
    with pytest.raises(WeightsMismatchError):
        influence.attribute(
            run.store_path, run.store_path, curvature=gauss_newton(run, [x], preconditioner=ekfac)
        )


def test_options_of_conjugate_gradients_need_them(model, data):
    with pytest.raises(ArgumentError, match="tolerance needs preconditioner="):
        gauss_newton(model, [data[0]], tolerance=1e-3)
    with pytest.raises(ArgumentError, match="no examples"):
        gauss_newton(model, [], preconditioner=curvature.IDENTITY)


@pytest.fixture
def run(model, data, tmp_path):
    x, y = data
    run = Run("run", root=tmp_path)
    run.setup(dtype="float64")
    run.watch(model, quiet=True)
    with run(data_id=np.arange(len(x))):
        run.backward(F.cross_entropy(model(x), y))
    run.finalize()
    return run


def inverse_product(found, rows, damping=None):
    matrix = found.joint.matrix + np.diag(
        np.concatenate(
            [np.full(np.prod(s), found.added(n, damping)) for n, s in found.joint.shapes.items()]
        )
    )
    return rows @ np.linalg.solve(matrix, rows.T)


def test_scores_are_those_of_dense_algebra(run, data):
    found = gauss_newton(run, [data[0]])
    logs = influence.Logs(run.store_path).whole().rows()
    rows = np.concatenate([logs[name].reshape(7, -1) for name in found.joint.shapes], 1)
    trace = np.trace(found.joint.matrix)
    typical = np.trace(found.joint.matrix @ found.joint.matrix) / trace
    mean = trace / len(found.joint.matrix)
    assert found.count == 7
    assert found.added("3.weight") == pytest.approx(0.1 * mean + 10 * typical / 7)
    for damping in (None, 0.3, curvature.Relative(2.0), {"0.weight": 0.1, "3.weight": 1.0}):
        want = inverse_product(found, rows, damping)
        options = {"curvature": found, "damping": damping}
        scores = influence.attribute(run.store_path, run.store_path, per_layer=True, **options)
        np.testing.assert_allclose(scores.values, want, rtol=1e-8, atol=1e-8 * abs(want).max())
        np.testing.assert_allclose(sum(scores.layers.values()), scores.values, atol=1e-6)
        own = influence.self_influence(run.store_path, **options)
        np.testing.assert_allclose(own.values, np.diag(want), rtol=1e-8)
        cosine = influence.attribute(run.store_path, run.store_path, mode="cosine", **options)
        np.testing.assert_allclose(np.diag(cosine.values), 1.0, rtol=1e-6)


def test_it_is_saved_and_loaded(model, data, tmp_path):
    found = gauss_newton(model, [data[0]])
    found.save(tmp_path / "kept", {"a": 1})
    again, notes = curvature.load_with_notes(tmp_path / "kept")
    assert notes == {"a": 1}
    assert repr(again) == repr(found) == "Curvature('gauss-newton', 2 layers)"
    assert dict(again.joint.shapes) == dict(found.joint.shapes)
    np.testing.assert_array_equal(again.joint.matrix, found.joint.matrix)


def test_rows_of_other_weights_are_refused(run, model, data, tmp_path):
    kept = gauss_newton(run, [data[0]])
    kept.save(tmp_path / "kept")
    with torch.no_grad():
        model[3].bias += 1e-3
    for other in (gauss_newton(model, [data[0]]), gauss_newton(run, [data[0]])):
        with pytest.raises(WeightsMismatchError, match=r"'gauss-newton'.*3\.bias"):
            influence.attribute(run.store_path, run.store_path, curvature=other)
        with pytest.raises(WeightsMismatchError, match=r"3\.bias"):
            influence.self_influence(run.store_path, curvature=other)
        influence.attribute(run.store_path, run.store_path, curvature=other, weights="any")
    influence.attribute(run.store_path, run.store_path, curvature=curvature.load(tmp_path / "kept"))


def test_the_last_stripe_is_a_partial_one(model, data, monkeypatch):
    monkeypatch.setattr("sawlog.torch._gauss_newton.STRIPE", 20)
    assert 91 % 20  # of so many parameters
    found = gauss_newton(model, [data[0]], "mse")
    assert len(found.joint.matrix) == 91
    want = dense(model, data[0], "mse")
    np.testing.assert_allclose(found.joint.matrix, want, rtol=1e-10, atol=1e-14)


def test_what_it_cannot_do(run, model, data):
    x, _ = data
    found = gauss_newton(run, [x])
    rows = {"0.weight": np.ones((1, 2, 2, 10)), "3.weight": np.ones((1, 3, 17))}
    with pytest.raises(ArgumentError, match="couples all layers"):
        found.solve("0.weight", rows["0.weight"])
    with pytest.raises(ArgumentError, match="couples all layers"):
        curvature.choose_damping(found, rows)
    with pytest.raises(ArgumentError, match="needs the gradients of all of them"):
        influence.attribute(run.store_path, run.store_path, curvature=found, names=["3.weight"])
    with pytest.raises(ArgumentError, match="`loss` must be one of"):
        gauss_newton(model, [x], "hinge")
    with pytest.raises(ArgumentError, match="no examples"):
        gauss_newton(model, [x[:0]])
    with pytest.raises(ArgumentError, match="40,200 parameters would take 13 GB"):
        gauss_newton(nn.Linear(200, 200), [x])
    with pytest.raises(ArgumentError, match="cross entropy of one class"):
        gauss_newton(nn.Linear(3, 1), [torch.ones(2, 3)])
    with pytest.raises(ArgumentError, match=r"\[batch, outputs\]"):
        gauss_newton(nn.Linear(3, 2), [torch.ones(2, 5, 3)])
    with pytest.raises(ArgumentError, match="begins with"):
        gauss_newton(model, [{"x": x}])
    with pytest.raises(ArgumentError, match=r"run\.watch"):
        gauss_newton(Run("other", root=run.path), [x])
    run.setup(compress=2)
    with pytest.raises(ArgumentError, match="compresses them"):
        gauss_newton(run, [x])
