"""Examples that are mixed by a term or a gate that was zero when the structure was proven."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._capture import _batch_capture
from sawlog.torch._graph._example_layout import Codes
from sawlog.torch._proof._summands import _is_scaled
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start


def _variance(model, x, weight):
    out = model(x)
    return out.pow(2).mean() + weight * (out - out.mean(0)).pow(2).mean()


def _pairs(model, x, weight):
    out = model(x)
    return out.pow(2).mean() + (torch.full((len(x), len(x)), weight).to(x) * (out @ out.T)).mean()


def _gate_below(model, x, weight):
    hidden = model[0](x).tanh()
    gated = weight * hidden
    return F.softplus(model[3](model[2](hidden + gated - gated.mean(0)))).mean()


def _gate(model, x, weight):
    hidden = model[0](x).tanh()
    hidden = hidden + torch.tensor(weight) * (hidden - hidden.mean(0))
    return F.softplus(model[3](model[2](hidden))).mean()


@pytest.mark.parametrize("first", [0.0, 1e-12])
@pytest.mark.parametrize("loss", [_variance, _pairs, _gate, _gate_below])
def test_what_was_not_seen_is_not_proven(tmp_path, loss, first):
    base, weight = mlp(), [first]
    program = Program(base.model, base.batch[:1], lambda model, x: loss(model, x, weight[0]))
    run, _ = start(tmp_path, program)
    go(run, program)
    weight[0] = 1.0
    with pytest.raises(CaptureError, match="mixes examples"):
        go(run, program, range(100, 100 + program.size))
    run.finalize()


@pytest.mark.parametrize(
    ("more", "proofs"),
    [
        (lambda hidden: hidden.sin(), 1),
        (lambda hidden: 0.0 * hidden.sin(), 1),  # whether it is still zero is seen at the sine
        (lambda hidden: 0.0 * hidden, 2),
    ],
)
def test_a_structure_is_proven_once_if_all_of_it_was_seen(tmp_path, monkeypatch, more, proofs):
    """A summand that is always zero is proven again in every batch, and right."""
    proven, prove = [], _batch_capture.BatchCapture._prove
    monkeypatch.setattr(
        _batch_capture.BatchCapture, "_prove", lambda *args: proven.append(prove(*args))
    )
    base = mlp()

    def loss(model, x):
        hidden = model[0](x).tanh()
        return F.softplus(model[3](model[2](hidden + more(hidden)))).mean()

    program = Program(base.model, base.batch[:1], loss)
    run, report = start(tmp_path, program)
    go(run, program, range(program.size))
    go(run, program, range(100, 100 + program.size))
    run.finalize()
    assert len(proven) == proofs
    assert_alike(logged(run, report, range(100, 100 + program.size)), program.alone())


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float32, 1e-3),
        (torch.float64, 1e-3),
        (torch.float32, 1e-9),
        (torch.float64, 1e-13),  # 1e-9 would be noticed
    ],
)
def test_what_is_small_for_the_batch_may_be_large_for_an_example(tmp_path, dtype, share):
    """One example hardly counts, and is changed by a term that hardly changes the others."""
    base = mlp()
    counts = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-4], dtype=dtype)[:, None]

    def loss(model, x):
        out = model(x)
        own = (counts[: len(x)] if len(x) > 1 else counts[-1:]) * out.pow(2)
        return own.mean() + share * (counts[: len(x)] * (out - out.mean(0)) ** 2).mean()

    program = Program(base.model.to(dtype), (base.batch[0].to(dtype),), loss)
    run, report = start(tmp_path, program, dtype="float64")
    if share == 1e-3:
        with pytest.raises(CaptureError, match="mixes examples"):
            go(run, program)
        run.finalize()
        return
    go(run, program)
    run.finalize()
    found = logged(run, report, range(5))["0.weight"][-1]
    alone = program.alone()["0.weight"][-1]
    assert np.linalg.norm(found - alone) <= 2e-3 * np.linalg.norm(alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e-30])  # whose squares are zero in float32
@pytest.mark.parametrize("mixed", [False, True])
def test_summands_of_each_dtype_and_size(dtype, size, mixed):
    """Of a complex gradient, the imaginary part counts."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 3, generator=generator) * size
    factors = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    coded = factors[:, None].float() * rows
    if mixed:
        coded = coded + 0.2 * coded.flip(0)
    if dtype.is_complex:
        rows, coded = (torch.complex(torch.zeros(4, 3), each) for each in (rows, coded))
    codes = Codes((factors,), True, 1e-3, 1e-5, 1.0)
    assert _is_scaled(rows.to(dtype), coded.to(dtype), factors[:, None], codes) is not mixed


def test_a_proof_is_repeated(tmp_path):
    """A mask lets examples see each other later: nothing in the structure of the graph shows it."""
    base, mask = mlp(size=2), [torch.eye(2).double()]

    def loss(model, x):
        hidden = model[0](x)
        return F.softplus(model[3](model[2]((mask[0] @ hidden).relu()))).mean()

    program = Program(base.model, base.batch[:1], loss)
    run, _ = start(tmp_path, program)
    for number in range(15):
        go(run, program, [2 * number, 2 * number + 1])
    mask[0] = torch.ones(2, 2).double()
    with pytest.raises(CaptureError, match="mixes examples"):
        go(run, program, [100, 101])
    run.finalize()


def test_a_batch_norm_that_is_trained_later(tmp_path):
    """By its function, so that no module shows it."""
    base, training = mlp(), [False]

    def loss(model, x):
        hidden = F.batch_norm(
            model[0](x), torch.zeros(6).to(x), torch.ones(6).to(x), training=training[0]
        )
        return F.softplus(model[3](model[2](hidden))).mean()

    program = Program(base.model, base.batch[:1], loss)
    run, _ = start(tmp_path, program)
    go(run, program)
    training[0] = True
    with pytest.raises(ArgumentError, match="batch norm in train mode"):
        go(run, program, range(100, 105))
    run.finalize()
