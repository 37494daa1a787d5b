"""Options of a run against plain autograd: compression, choice of parameters, bad input."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.errors import (
    ArgumentError,
    CaptureError,
    DuplicateIdError,
    UncoveredError,
)
from sawlog.factored import random_projection
from sawlog.run_files._encode import decode, encode
from tests.torch.programs import PROGRAMS, Program, assert_alike, logged, mlp, picture
from tests.torch.run_helpers import go, start

# -- compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_projections(tmp_path, name, kind):
    program = PROGRAMS[name]()
    run, report = start(tmp_path, program, compress={"kind": kind, "rank": 2, "seed": 3})
    go(run, program)
    run.finalize()
    alone = program.alone()
    with sawlog.store.open(run.store_path) as reader:
        rows = reader.gather(range(program.size))
    for block in report.blocks:
        whole = alone[block.name].reshape(program.size, *block.shape[:-2], -1)
        if len(block.parameters) > 1:
            weight = alone[block.parameters[0]].reshape(
                program.size, *block.shape[:-1], block.cols - 1
            )
            bias = alone[block.parameters[1]].reshape(program.size, *block.shape[:-1], 1)
            whole = np.concatenate([weight, bias], -1)
        whole = whole.reshape(program.size, *block.shape)
        expected = by_hand(block, whole, kind)
        found = np.asarray(rows[f"grad/{block.name}"])
        assert found.shape[1:] == block.stored
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=block.name)


def by_hand(block, whole, kind):
    def matrix(side, size, rank, group=None):
        name = f"{block.name}/{side}" + ("" if group is None else f"/{group}")
        return (
            np.eye(size) if rank is None else random_projection(kind, size, rank, seed=3, name=name)
        )

    def project(rows, group=None):
        left = matrix("left", block.rows, block.ranks[0], group)
        right = matrix("right", block.cols, block.ranks[1], group)
        return np.einsum("rl,brc,ck->blk", left, rows, right)

    if len(block.shape) == 2:
        return project(whole)
    return np.stack([project(whole[:, g], g) for g in range(block.shape[0])], 1)


def test_another_seed_is_another_projection_and_the_same_is_the_same(tmp_path):
    found = []
    for seed, folder in ((0, "a"), (0, "b"), (1, "c")):
        program = mlp()
        run, _ = start(tmp_path / folder, program, compress={"rank": 2, "seed": seed})
        go(run, program)
        run.finalize()
        with sawlog.store.open(run.store_path) as reader:
            found.append(np.asarray(reader.gather(range(5))["grad/0.weight"]))
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


@pytest.mark.parametrize("nbytes", [100, 300, 500])
def test_bytes_for_each_example(tmp_path, nbytes):
    program = picture()
    run, report = start(tmp_path, program, compress={"bytes": nbytes})
    assert report.bytes_per_example <= nbytes
    assert any(any(block.ranks) for block in report.blocks) == (nbytes < 500)
    go(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        rows = reader.gather(range(3))
    assert sum(np.asarray(rows[name])[0].nbytes for name in rows) == report.bytes_per_example


@pytest.mark.parametrize(
    ("dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-11), ("int8", 1 / 254)]
)
def test_storage_with_fewer_bits(tmp_path, dtype, error):
    program = mlp()
    run, report = start(tmp_path, program, dtype=dtype)
    go(run, program)
    run.finalize()
    found, expected = logged(run, report, range(5)), program.alone()
    for name, rows in expected.items():
        flat = rows.reshape(5, -1)
        most = np.abs(flat).max(1, keepdims=True)
        if dtype == "int8" and name == "0.bias":  # it shares the scale of its weight
            most = np.maximum(
                most, np.abs(expected["0.weight"].reshape(5, -1)).max(1, keepdims=True)
            )
        bound = most * error if dtype == "int8" else np.abs(flat) * error
        assert (np.abs(found[name].reshape(5, -1) - flat) <= bound * 1.01 + 1e-7).all(), name


def test_int8_of_zeros_and_of_infinities():
    rows = torch.tensor([[0.0, 0.0], [1.0, -2.0], [float("inf"), 1.0]])
    columns = encode("x", rows, "int8")
    back = decode(columns, "x")
    assert back[0].tolist() == [0, 0]
    np.testing.assert_allclose(back[1], [1, -2], atol=2 / 254)
    assert np.isnan(back[2]).all()


# -- which parameters -----------------------------------------------------------------------------


def test_names_types_and_frozen(tmp_path):
    program = mlp()
    run, report = start(tmp_path, program, {"names": "0"})
    assert [block.name for block in report.blocks] == ["0.weight"]
    assert [b.name for b in run.watch(program.model, names=["*.weight"], quiet=True).blocks] == [
        "0.weight",
        "2.weight",
        "3.weight",
    ]
    assert [b.name for b in run.watch(program.model, types=nn.Linear, quiet=True).blocks] == [
        "0.weight",
        "3.weight",
    ]
    assert len(run.watch(program.model, names=lambda name: "2" in name, quiet=True).blocks) == 2
    program.model[0].requires_grad_(False)
    report = run.watch(program.model, quiet=True)
    assert report.skipped == (("0.weight", "frozen"), ("0.bias", "frozen"))
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())
    with pytest.raises(ArgumentError, match=r"No parameter matches.*0.weight \(frozen\)"):
        run.watch(program.model, names="nothing", quiet=True)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_half_of_a_layer_is_frozen(tmp_path, frozen):
    program = picture()
    getattr(program.model[0], frozen).requires_grad_(False)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(3)), program.alone())


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.table = nn.Parameter(torch.randn(3, 4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x, *, power=1):
        return self.inner(x * self.scale**power) @ self.table.T


def odd(size=4):
    torch.manual_seed(3)
    return Program(
        Odd().double(),
        (torch.randn(size, 2, 4).double(),),
        lambda model, x: model(x, power=2).sum(),
    )


def test_parameters_that_nothing_covers_are_all_named(tmp_path):
    program = odd()
    run = sawlog.init(project="run", root=tmp_path)
    with pytest.raises(UncoveredError, match=r"2 parameters.*\n.*scale \(of Odd\)\n.*table"):
        run.watch(program.model, quiet=True, uncovered="error")
    report = run.watch(program.model, uncovered="skip", quiet=True)
    assert [block.name for block in report.blocks] == ["inner.weight"]
    assert [name for name, _ in report.skipped] == ["scale", "table"]


def test_parameters_without_real_numbers(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex64))
    model[0].weight, model[0].bias = nn.Parameter(torch.ones(0, 2)), nn.Parameter(torch.ones(0))
    model[1].weight = nn.Parameter(torch.ones(2, 0))
    run = sawlog.init(project="run", root=tmp_path)
    with pytest.raises(UncoveredError, match=r"'2.weight' is complex.*view_as_real"):
        run.watch(model, quiet=True)
    report = run.watch(model, quiet=True, uncovered="skip")
    assert dict(report.skipped) == {
        "0.weight": "empty", "0.bias": "empty", "1.weight": "empty",
        "2.weight": "complex", "2.bias": "complex",
    }  # fmt: skip
    assert [block.name for block in report.blocks] == ["1.bias"]


def test_operations_cover_the_rest(tmp_path):
    program = odd()
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(4)), program.alone())


def test_a_user_rule(tmp_path):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * self.by

    @sawlog.torch.register_layer(Scale)
    def scale(module, use):
        return {"by": (use.grad * use.args[0]).flatten(1, -2).sum(1)}

    program = Program(
        nn.Sequential(nn.Linear(3, 4), Scale()).double(),
        (torch.randn(5, 2, 3).double(),),
        lambda model, x: (model(x) ** 2).sum(),
    )
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())


def test_a_layer_that_is_not_used_logs_zeros(tmp_path):
    program = mlp()
    program.model.spare = nn.Linear(2, 2)
    program.loss = lambda model, x, y: F.cross_entropy(model[:4](x), y)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    found = logged(run, report, range(5))
    assert not found["spare.weight"].any()
    assert found["0.weight"].any()


# -- bad input ------------------------------------------------------------------------------------


def test_ids(tmp_path):
    program = mlp()
    run, report = start(tmp_path, program)
    with pytest.raises(CaptureError, match=r"received 5 examples, and data_id names 3"):
        go(run, program, [1, 2, 3])
    with pytest.raises(ArgumentError, match="same id twice"):
        go(run, program, [1, 2, 3, 3, 4])
    go(run, program, list("abcde"))
    with pytest.raises(DuplicateIdError, match="'a'"):
        go(run, program, ["a", "v", "w", "x", "y"])
    run.finalize()
    assert_alike(logged(run, report, list("abcde")), program.alone())


def test_the_inputs_as_ids(tmp_path):
    program = mlp()
    run, report = start(tmp_path, program)
    go(run, program, program.batch[0])
    run.finalize()
    ids = sawlog.capture.data_ids(program.batch[0])
    assert len(set(ids.tolist())) == 5
    assert_alike(logged(run, report, ids), program.alone())


def test_misuse_is_explained(tmp_path):
    program = mlp()
    run = sawlog.init(project="run", root=tmp_path)
    with pytest.raises(ArgumentError, match=r"run\.watch"), run(data_id=[1]):
        pass
    run.watch(program.model, quiet=True)
    with pytest.raises(CaptureError, match="No gradient"), run(data_id=range(5)):
        program.of()
    with pytest.raises(CaptureError, match="inside `with run"):
        sawlog.init(project="other", root=tmp_path).backward(program.of())
    go(run, program)
    with pytest.raises(ArgumentError, match="finalize"):
        run.setup(log="grad")
    run.finalize()


def test_an_input_that_is_changed_in_place_is_noticed(tmp_path):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight.requires_grad_(False)

        def forward(self, x):
            h = torch.tanh(self.first(x)) * 1.0
            out = self.second(h)
            h += 1
            return out + h

    program = Program(InPlace(), (torch.randn(2, 3),), lambda model, x: model(x).sum())
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="'second' was changed in place"):
        go(run, program)
    run.finalize()
