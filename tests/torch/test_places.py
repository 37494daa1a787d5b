"""A model that was changed since it was watched."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from sawlog.errors import CaptureError
from tests.torch.programs import assert_alike, logged, mlp
from tests.torch.test_run import go, start


def _same(tensor):
    return nn.Parameter(tensor.detach().clone())


CHANGES = {
    "weight": (lambda m: setattr(m[0], "weight", _same(m[0].weight)), "parameter '0.weight'"),
    "bias": (lambda m: setattr(m[0], "bias", _same(m[0].bias)), "parameter '0.bias'"),
    "all": (lambda m: m.load_state_dict(m.state_dict(), assign=True), "parameter '0.weight'"),
    "module": (lambda m: m.__setitem__(0, nn.Linear(4, 6)), "module '0'"),
    "parametrized": (lambda m: parametrizations.weight_norm(m[0]), "parameter '0.weight'"),
    "frozen": (lambda m: m[0].weight.requires_grad_(False), "'0.weight' was frozen"),
}


LATER = set(CHANGES) - {"module", "parametrized"}  # their weights differ, which is another error


@pytest.mark.parametrize(
    ("name", "batches"), [*((each, 0) for each in CHANGES), *((each, 1) for each in sorted(LATER))]
)
def test_a_changed_model_is_refused(tmp_path, name, batches):
    change, what = CHANGES[name]
    program = mlp()
    run, _ = start(tmp_path, program)
    for _ in range(batches):
        go(run, program)
    change(program.model)
    with pytest.raises(CaptureError, match=rf"{what}.*watch\(model\) again"):
        go(run, program, range(100, 100 + program.size))
    run.finalize()


def test_a_layer_that_is_trained_later(tmp_path):
    program = mlp()
    program.model[0].requires_grad_(False)
    run, _ = start(tmp_path, program)
    go(run, program)
    program.model[0].requires_grad_(True)
    with pytest.raises(
        CaptureError, match=r"'0.weight', '0.bias' were frozen when watch was called"
    ):
        go(run, program, range(100, 100 + program.size))
    run.finalize()


def test_changes_of_what_is_not_watched(tmp_path):
    """Buffers, other modules, and the values of weights before the first batch."""
    program = mlp()
    run, report = start(tmp_path, program)
    program.model[1] = nn.Tanh()
    program.model.register_buffer("more", torch.zeros(1))
    with torch.no_grad():
        program.model[0].weight.mul_(0.5)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(program.size)), program.alone())
