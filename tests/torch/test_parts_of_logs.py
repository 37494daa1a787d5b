"""What becomes of the logs of a batch: counts, scales, layouts and limits, each on its own."""

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog.factored import Dense, Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import Staged
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._hooks._hooks import LayerCall
from sawlog.torch._model._watched import Unit
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._nonfinite import nonfinite_rows
from sawlog.torch._rows._outer_product_rows import OuterProductRows
from sawlog.torch._rows._projectors import Projectors
from sawlog.torch._rows._row_builder import RowBuilder
from sawlog.torch._rows._tensor_logs import TensorLogs
from tests.torch.programs import Program
from tests.torch.test_run import go, start

BLOCK = Block("fc.weight", ("fc.weight",), (3, 4), "right")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def statistics(batch, **options):
    return BatchStatistics(Options(precision="float64", **options), Projectors({}, {}), batch)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("inputs", ["left", "right"])
def test_the_loss_scales_one_side_of_moments(inputs, whole):
    """That of the gradients of outputs; of a whole gradient, that of its columns."""
    left, right = random(2, 5, 3), random(2, 5, 4)
    own = statistics(BatchSpec(2), statistic=["kfac"])
    own.add(BLOCK, Pair(Dense(left), Dense(right)), 6.0, 2.0, inputs, whole)
    staged = Staged()
    own.add_to(staged, {}, [BLOCK], 2)
    scaled_left = inputs == "right" and not whole
    expected = [
        torch.einsum("bpi,bpj->ij", each, each) * (9 if scaled else 1)
        for each, scaled in ((left, scaled_left), (right, not scaled_left))
    ]
    assert [count for _, _, count in staged.sums] == [10, 10]
    for (_, found, _), each in zip(staged.sums, expected, strict=True):
        torch.testing.assert_close(found, each)


def test_covariances_are_over_positions_of_layers_and_whole_gradients():
    layer, grad = random(2, 5, 3), random(2, 3, 4)
    own = statistics(BatchSpec(2), statistic=["covariance"])
    staged = Staged()
    own.add_to(staged, {"forward/fc": layer, "grad/fc.weight": grad}, [], 2)
    found = {name: (total, count) for name, total, count in staged.sums}
    torch.testing.assert_close(
        found["covariance:forward/fc"], (torch.einsum("bpi,bpj->ij", layer, layer), 10)
    )
    torch.testing.assert_close(found["mean:forward/fc"], (layer.sum((0, 1)), 10))
    flat = grad.reshape(2, 12)
    torch.testing.assert_close(found["covariance:grad/fc.weight"], (flat.T @ flat, 2))
    torch.testing.assert_close(found["mean:grad/fc.weight"], (flat.sum(0), 2))


@pytest.mark.parametrize("whole", [False, True])
def test_masks_are_of_positions_and_not_of_rows(whole):
    """A whole gradient has a row of the matrix at each position; here there are as many."""
    left, right, mask = random(2, 3, 3), random(2, 3, 4), torch.tensor([[1, 1, 0], [1, 0, 0]])
    own = statistics(BatchSpec(2, mask=mask.bool()), statistic=["kfac"])
    own.add(BLOCK, Pair(Dense(left), Dense(right)), 1.0, 1.0, "right", whole)
    staged = Staged()
    own.add_to(staged, {}, [BLOCK], 2)
    assert [count for _, _, count in staged.sums] == ([6, 6] if whole else [3, 3])
    by = torch.ones(2, 3) if whole else mask
    for (_, found, _), each in zip(staged.sums, (left, right), strict=True):
        torch.testing.assert_close(found, torch.einsum("bp,bpi,bpj->ij", by.double(), each, each))


def test_squares_of_what_was_not_used_have_the_shape_of_what_is_stored():
    block = Block("fc.weight", ("fc.weight",), (3, 4), "right", (2, None))
    own, staged = statistics(BatchSpec(2), statistic=["ekfac"]), Staged()
    own.add_to(staged, {}, [block], 2)
    assert staged.sums[0][1].shape == (2, 4)


def test_squares_count_the_examples_that_are_stored():
    """Two of the three of a batch, also where the batch did not use the layer."""
    own = statistics(BatchSpec(3, torch.tensor([True, False, True])), statistic=["ekfac"])
    staged = Staged()
    own.add_to(staged, {}, [BLOCK], 2)
    ((name, squares, count),) = staged.sums
    assert name == "ekfac/fc.weight"
    assert count == 2
    assert torch.equal(squares, torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("dtype", "left", "right", "finite"),
    [
        ("float16", 300.0, 300.0, False),
        ("float16", 300.0, 200.0, True),
        ("float16", 1e5, 1e-2, True),
        ("float32", 1e20, 1e20, False),
        ("float32", -1e20, 1e20, False),
        ("float32", 1e18, 1e18, True),
    ],
)
def test_products_that_are_too_large_though_their_factors_are_not(dtype, left, right, finite):
    rows = OuterProductRows(torch.tensor([[1.0, 0.0], [left, 1.0]]), torch.tensor([[1.0], [right]]))
    found = nonfinite_rows({"grad/fc.weight": rows}, dtype)
    assert (found is None) is finite


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_with_two_factors_are_stored_in_the_dtype(tmp_path, dtype):
    torch.manual_seed(0)
    x, weights = torch.randn(5, 3), torch.randn(5, 2)
    program = Program(
        nn.Linear(3, 2, bias=False), (x, weights), lambda model, x, w: (model(x) * w).sum()
    )
    run, _ = start(tmp_path, program, dtype=dtype)
    go(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        found = np.array(reader.gather(range(5))["grad/weight"])
    assert found.dtype == dtype
    expected = (weights[:, :, None] * x[:, None]).numpy()
    np.testing.assert_allclose(found.reshape(5, 2, 3), expected, rtol=1e-3, atol=1e-6)


def test_rows_are_given_once():
    builder = RowBuilder(Options(), Projectors({}, {}), BatchSpec(2))
    left, right = random(2, 5, 3), random(2, 5, 4)
    builder.add(BLOCK, Pair(Dense(left), Dense(right)))
    torch.testing.assert_close(builder.rows(BLOCK, 2), torch.einsum("bpi,bpj->bij", left, right))
    assert torch.equal(builder.rows(BLOCK, 2), torch.zeros(2, 3, 4))


def call_of(module, *args):
    return LayerCall(0, Unit("fc", module, None, ()), args, {}, ())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("minor", [False, True])
@pytest.mark.parametrize("todo", [None, torch.tensor([True, False, True])])
def test_logs_have_examples_first_and_then_their_positions(axis, minor, todo):
    """Three examples with two positions each along one axis, and a scale for each."""
    shape, scale = [4, 5, 7], torch.tensor([2.0, 3.0, 5.0]).double()
    shape[axis] = 6
    tensor = random(*shape)
    logs = TensorLogs(BatchSpec(3, todo), "output")
    logs.add_backward(call_of(nn.Linear(1, 1)), tensor, ExampleLayout(axis, minor), scale)
    found = logs.finish()["backward/fc"]
    chosen = range(3) if todo is None else (0, 2)
    assert len(found) == len(chosen)
    for own, i in zip(found, chosen, strict=True):
        places = (i, i + 3) if minor else (2 * i, 2 * i + 1)
        parts = [tensor.select(axis, place) for place in places]
        torch.testing.assert_close(own, torch.stack(parts) * scale[i])


def test_a_forward_log_is_what_the_layer_returned():
    """Even if it is changed in place afterwards."""
    logs, output = TensorLogs(BatchSpec(3), "output"), random(3, 4)
    logs.add_forward(call_of(nn.Linear(1, 1)), output)
    before = output.clone()
    output.relu_()
    assert torch.equal(logs.finish()["forward/fc"], before)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.LSTM(2, 2), 1),
        (nn.LSTM(2, 2, batch_first=True), 0),
        (nn.Linear(2, 2), None),
    ],
)
def test_the_axis_of_examples_is_that_of_the_layer(module, expected, axis):
    logs = TensorLogs(BatchSpec(4, axis=axis), "output")
    layout = logs.guessed(Unit("fc", module, None, ()), (4, 4, 2))
    assert layout.axis == (axis if expected is None else expected)
