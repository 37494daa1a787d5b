"""Batches of a training loop that repeat examples, or whose gradients are dropped in part."""

import warnings

import numpy as np
import pytest
import torch

import sawlog
import sawlog.store
from sawlog.errors import CaptureError
from sawlog.torch import TrainingCapture
from tests.torch.test_training_capture import grads, loss_of, program, rows_of


def test_a_sampler_that_repeats_examples(tmp_path):
    """The row of an example, times the share of all its copies, is its part in the step."""
    model, x, y = program()
    capture = TrainingCapture(model, "loop", root=tmp_path)
    run = sawlog.init("ids", root=tmp_path)
    run.watch(model, quiet=True)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, 5, sampler=[6, 1, 6, 6, 3, 2, 2])
    for step, (ids, batch) in enumerate(run.batches(loader, quiet=True)):
        model.zero_grad()
        with warnings.catch_warnings(action="error"), capture(ids, step=step):
            loss_of(model, *batch).backward()
        if step == 0:
            gradient = model[2].weight.grad.numpy().copy()
    capture.close()
    ids, rows = rows_of(capture.path)
    assert sorted(ids.tolist()) == [1, 2, 3, 6]
    places = [ids.tolist().index(each) for each in (1, 3, 6)]
    own = grads(model, x, y)[1][[1, 3, 6]]
    np.testing.assert_allclose(rows["2.weight"][places], own, rtol=1e-4, atol=1e-7)
    share = sawlog.store.open(capture.path / "epoch-0" / "steps").gather([1, 3, 6])["share"]
    np.testing.assert_allclose(share, [0.2, 0.2, 0.6])
    np.testing.assert_allclose(np.tensordot(share, own, 1), gradient, rtol=1e-4, atol=1e-7)


def test_gradients_that_are_dropped_in_part(tmp_path):
    """One of two optimizers sets its gradients to zero between two losses."""
    model, x, y = program()
    capture = TrainingCapture(model, "loop", root=tmp_path)
    with capture(range(8), step=0):
        loss_of(model, x, y).backward()
        model[2].weight.grad = None
        with pytest.raises(CaptureError, match="set to zero between two"):
            model(x).square().mean().backward()
