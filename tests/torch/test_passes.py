"""Passes over the data that leave examples out, begin again, or see the weights change."""

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog.capture._pass_matrices import _fingerprint
from sawlog.errors import CaptureError
from sawlog.run_files._provenance import CHANGING, noted
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start


def test_rows_behind_one_that_is_left_out_are_their_own(tmp_path):
    program = mlp(size=6)
    program.batch[0][3, 0] = np.nan
    run, report = start(tmp_path, program, nonfinite="skip")
    go(run, program, [10, 11, 12], program.part([0, 1, 2]))
    with pytest.warns(UserWarning, match="left out"):
        go(run, program, [7, 8, 9], program.part([3, 4, 5]))
    run.finalize()
    ids = [10, 11, 12, 8, 9]
    with sawlog.store.open(run.store_path) as reader:
        assert reader.ids("grad/0.weight").tolist() == ids
    expected = {name: rows[[0, 1, 2, 4, 5]] for name, rows in program.alone().items()}
    assert_alike(logged(run, report, ids), expected)


def test_statistics_of_three_programs_count_each_example_once(tmp_path):
    program = mlp(size=6)
    together, _ = start(tmp_path / "once", program, statistic=["mean"], save=[])
    go(together, program)
    together.finalize()
    expected = together.statistics.mean("grad/0.weight")
    for ids in ([4, 5], [0, 1], [5, 2, 3, 0], [1, 4]):
        run, _ = start(tmp_path / "parts", program, statistic=["mean"], save=[])
        go(run, program, ids, program.part(ids))
        run.finalize()
    assert run.statistics.examples == 6
    np.testing.assert_allclose(run.statistics.mean("grad/0.weight"), expected, rtol=1e-5)


def test_a_store_says_that_the_weights_changed_within_it(tmp_path):
    program = mlp(size=4)
    run, _ = start(tmp_path, program, weights="any")
    go(run, program, [0, 1], program.part([0, 1]))
    with torch.no_grad():
        program.model[0].weight.mul_(2)
    go(run, program, [2, 3], program.part([2, 3]))
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        before, after = sorted(noted(reader), key=lambda each: each.weights == CHANGING)
    assert before.weights != CHANGING
    assert before.tensors
    assert after.weights == CHANGING
    assert not after.tensors


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_queries_are_not_bound_by_the_dtype_of_the_store(tmp_path, dtype):
    """They are kept in full precision, in which a large gradient is finite."""
    x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]]).double() * (1e6 if dtype == "float16" else 1e39)
    model = nn.Linear(2, 1, bias=False).double()
    run, _ = start(tmp_path, Program(model, (x,), lambda model, x: model(x).sum()), dtype=dtype)
    run.eval()
    with run(data_id=[0, 1]):
        model(x).sum().backward()
    found = run.get_log().gather([0, 1]).rows()["weight"]
    np.testing.assert_allclose(np.asarray(found).reshape(2, 2), x.numpy())


def test_projections_are_the_same_only_if_both_sides_are():
    one, two = np.arange(6.0).reshape(3, 2), np.ones((4, 2))
    same = _fingerprint({"fc": (one, two), "out": (None, two)})
    assert _fingerprint({"fc": (one.copy(), two.copy()), "out": (None, two)}) == same
    for other in (
        {"fc": (one + 1, two), "out": (None, two)},
        {"fc": (one, two + 1), "out": (None, two)},
        {"fc": (one, two), "out": (None, two + 1)},
        {"fc": (one, two), "out": (two, None)},
        {"fc": (None, two), "out": (one, two)},
    ):
        assert _fingerprint(other) != same


def test_weights_that_are_normalised_in_a_later_batch_only(tmp_path):
    """The structure of its loss is known by then."""
    program, weights = mlp(size=3), [torch.tensor([0.3, 0.9, 1.1]).double()]

    def loss(model, x):
        return (model(x).pow(2).sum(1) * weights[0]).sum()

    program = Program(program.model, program.batch[:1], loss)
    run, _ = start(tmp_path, program)
    for number in range(2):
        go(run, program, range(3 * number, 3 * number + 3))
    weights[0] = torch.tensor([0.2, 0.5, 0.3]).double()
    with pytest.raises(CaptureError, match="sum up to 1 over the batch"):
        go(run, program, [10, 11, 12])
    run.finalize()


def query(run, program, ids):
    with run(data_id=ids):
        program.of(program.part(slice(0, len(ids)))).backward()
    return run.get_log()


def test_queries_say_which_weights_they_were_computed_with(tmp_path):
    program = mlp(size=4)
    run, _ = start(tmp_path, program)
    go(run, program)
    run.finalize()
    run.eval()
    one, same = (query(run, program, [0, 1]).source.provenance for _ in range(2))
    with torch.no_grad():
        program.model[0].weight.mul_(2)
    other = query(run, program, [0, 1]).source.provenance
    assert one[0].weights == same[0].weights
    assert other[0].weights != one[0].weights


@pytest.mark.parametrize("nonfinite", ["error", "skip"])
def test_queries_that_are_not_finite(tmp_path, nonfinite):
    """None is left out: there would be another number of rows. Later options are those of later."""
    program = mlp(size=4)
    run, _ = start(tmp_path, program, nonfinite=nonfinite)
    go(run, program)
    run.finalize()
    run.eval()
    good, bad = program.batch[0], program.batch[0].clone()
    bad[1, 0] = np.nan

    def asked(ids, x):
        program.batch = (x, program.batch[1])
        return query(run, program, ids)

    for number in range(2):  # of the same structure, which is proven then
        asked([f"{number}{i}" for i in range(3)], good)
    with pytest.raises(CaptureError, match="'b'"):
        asked(["a", "b", "c"], bad)
    run.setup(nonfinite="store")
    run.eval()
    for number in range(2):
        asked([f"{number}{i}" for i in range(3)], good)
    found = asked(["a", "b", "c"], bad)
    rows = found.gather(["a", "b", "c"]).rows()["3.weight"]
    assert np.isfinite(rows.reshape(3, -1)).all(1).tolist() == [True, False, True]
