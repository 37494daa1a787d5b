"""Logs in few bits, infinite ones, and those that are no numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog._array_device import to_numpy
from sawlog.errors import CaptureError
from sawlog.run_files._encode import decode
from tests.torch.programs import Program, mlp
from tests.torch.test_run import go, start

BOTH = ["forward", "backward", "grad"]


def small(dtype, scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(dtype)
    x = torch.randn(5, 4).to(dtype)
    return Program(model, (x,), lambda model, x: (model(x) * scale).sum())


@pytest.mark.turns
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "int8", "float64"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_in_few_bits(tmp_path, dtype, stored):
    program = small(dtype)
    run, _ = start(tmp_path, program, log=BOTH, dtype=stored, statistic=["mean", "kfac"])
    go(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        rows = {name: np.array(each) for name, each in reader.gather(range(5)).items()}
    x = program.batch[0].double().numpy()
    found = decode(rows, "forward/0")
    exact = 2**-7 if stored in ("bfloat16", "int8") else 1e-3
    np.testing.assert_allclose(found, x, rtol=exact, atol=np.abs(x).max() * exact)
    assert {name.removesuffix(".scale") for name in rows} >= {"backward/1", "grad/0.weight"}
    run.eval()
    go(run, program, ["a", "b", "c", "d", "e"])
    np.testing.assert_array_equal(run.get_log().whole().columns["0.weight"].rows().shape, (5, 3, 5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_every_dtype_of_torch_as_numpy(dtype):
    tensor = torch.tensor([[1.5, -2.0, 0.0, 24.0]]).to(getattr(torch, dtype))
    assert to_numpy(tensor).tolist() == [[1.5, -2.0, 0.0, 24.0]]


def one_bad(value):
    """Five good examples, and five of which one is bad."""
    program = mlp(size=10)
    program.batch[0][3, 0] = value
    return program


def first(run, program):
    """A batch that shows how gradients come about."""
    go(run, program, range(5, 10), program.part(slice(5, 10)))


def second(run, program):
    go(run, program, range(5), program.part(slice(0, 5)))


@pytest.mark.turns
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("statistic", [[], ["kfac"], ["mean"]])
def test_rows_that_are_no_numbers_are_refused(tmp_path, value, statistic):
    program = one_bad(value)
    run, _ = start(tmp_path, program, statistic=statistic)
    with pytest.raises(CaptureError, match="gradients of this batch are infinite or NaN"):
        second(run, program)
    first(run, program)
    with pytest.raises(CaptureError, match=r"1 of 5 examples are infinite or NaN .*examples 3\. "):
        second(run, program)
    good = program.part([0, 1, 2, 4])
    go(run, program, [0, 1, 2, 4], good)  # nothing of the batch before was logged or counted
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert sorted(reader.ids("grad/0.weight").tolist()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    if statistic:
        assert run.statistics.examples == 9
        assert all(np.isfinite(array).all() for array, _ in run.statistics._arrays.values())


def test_statistics_that_are_no_numbers_are_refused(tmp_path):
    program = one_bad(np.nan)
    run, _ = start(tmp_path, program, statistic="kfac", save=[])
    first(run, program)
    with pytest.raises(CaptureError, match="statistics of this batch are infinite or NaN"):
        second(run, program)


def test_rows_that_are_no_numbers_are_left_out_or_kept(tmp_path):
    program = one_bad(np.nan)
    run, _ = start(tmp_path / "skip", program, nonfinite="skip")
    first(run, program)
    with pytest.warns(UserWarning, match=r"1 examples were left out.*: 3\."):
        second(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert reader.ids("grad/0.weight").tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 4]
    run, _ = start(tmp_path / "store", program, nonfinite="store")
    first(run, program)
    second(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert np.isnan(reader.gather([3])["grad/0.weight"]).any()


@pytest.mark.parametrize("position", [1, 3])
def test_numbers_that_are_too_large_for_the_dtype(tmp_path, position):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    scale = torch.ones(5, 1, 1)
    scale[2] = 1e6
    program = Program(
        model,
        (torch.randn(5, position, 4), scale),
        lambda model, x, s: (model(x) * s).sum(),
    )
    run, _ = start(tmp_path / "half", program, dtype="float16")
    with pytest.raises(
        CaptureError, match=r"too large for dtype='float16'.*examples 2: .*bfloat16"
    ):
        go(run, program)
    run.finalize()
    run, _ = start(tmp_path / "brain", program, dtype="bfloat16")
    go(run, program)
    run.finalize()


def test_queries_that_are_no_numbers(tmp_path):
    program = one_bad(np.nan)
    run, _ = start(tmp_path, program)
    run.eval()
    first(run, program)
    with pytest.raises(CaptureError, match="1 of 5 examples are infinite or NaN"):
        second(run, program)
