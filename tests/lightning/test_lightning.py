"""A module that Lightning trains: rows, steps, metrics, and logs after fitting."""

import json

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sawlog
import sawlog.store
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Logs
from sawlog.lightning import LogIXArguments, SawlogCallback, SawlogLogger, extract, patch
from sawlog.sinks import MemorySink

pytestmark = pytest.mark.filterwarnings("ignore")  # of lightning: about workers, devices, itself


class Module(lightning.LightningModule):
    def __init__(self, rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        self.rate = rate
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def data(many=10):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(many, 4, generator=random)
    return x, torch.randint(0, 3, (many,), generator=random)


def loader(shuffle=True, many=10):
    return DataLoader(TensorDataset(*data(many)), 4, shuffle=shuffle)


def trainer(tmp_path, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet |= {"enable_checkpointing": False, "logger": False, "max_epochs": 1}
    return lightning.Trainer(default_root_dir=tmp_path, **{**quiet, **options})


def alone(module, many=10):
    x, y = data(many)
    rows = {name: [] for name, _ in module.model.named_parameters()}
    for i in range(many):
        loss = nn.functional.cross_entropy(module.model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(module.model.parameters()))
        for (name, _), grad in zip(module.model.named_parameters(), grads, strict=True):
            rows[name].append(grad.numpy())
    return {name: np.stack(each) for name, each in rows.items()}


def assert_rows(path, expected, ids, prefix=""):
    rows = Logs(path).gather(ids).rows()
    assert set(rows) == {f"{prefix}0.weight", f"{prefix}2.weight"}
    for name in ("0", "2"):
        want = np.concatenate([expected[f"{name}.weight"], expected[f"{name}.bias"][..., None]], 2)
        np.testing.assert_allclose(rows[f"{prefix}{name}.weight"], want, rtol=1e-5, atol=1e-7)


class Skipping(Module):
    """A module that does not train on some batches, as Lightning allows."""

    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


def test_a_batch_that_is_skipped(tmp_path):
    module = Skipping()
    trainer(tmp_path, callbacks=[SawlogCallback("fit", root=tmp_path)]).fit(module, loader(False))
    assert_rows(
        tmp_path / "fit" / "epoch-0" / "logs" / "whole-float32",
        {name: rows[[0, 1, 2, 3, 8, 9]] for name, rows in alone(module).items()},
        [0, 1, 2, 3, 8, 9],
        "model.",
    )
    with sawlog.store.open(tmp_path / "fit" / "epoch-0" / "steps") as steps:
        assert len(steps.ids("step")) == 6


def test_rows_while_fitting(tmp_path):
    module = Module()
    expected = alone(module)
    callback = SawlogCallback("fit", root=tmp_path)
    memory = MemorySink()
    logger = SawlogLogger("fit", root=tmp_path, sinks=[memory])
    options = {"callbacks": [callback], "logger": logger, "log_every_n_steps": 1}
    own = loader()
    trainer(tmp_path, accumulate_grad_batches=2, max_epochs=2, **options).fit(module, own)
    for epoch in range(2):
        folder = tmp_path / "fit" / f"epoch-{epoch}"
        assert_rows(folder / "logs" / "whole-float32", expected, range(10), "model.")
        steps = sawlog.store.open(folder / "steps").gather(range(10), ["step", "share"])
        step, share = np.asarray(steps["step"]), np.asarray(steps["share"])
        assert np.bincount(step).tolist() == [0] * 2 * epoch + [8, 2]
        np.testing.assert_allclose(share[step == 2 * epoch], 1 / 8)
    assert "training_step" not in vars(module)
    assert isinstance(own.dataset, TensorDataset)
    assert len(next(iter(own))) == 2  # batches are as before
    assert not any(each._forward_hooks for each in module.modules())
    assert memory.logs["loss"].shape == (4,)
    hyperparameters = json.loads((tmp_path / "fit" / "hyperparameters.json").read_text())
    assert hyperparameters == {"rate": 0.0}


class Scheduled(Module):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        scheduler = {"scheduler": falling, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Warmed(Module):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = self.rate / (self.trainer.global_step + 1)
        optimizer.step(closure=optimizer_closure)


@pytest.mark.parametrize("kind", [Scheduled, Warmed])
def test_the_learning_rate_is_that_of_the_step(kind, tmp_path):
    callback = SawlogCallback("fit", root=tmp_path)
    trainer(tmp_path, callbacks=[callback], max_epochs=2).fit(kind(0.3), loader())
    for epoch in range(2):
        found = sawlog.store.open(tmp_path / "fit" / f"epoch-{epoch}" / "steps").gather(range(10))
        step = np.asarray(found["step"])
        assert sorted({*step.tolist()}) == [3 * epoch + i for i in range(3)]
        np.testing.assert_allclose(found["learning_rate"], 0.3 / (step + 1))


def test_fitting_is_the_same(tmp_path):
    found = []
    for callbacks in ([], [SawlogCallback("fit", root=tmp_path, steps=[1])]):
        torch.manual_seed(3)
        module = Module(0.1)
        trainer(tmp_path, callbacks=callbacks, max_epochs=2).fit(module, loader())
        found.append([*module.state_dict().values(), torch.rand(1)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert len(Logs(tmp_path / "fit" / "epoch-0" / "logs" / "whole-float32")) == 4


def test_ids_of_batches(tmp_path):
    x, _ = data()
    callback = SawlogCallback(
        "fit", root=tmp_path, data_id=lambda batch: [f"{v:.4f}" for v in batch[0][:, 0].tolist()]
    )
    trainer(tmp_path, callbacks=[callback]).fit(Module(), loader())
    ids = Logs(tmp_path / "fit" / "epoch-0" / "logs" / "whole-float32").ids
    assert sorted(ids) == sorted(f"{v:.4f}" for v in x[:, 0].tolist())


def test_logs_after_fitting(tmp_path):
    module = Module()
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(module.model, quiet=True)
    assert extract(run, module, loader(), quiet=True).examples == (10,)
    assert_rows(run.store_path, alone(module), range(10))
    assert module.training


def test_the_dialect_of_logix(tmp_path):
    args = LogIXArguments(
        "run", {"root_dir": str(tmp_path)}, hessian="kfac", save="grad", influence_damping=1e-3
    )
    kind, trains = patch(Module, lightning.Trainer, logix_args=args)
    module = kind()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    own = trains(max_steps=1, **quiet)
    own.extract_log(module, loader(shuffle=False))
    found = own.influence(module, loader(shuffle=False))
    assert isinstance(found["influence"], torch.Tensor)
    assert found["influence"].shape == (4, 10)  # max_steps=1: the first batch
    assert torch.topk(found["influence"], 1).indices.shape == (4, 1)
    assert found.about["curvature"] == "kfac"
    assert len(found["src_ids"]) == 4
    assert own.self_influence(module, loader(shuffle=False)).values.shape == (4,)


class ByHand(Module):
    """A module that optimizes by hand, and accumulates the gradients of two batches."""

    def __init__(self, declares):
        super().__init__()
        self.declares, self.automatic_optimization = declares, False

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        if self.declares:
            self.trainer.callbacks[0].capture.declare_loss(loss)
        self.manual_backward(loss / 2)
        if batch_idx % 2:
            for each in self.optimizers():
                each.step()
                each.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.model[i].parameters(), lr=0.0) for i in (0, 2)]


def test_optimization_by_hand(tmp_path):
    """Also with several optimizers; a quotient of the loss has to be explained."""
    module = ByHand(True)
    callback = SawlogCallback("fit", root=tmp_path)
    trainer(tmp_path, callbacks=[callback]).fit(module, loader())
    folder = tmp_path / "fit" / "epoch-0"
    assert_rows(folder / "logs" / "whole-float32", alone(module), range(10), "model.")
    steps = sawlog.store.open(folder / "steps").gather(range(10))
    assert np.isnan(steps["learning_rate"]).all()
    np.testing.assert_allclose(np.sort(steps["share"]), [1 / 8] * 8 + [1 / 4] * 2)
    other = trainer(tmp_path, callbacks=[SawlogCallback("other", root=tmp_path)])
    with pytest.raises(CaptureError, match=r"divided by 2.*declare_loss"):
        other.fit(ByHand(False), loader())


class Stream(IterableDataset):
    """Examples in their order, with their numbers if asked for."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        for i, (x, y) in enumerate(zip(*data(), strict=True)):
            yield (x, y, i) if self.numbers else (x, y)


class Numbered(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx)


def test_a_stream(tmp_path):
    """Its rows have no numbers, so the user names them."""
    unnamed = trainer(tmp_path, callbacks=[SawlogCallback("fit", root=tmp_path)])
    with pytest.raises(ArgumentError, match=r"The dataset is a stream.*data_id=lambda batch"):
        unnamed.fit(Module(), DataLoader(Stream(False), 4))
    module = Numbered()
    callback = SawlogCallback("fit", root=tmp_path, data_id=lambda batch: batch[2])
    trainer(tmp_path, callbacks=[callback]).fit(module, DataLoader(Stream(True), 4))
    folder = tmp_path / "fit" / "epoch-0" / "logs" / "whole-float32"
    assert_rows(folder, alone(module), range(10), "model.")


def test_a_sampler_that_repeats_examples(tmp_path):
    module, order = Module(), [3, 1, 3, 0, 2, 4, 5, 6, 6, 7, 8, 9]
    callback = SawlogCallback("fit", root=tmp_path)
    own = DataLoader(TensorDataset(*data()), 4, sampler=order)
    trainer(tmp_path, callbacks=[callback]).fit(module, own)
    folder = tmp_path / "fit" / "epoch-0"
    assert_rows(folder / "logs" / "whole-float32", alone(module), range(10), "model.")
    share = sawlog.store.open(folder / "steps").gather(range(10))["share"]
    np.testing.assert_allclose(share, [1 / 2 if i == 3 else 1 / 4 for i in range(10)])
