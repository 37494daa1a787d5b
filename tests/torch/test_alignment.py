"""Scales, masks and scalers stay with their examples when a batch is stored in part."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from tests.torch.programs import Program, assert_alike, logged
from tests.torch.test_run import start

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()


def uneven() -> Program:
    """A mean over tokens, of which every example has another number, by uneven weights."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(5, 4, 4).double(), torch.randint(0, 3, (5, 4))
    y[~MASK] = -100
    weight = torch.tensor([0.2, 0.7, 1.3]).double()

    def loss(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), weight=weight)

    return Program(model, (x, y), loss)


def factors(program: Program):
    """K-FAC by hand: sums over the positions of an example, and means over all positions."""
    left, right = np.zeros((3, 3)), np.zeros((5, 5))
    for i in range(5):
        x, y = program.part(slice(i, i + 1))
        seen = []
        with program.model.register_forward_hook(lambda *args, seen=seen: seen.append(args[2])):
            loss = program.loss(program.model, x, y)
        (outputs,) = torch.autograd.grad(loss, seen)
        outputs, inputs = outputs[0][MASK[i]], x[0][MASK[i]]
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
        left += (outputs.mT @ outputs).numpy()
        right += (inputs.mT @ inputs).numpy()
    return left / 5, right / int(MASK.sum())


def scaled(loss, by_scaler: bool):
    return torch.amp.GradScaler("cpu", init_scale=512.0).scale(loss) if by_scaler else loss


@pytest.mark.parametrize("by_scaler", [False, True])
@pytest.mark.parametrize("way", ["loss.backward", "run.backward"])
def test_a_batch_that_is_stored_in_part(tmp_path, way, by_scaler):
    program = uneven()
    options = {"statistic": "kfac", "precision": "float64", "dtype": "float64"}
    run, report = start(tmp_path, program, duplicates="first", **options)
    for places in ([3, 0], [4, 0, 2, 3, 1]):  # the second time 0 and 3 are there already
        x, y = program.part(places)
        with run(data_id=places, mask=MASK[places]):
            loss = scaled(program.loss(program.model, x, y), by_scaler)
            loss.backward() if way == "loss.backward" else run.backward(loss)
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())
    for found, want in zip(run.statistics.kfac("weight"), factors(program), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("given", [False, True])
def test_a_scaled_query(tmp_path, given):
    program = uneven()
    run, _ = start(tmp_path, program, dtype="float64")
    run.eval()
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with run(data_id=range(5), **({"scaler": scaler} if given else {})):
        loss = program.of()
        loss = loss * scaler.get_scale() if given else scaler.scale(loss)
        loss.backward()
    (rows,) = run.get_log().whole().rows().values()
    want = program.alone()
    want = np.concatenate([want["weight"], want["bias"][..., None]], 2)
    np.testing.assert_allclose(rows, want, rtol=1e-9, atol=1e-12)


def test_names_that_begin_alike(tmp_path):
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("fc1", "fc10", "fc")})
    model["fc1"] = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    run = sawlog.init(project="run", root=tmp_path)

    def blocks(names):
        return [block.name for block in run.watch(model, names, quiet=True).blocks]

    assert blocks("fc1") == ["fc1.0.weight", "fc1.1.weight"]
    assert blocks(["fc1.1", "fc"]) == ["fc1.1.weight", "fc.weight"]
    assert blocks("fc1*") == ["fc1.0.weight", "fc1.1.weight", "fc10.weight"]
    assert blocks("fc10.weight") == ["fc10.weight"]
    model = nn.ModuleDict({"at": nn.MultiheadAttention(2, 1), "att": nn.Linear(2, 2)})
    assert blocks(None)[-1] == "att.weight"  # a layer beside one that is covered with all inside it
