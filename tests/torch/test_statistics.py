"""Statistics against dense float64 matrices."""

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
import sawlog.store
from sawlog.errors import ArgumentError, UnknownNameError
from tests.torch.programs import PROGRAMS, Program, language, mlp
from tests.torch.test_run import go, start


def whole(program, report):
    """The gradients of every example as the blocks have them, ``[batch, *shape]``."""
    alone, found = program.alone(), {}
    for block in report.blocks:
        if len(block.parameters) == 1:
            found[block.name] = alone[block.name].reshape(program.size, *block.shape)
            continue
        shape = (program.size, *block.shape[:-1])
        weight = alone[block.parameters[0]].reshape(*shape, block.cols - 1)
        bias = alone[block.parameters[1]].reshape(*shape, 1)
        found[block.name] = np.concatenate([weight, bias], -1)
    return found


def in_parts(run, program, sizes=(2, 1)):
    at = 0
    for size in (*sizes, program.size - sum(sizes)):
        go(run, program, np.arange(at, at + size), program.part(slice(at, at + size)))
        at += size


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("save", [None, []])
def test_moments_of_gradients(tmp_path, name, save):
    program = PROGRAMS[name]()
    wanted = ["mean", "variance", "covariance"]
    run, report = start(tmp_path, program, statistic=wanted, precision="float64", save=save)
    in_parts(run, program)
    run.finalize()
    assert run.store_path.exists() == (save is None)
    for block, rows in whole(program, report).items():
        key, flat = f"grad/{block}", rows.reshape(len(rows), -1)
        close(run.statistics.mean(key), rows.mean(0))
        close(run.statistics.variance(key), rows.var(0))
        close(run.statistics.covariance(key), flat.T @ flat / len(flat))
        close(run.statistics.covariance(key, centered=True), np.cov(flat.T, bias=True))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_sums_of_covariances_have_the_precision_that_was_asked_for(tmp_path, precision):
    """Rows of single precision are added up in double precision."""
    program = mlp(size=7)
    base = Program(
        program.model.float(), (program.batch[0].float() * 30, program.batch[1]), program.loss
    )
    run, _ = start(tmp_path, base, statistic=["covariance"], precision=precision)
    in_parts(run, base)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        names = [name for name in reader.names if name.startswith("grad/")]
        rows = {name: np.asarray(reader.gather(range(7), [name])[name]) for name in names}
    assert rows
    for name, own in rows.items():
        flat = own.reshape(7, -1).astype(np.float64)
        wanted, found = flat.T @ flat / 7, run.statistics.covariance(name)
        error = np.abs(np.squeeze(found) - wanted).max() / np.abs(wanted).max()
        assert error < (1e-13 if precision == "float64" else 1e-5)
        assert bool(error < 1e-13) is (precision == "float64")


def close(found, expected, rtol=1e-8, atol=1e-12):
    np.testing.assert_allclose(np.squeeze(found), np.squeeze(expected), rtol=rtol, atol=atol)


def test_of_several_passes_the_one_with_most_examples_counts(tmp_path):
    program = mlp(size=5)
    run, _ = start(tmp_path, program, statistic=["kfac"], save=[], precision="float64")
    go(run, program)
    run.finalize()
    left, _ = run.statistics.kfac("0.weight")
    run.setup(statistic=["kfac", "mean"], save=[], precision="float64")
    go(run, program, range(2), program.part(slice(0, 2)))
    run.finalize()
    assert run.statistics.examples == 5
    close(run.statistics.kfac("0.weight")[0], left)
    assert run.statistics.mean("grad/0.weight").shape == (6, 5)


def test_examples_are_those_of_kfac(tmp_path):
    """EK-FAC may have been measured with more of them, which K-FAC is not divided by."""
    program = mlp(size=5)
    run, _ = start(tmp_path, program, statistic="kfac", save=[], precision="float64")
    go(run, program, range(2), program.part(slice(0, 2)))
    run.finalize()
    left, _ = run.statistics.kfac("0.weight")
    run.setup(statistic="ekfac", save=[], precision="float64")
    go(run, program)
    run.finalize()
    close(run.statistics.kfac("0.weight")[0], left)


def test_kfac_in_a_higher_precision_than_the_model(tmp_path):
    torch.manual_seed(0)
    x, weights = torch.randn(5, 3), torch.randn(5, 2)
    program = Program(nn.Linear(3, 2, bias=False), (x, weights), _weighted)
    run, _ = start(tmp_path, program, statistic="kfac", save=[], precision="float64")
    go(run, program)
    run.finalize()
    for found, each in zip(run.statistics.kfac("weight"), (weights, x), strict=True):
        wide = each.double().numpy()
        close(found, wide.T @ wide / 5, rtol=1e-14)


def test_means_of_rows_that_the_store_multiplies(tmp_path):
    """In float32, with one position for each example: both factors, or the rows themselves."""
    torch.manual_seed(0)
    x, weights = torch.randn(5, 3), torch.randn(5, 2)
    program = Program(nn.Linear(3, 2, bias=False), (x, weights), _weighted)
    run, _ = start(tmp_path, program, statistic=["mean", "covariance"])
    go(run, program)
    run.finalize()
    rows = (weights[:, :, None] * x[:, None]).numpy()
    close(run.statistics.mean("grad/weight"), rows.mean(0), rtol=1e-5)
    flat = rows.reshape(5, -1)
    close(run.statistics.covariance("grad/weight"), flat.T @ flat / 5, rtol=1e-4, atol=1e-6)


def _weighted(model, x, weights):
    return (model(x) * weights).sum()


def test_a_layer_that_a_batch_does_not_use(tmp_path):
    """Its gradients are zero there, and count in the means over all examples."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"one": nn.Linear(3, 2), "two": nn.Linear(3, 2)}).double()
    x = torch.randn(6, 3).double()
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    for statistic in ("kfac", "ekfac"):
        run.setup(statistic=[statistic, "mean"], save=[], precision="float64")
        for ids, names in (([0, 1, 2], ("one", "two")), ([3, 4, 5], ("one",))):
            with run(data_id=ids):
                sum(model[name](x[ids]).pow(2).sum() for name in names).backward()
        run.finalize()
    rows = torch.stack([2 * torch.outer(model["two"](each), each) for each in x[:3]])
    ones = torch.stack([2 * model["two"](each) for each in x[:3]])
    rows = torch.cat([rows, ones[..., None]], 2).detach().numpy()
    close(run.statistics.mean("grad/two.weight"), rows.sum(0) / 6)
    left, right = run.statistics.eigenbasis("two.weight")
    close(run.statistics.ekfac("two.weight"), ((left.T @ rows @ right) ** 2).sum(0) / 6)


def test_variance_does_not_cancel(tmp_path):
    model = nn.Linear(1, 1, bias=False)
    x = 3000 + torch.linspace(0, 1, 1000)[:, None]
    program = Program(model, (x,), lambda model, x: model(x).sum())
    run, _ = start(tmp_path, program, statistic="variance", save=[])
    for at in range(0, 1000, 10):
        go(run, program, np.arange(at, at + 10), (x[at : at + 10],))
    run.finalize()
    expected = x.double().numpy().var()
    np.testing.assert_allclose(run.statistics.variance("grad/weight"), expected, rtol=1e-3)


def factors(program):
    """The inputs and output gradients of the layers of an MLP, each example alone."""
    model = program.model
    seen = {0: ([], []), 3: ([], [])}
    for i in range(program.size):
        x, y = program.part(slice(i, i + 1))
        values = [x]
        for layer in model:
            values.append(layer(values[-1]))
            values[-1].retain_grad()
        program.loss(lambda _, out=values[-1]: out, x, y).backward()
        for place, (inputs, outputs) in seen.items():
            inputs.append(values[place].detach().numpy()[0])
            outputs.append(values[place + 1].grad.numpy()[0])
    return {place: tuple(np.stack(each) for each in both) for place, both in seen.items()}


@pytest.mark.parametrize("compress", [None, {"rank": 2, "seed": 5}])
def test_kfac_of_an_mlp(tmp_path, compress):
    program = mlp(size=7)
    run, report = start(tmp_path, program, statistic="kfac", precision="float64", compress=compress)
    in_parts(run, program)
    run.finalize()
    for place, (inputs, outputs) in factors(program).items():
        block = next(b for b in report.blocks if b.name == f"{place}.weight")
        if len(block.parameters) > 1:
            inputs = np.concatenate([inputs, np.ones((7, 1))], 1)
        for side, rank in zip(("left", "right"), block.ranks, strict=True):
            if rank is not None:
                size = block.rows if side == "left" else block.cols
                matrix = sawlog.factored.random_projection(
                    "orthonormal", size, rank, seed=5, name=f"{block.name}/{side}"
                )
                if side == "left":
                    outputs = outputs @ matrix
                else:
                    inputs = inputs @ matrix
        left, right = run.statistics.kfac(block.name)
        close(left, outputs.T @ outputs / 7, rtol=1e-6)
        close(right, inputs.T @ inputs / 7, rtol=1e-6)


def test_kfac_over_positions_with_a_mask(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, mask = torch.randn(4, 5, 3).double(), torch.rand(4, 5) < 0.6
    weights = torch.randn(4, 5, 2).double()
    program = Program(model, (x, weights), lambda model, x, w: (model(x) * w).sum())
    run, _ = start(tmp_path, program, statistic="kfac", precision="float64", save=[])
    go(run, program, mask=mask)
    run.finalize()
    left, right = run.statistics.kfac("weight")
    ones = torch.cat([x, torch.ones(4, 5, 1)], -1)[mask].numpy()
    close(right, ones.T @ ones / len(ones))
    outputs = weights[mask].numpy()
    close(left, outputs.T @ outputs / 4)


def test_kfac_is_exact_where_a_layer_sees_one_position_and_factors_are_independent(tmp_path):
    """With inputs and output gradients in all combinations, the Kronecker product is the truth."""
    inputs = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]]).double()
    outputs = torch.tensor([[1.0, 1.0, 0.0], [2.0, -1.0, 1.0]]).double()
    x = inputs.repeat_interleave(2, 0)
    w = outputs.repeat(3, 1)
    model = nn.Linear(2, 3, bias=False).double()
    program = Program(model, (x, w), lambda model, x, w: (model(x) * w).sum())
    run, report = start(tmp_path, program, statistic="kfac", precision="float64")
    go(run, program)
    run.finalize()
    flat = whole(program, report)["weight"].reshape(6, -1)
    close(np.kron(*run.statistics.kfac("weight")), flat.T @ flat / 6)


def test_an_embedding_has_a_diagonal(tmp_path):
    program = language()
    program.model.head = nn.Linear(6, 11, bias=False).double()
    run, _ = start(tmp_path, program, statistic="kfac", precision="float64", save=[])
    go(run, program)
    run.finalize()
    left, _ = run.statistics.kfac("embed.weight")
    counts = np.bincount(program.batch[0].flatten().numpy(), minlength=11)
    close(left, counts / counts.sum())


@pytest.mark.parametrize("compress", [None, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_ekfac(tmp_path, name, compress):
    program = PROGRAMS[name]()
    run, report = start(tmp_path, program, statistic="kfac", compress=compress, save=[])
    in_parts(run, program)
    run.finalize()
    run.setup(statistic="ekfac", compress=compress, precision="float64")
    in_parts(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        rows = reader.gather(range(program.size))
    for block in report.blocks:
        stored = np.asarray(rows[f"grad/{block.name}"], np.float64)
        left, right = run.statistics.eigenbasis(block.name)
        if left.ndim == 1:
            left = np.eye(len(left))
        if stored.ndim == 4:
            turned = np.einsum("gra,bgrc,gck->bgak", left, stored, right)
        else:
            turned = np.einsum("ra,brc,ck->bak", left, stored, right)
        close(run.statistics.ekfac(block.name), (turned**2).mean(0), rtol=1e-4, atol=1e-9)


def test_ekfac_needs_kfac(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program, statistic="ekfac")
    with pytest.raises(ArgumentError, match='statistic="kfac"'):
        go(run, program)


def test_pca(tmp_path):
    program = mlp(size=9)
    run, report = start(tmp_path, program, statistic="kfac", precision="float64", save=[])
    in_parts(run, program)
    run.finalize()
    run.setup(compress={"kind": "pca", "rank": 2})
    go(run, program)
    run.finalize()
    rows = whole(program, report)["0.weight"]
    with sawlog.store.open(run.store_path) as reader:
        found = np.asarray(reader.gather(range(9))["grad/0.weight"])
    run.setup(statistic="kfac")
    left, right = (main(moment) for moment in run.statistics.kfac("0.weight"))
    expected = np.einsum("rl,brc,ck->blk", left, rows, right)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-4, atol=1e-6)


def main(moment):
    return np.linalg.eigh(moment)[1][:, ::-1][:, :2]


def test_pca_needs_covariances(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program, compress={"kind": "pca", "rank": 2})
    with pytest.raises(ArgumentError, match="needs covariances"):
        go(run, program)


@pytest.mark.parametrize("side", ["input", "output"])
def test_forward_and_backward(tmp_path, side):
    program = mlp()
    logs = ["forward", "backward"]
    run, _ = start(
        tmp_path,
        program,
        log=logs,
        statistic=["covariance", "mean"],
        forward=side,
        precision="float64",
    )
    go(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        rows = {name: np.asarray(value) for name, value in reader.gather(range(5)).items()}
    assert set(rows) == {f"{log}/{place}" for log in logs for place in (0, 2, 3)}
    for place, (inputs, outputs) in factors(program).items():
        if side == "output":
            inputs = program.model[: place + 1](program.batch[0]).detach().numpy()
        np.testing.assert_allclose(rows[f"forward/{place}"], inputs, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(rows[f"backward/{place}"], outputs, rtol=1e-5, atol=1e-7)
        close(run.statistics.covariance(f"forward/{place}"), inputs.T @ inputs / 5, rtol=1e-5)
        close(run.statistics.mean(f"backward/{place}"), outputs.mean(0), rtol=1e-5, atol=1e-8)


def test_forward_alone_needs_no_gradient(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program, log="forward")
    with run(data_id=range(5)), torch.no_grad():
        program.model(program.batch[0])
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        found = np.asarray(reader.gather(range(5))["forward/0"])
    np.testing.assert_allclose(found, program.batch[0], rtol=1e-6)


def test_what_was_not_measured_is_said(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program, statistic="mean")
    with pytest.raises(ArgumentError, match="Nothing was measured"):
        run.statistics  # noqa: B018
    go(run, program)
    with pytest.raises(UnknownNameError, match=r"The run has: .*mean:grad/0\.weight"):
        run.statistics.kfac("0.weight")
    run.finalize()
