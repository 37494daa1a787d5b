"""Models, loaders and optimizers that accelerate prepared, and its tracker."""

import json

import accelerate
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sawlog
import sawlog.store
from sawlog.accelerate import SawlogTracker
from sawlog.influence import Logs
from sawlog.torch import TrainingCapture


def prepared(**options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(7, 3), torch.randint(0, 2, (7,)))
    accelerator = accelerate.Accelerator(cpu=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(data, 4, shuffle=True)
    return accelerator, data, *accelerator.prepare(model, optimizer, loader)


def assert_rows(path, model, data):
    rows = Logs(path).gather(range(7)).rows()["weight"]
    for i in range(7):
        x, y = data[i]
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        weight, bias = torch.autograd.grad(loss, [model.weight, model.bias])
        want = torch.cat([weight, bias[:, None]], 1).numpy()
        np.testing.assert_allclose(rows[i], want, rtol=1e-5, atol=1e-7)


def test_a_prepared_model(tmp_path):
    accelerator, data, model, optimizer, loader = prepared(gradient_accumulation_steps=2)
    capture = TrainingCapture(model, "training", root=tmp_path, optimizer=optimizer)
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    run.extract(lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), loader)
    assert_rows(run.store_path, model, data)
    for step, (ids, (x, y)) in enumerate(run.batches(loader, quiet=True)):
        raise AssertionError((step, ids, x, y))  # everything is logged already
    again = sawlog.init(project="again", root=tmp_path)
    again.watch(model, quiet=True)
    for step, (ids, (x, y)) in enumerate(again.batches(loader, quiet=True)):
        with accelerator.accumulate(model), capture(ids, step=step):
            loss = capture.declare_loss(nn.functional.cross_entropy(model(x), y))
            accelerator.backward(loss)  # which divides by 2
            optimizer.step()
            optimizer.zero_grad()
    capture.close()
    assert_rows(tmp_path / "training" / "epoch-0" / "logs" / "whole-float32", model, data)


def test_tracker(tmp_path):
    tracker = SawlogTracker("metrics", root=tmp_path)
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("ignored", config={"lr": 0.1})
    for step in range(2):
        accelerator.log({"loss": torch.tensor(2.0 - step), "note": "text"}, step=step)
    accelerator.end_training()
    reader = sawlog.store.open(tmp_path / "metrics" / "metrics")
    assert reader.read("loss").tolist() == [2.0, 1.0]
    assert reader.entries("loss").steps["step"].tolist() == [0, 1]
    assert json.loads((tmp_path / "metrics" / "hyperparameters.json").read_text()) == {"lr": 0.1}
