"""Each hook and option of the callback, of ``extract`` and of the logger, with parts that note."""

import contextlib
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sawlog.errors import ArgumentError, CaptureError
from sawlog.lightning import SawlogCallback, SawlogLogger, _callback, _extract, extract
from sawlog.lightning._callback import PositionedBatch
from sawlog.lightning._extract import FirstBatches
from sawlog.sinks import MemorySink

pytestmark = pytest.mark.filterwarnings("ignore")  # of lightning: about workers, devices, itself


class Noting:
    """In place of a capture: notes what it is asked for."""

    def __init__(self):
        self.asked, self.left, self.declared, self.closed = [], [], [], 0

    @contextlib.contextmanager
    def __call__(self, ids, **options):
        self.asked.append((ids, options))
        try:
            yield
        except BaseException as error:
            self.left.append(type(error))
            raise
        self.left.append(None)

    def declare_loss(self, loss):
        self.declared.append(loss)

    def close(self):
        self.closed += 1


def noting(**options):
    callback = SawlogCallback("fit", data_id=lambda batch: batch["id"], **options)
    callback.capture = Noting()
    return callback


STATE = SimpleNamespace(global_step=7, current_epoch=2)


@pytest.mark.parametrize("mask", [None, lambda batch: batch["mask"]])
def test_a_batch_has_ids_step_epoch_and_mask(mask):
    callback = noting(mask=mask)
    callback.on_train_batch_start(STATE, None, {"id": [4, 5], "mask": "m"}, 3)
    callback.on_train_batch_end(STATE, None, None, None, 3)
    wanted = {"step": 7, "epoch": 2, "mask": None if mask is None else "m"}
    assert callback.capture.asked == [([4, 5], wanted)]
    assert callback.capture.left == [None]


def test_positions_are_those_of_one_batch():
    callback = SawlogCallback("fit")
    callback._positions = [3, 1]
    assert callback._ids("batch") == [3, 1]
    with pytest.raises(CaptureError, match="Which examples a batch has is not known"):
        callback._ids("batch")


def test_an_exception_gives_the_batch_up_and_writes_the_others():
    callback = noting()
    callback.on_train_batch_start(STATE, None, {"id": [1]}, 0)
    callback.on_exception(STATE, None, KeyboardInterrupt())
    assert callback.capture.left == [KeyboardInterrupt]
    assert callback.capture.closed == 1


@pytest.mark.parametrize("kind", ["a tensor", "a dict", "none", "a dict without"])
def test_the_loss_of_a_training_step(kind):
    callback, loss = noting(), torch.ones(())
    found = {
        "a tensor": loss,
        "a dict": {"loss": loss, "logits": torch.zeros(3)},
        "none": None,
        "a dict without": {"loss": None},
    }[kind]
    assert callback._training_step(lambda batch, index: found, "batch", 1) is found
    assert callback.capture.declared == ([] if "none" in kind or "without" in kind else [loss])
    assert callback._skips is ("none" in kind or "without" in kind)


GIVEN = {
    "config": {"compress": 2},
    "root": "elsewhere",
    "steps": [1, 2],
    "correct": True,
    "names": ["a"],
    "types": [nn.Linear],
    "uncovered": "error",
    "exists": "replace",
}


@pytest.mark.parametrize("several", [["one"], ["one", "two"]])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_capture_gets_every_option(monkeypatch, wrapped, several):
    made = []
    monkeypatch.setattr(
        _callback, "TrainingCapture", lambda model, **own: made.append((model, own))
    )
    module = SimpleNamespace(automatic_optimization=True, training_step=None)
    model = object.__new__(DistributedDataParallel) if wrapped else SimpleNamespace()
    strategy = SimpleNamespace(model=model)
    SawlogCallback("fit", **GIVEN).on_train_start(
        SimpleNamespace(strategy=strategy, optimizers=several), module
    )
    ((found, options),) = made
    assert found is (model if wrapped else module)
    optimizer = "one" if len(several) == 1 else None  # others have rates of their own
    assert options == {"project": "fit", "optimizer": optimizer, **GIVEN}


@pytest.fixture
def loaders(monkeypatch):
    """Which loaders carry positions, and which did."""
    attached, detached = [], []
    monkeypatch.setattr(_callback, "attach_positions", lambda loader, *_: attached.append(loader))
    monkeypatch.setattr(_callback, "detach_positions", detached.append)
    return attached, detached


class Strategy:
    def process_dataloader(self, loader):
        return f"processed {loader}"


class Module:
    def _on_before_batch_transfer(self, batch, index):
        return batch, index


def of_trainer(training=True):
    plugin = SimpleNamespace(convert_input=lambda batch: f"converted {batch}")
    return SimpleNamespace(strategy=Strategy(), training=training, precision_plugin=plugin)


def test_loaders_carry_positions_while_fitting_alone(loaders):
    attached, detached = loaders
    trainer, module, callback = of_trainer(), Module(), SawlogCallback("fit")
    callback.setup(trainer, module, "fit")
    assert trainer.strategy.process_dataloader("a") == "processed a"
    trainer.training = False  # the validation before and while training
    assert trainer.strategy.process_dataloader("b") == "processed b"
    assert attached == ["processed a"]
    # a batch is converted to the precision of training, as without positions
    assert module._on_before_batch_transfer(PositionedBatch("x", [5, 6]), 0) == ("converted x", 0)
    assert callback._positions == [5, 6]
    assert module._on_before_batch_transfer("plain", 1) == ("plain", 1)
    callback.teardown(trainer, module, "fit")
    assert detached == ["processed a"]
    assert not vars(trainer.strategy)
    assert not vars(module)
    callback.teardown(trainer, module, "fit")
    assert detached == ["processed a"]


@pytest.mark.parametrize(
    ("stage", "options"), [("validate", {}), ("test", {}), ("fit", {"data_id": len})]
)
def test_nothing_is_changed_where_positions_are_not_needed(loaders, stage, options):
    trainer, module = of_trainer(), Module()
    SawlogCallback("fit", **options).setup(trainer, module, stage)
    assert not vars(trainer.strategy)
    assert not vars(module)


# -- after fitting --------------------------------------------------------------------------------


class Fitted(nn.Module):
    """Parts of it are frozen in eval mode, and its step returns a dict."""

    device = "there"

    def __init__(self, found=None):
        super().__init__()
        self.one, self.two = nn.Dropout(), nn.Dropout()
        self.two.eval()
        self.found = torch.ones(()) if found is None else found
        self.logged, self.seen = [], []

    def log(self, *args, **options):
        self.logged.append(args)

    def training_step(self, batch, index):
        self.seen.append((batch, index, [each.training for each in self.modules()]))
        self.log("loss", 1.0)
        return {"loss": self.found}


def extracted(module, monkeypatch, **options):
    """What the run is asked for; a batch is moved to the device of the module."""
    asked = []
    monkeypatch.setattr(_extract, "move_data_to_device", lambda batch, device: (batch, device))

    def run(step, loader, data_id, **more):
        asked.append((step(None, "batch"), loader, data_id, more))
        return "done"

    assert extract(SimpleNamespace(extract=run), module, "loader", "id", **options) == "done"
    return asked


def test_a_module_is_as_it_was_after_extraction(monkeypatch):
    module = Fitted()
    (found,) = extracted(module, monkeypatch, mask=len, check=False, quiet=True)
    options = {"mask": len, "check": False, "quiet": True}
    assert found == (module.found, "loader", "id", options)
    assert module.seen == [(("batch", "there"), 0, [False] * 3)]
    assert [each.training for each in module.modules()] == [True, True, False]
    assert not module.logged
    module.log("loss", 2.0)
    assert module.logged == [("loss", 2.0)]


def test_options_of_extraction_without_any(monkeypatch):
    (found,) = extracted(Fitted(), monkeypatch)
    assert found[3] == {"mask": None, "check": True, "quiet": False}


def test_a_step_without_a_loss_is_refused(monkeypatch):
    module = Fitted(found="nothing")
    with pytest.raises(ArgumentError, match="training_step of the module returned no loss"):
        extracted(module, monkeypatch)
    assert [each.training for each in module.modules()] == [True, True, False]


@pytest.mark.parametrize(("most", "wanted"), [(-1, "abc"), (1, "a"), (2, "ab"), (5, "abc")])
def test_the_first_batches(most, wanted):
    batches = FirstBatches("abc", most)
    assert ["".join(batches) for _ in range(2)] == [wanted] * 2


# -- the logger -----------------------------------------------------------------------------------


def test_steps_of_metrics(tmp_path):
    memory = MemorySink()
    logger = SawlogLogger("run", root=tmp_path, sinks=[memory])
    logger.log_metrics({"loss": 2.0}, step=0)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.log_metrics({"score": 3.0})
    assert memory.records["loss"].steps["step"].tolist() == [0, 1]
    assert not memory.records["score"].steps


@pytest.mark.parametrize(
    ("status", "failed"), [("success", False), ("finished", False), ("failed", True)]
)
def test_how_a_run_ended(tmp_path, status, failed):
    memory = MemorySink()
    logger = SawlogLogger("run", root=tmp_path, sinks=[memory])
    logger.log_metrics({"loss": 2.0}, step=0)
    logger.finalize(status)
    assert memory.failed is failed


@pytest.mark.parametrize("given", [{"lr": 0.5}, Namespace(lr=0.5)])
def test_hyperparameters(tmp_path, given):
    logger = SawlogLogger("run", root=tmp_path)
    logger.log_hyperparams(given)
    assert (tmp_path / "run" / "hyperparameters.json").read_text() == '{\n  "lr": 0.5\n}'
