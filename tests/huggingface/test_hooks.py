"""Each option and hook of what logs with a Trainer, with parts that note what they are asked."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Trainer

from sawlog.errors import ArgumentError, CaptureError
from sawlog.huggingface import (
    LogArguments,
    SawlogCallback,
    _arguments,
    _callback,
    _loss,
    patch_trainer,
)
from sawlog.huggingface._callback import _check_rows
from sawlog.huggingface._extract import TrainerLogs, _Examples
from sawlog.huggingface._padding import is_padded_otherwise, position_mask
from sawlog.run_files._options import read
from sawlog.sinks import MemorySink


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"rank": 3}, {}),
        ({"lora": True}, {"compress": 64}),
        ({"lora": True, "rank": 3}, {"compress": 3}),
        ({"lora": True, "config": {"compress": 5}}, {"compress": 5}),
        ({"ekfac": True}, {"statistic": ["ekfac"]}),
        ({"ekfac": True, "config": {"statistic": "mean"}}, {"statistic": ["mean", "ekfac"]}),
    ],
)
def test_options_of_arguments(given, wanted):
    assert LogArguments(**given).options() == read(None, **wanted)


def test_every_argument_reaches_the_run(monkeypatch, tmp_path):
    made, watched = [], []
    monkeypatch.setattr(_arguments, "Run", lambda *args, **own: made.append((args, own)))
    sinks = [MemorySink()]
    given = LogArguments(
        "gpt",
        {"compress": 2},
        root=tmp_path,
        exists="replace",
        sinks=sinks,
        names="a*",
        types=[nn.Linear],
        uncovered="error",
    )
    given.open()
    ((args, options),) = made
    assert args == ("gpt",)
    assert read(options.pop("config")) == read(None, compress=2)
    assert options == {"root": tmp_path, "exists": "replace", "sinks": sinks}
    run = SimpleNamespace(watch=lambda *args, **own: watched.append((args, own)))
    given.watch(run, "model")
    assert watched == [
        (("model", "a*", [nn.Linear]), {"uncovered": "error", "quiet": True}),
    ]


# -- while training -------------------------------------------------------------------------------


class Noting:
    """In place of a capture."""

    active = True

    def __init__(self):
        self.declared = []

    def declare_items(self, *given):
        self.declared.append(given)

    def declare_loss(self, loss):
        self.declared.append(loss)


def accelerated(processes, parts):
    own = {"accelerator": SimpleNamespace(num_processes=processes)}
    return SimpleNamespace(**own, **({} if parts is None else {"get_tp_size": lambda: parts}))


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize(
    ("processes", "parts", "times"), [(4, 2, 2.0), (4, None, 4.0), (1, 1, 1.0)]
)
@pytest.mark.parametrize("way", ["option", "place", "none"])
def test_what_the_trainer_divides_by(monkeypatch, averages, processes, parts, times, way):
    """The number of items of a step, times the processes that average, without those of a model."""
    callback = SawlogCallback("t")
    callback.capture = Noting()
    callback._trainer = accelerated(processes, parts)
    callback._trainer.args = SimpleNamespace(average_tokens_across_devices=averages)
    monkeypatch.setattr(_callback, "token_counts", lambda trainer, inputs: inputs["counts"])
    args, options = {
        "option": ((), {"num_items_in_batch": 9}),
        "place": ((False, 9), {}),
        "none": ((), {}),
    }[way]
    found = callback._compute_loss(
        lambda *_, **__: ("loss", "outputs"), "model", {"counts": [1, 2]}, *args, **options
    )
    total = None if way == "none" else 9
    wanted = times if averages and total is not None else 1.0
    assert found == ("loss", "outputs")
    assert callback.capture.declared == [([1, 2], total, wanted), "loss"]
    callback.capture.declared.clear()
    callback._compute_loss(lambda *_, **__: "loss", "model", {"counts": None}, *args, **options)
    assert callback.capture.declared == ["loss"]


def test_all_numbers_of_a_log_are_metrics(tmp_path):
    memory = MemorySink()
    callback = SawlogCallback(root=tmp_path, sinks=[memory])
    state = SimpleNamespace(is_world_process_zero=True, global_step=5)
    logs = {"loss": 0.5, "tokens": 7, "norm": torch.tensor(2.0), "note": "text"}
    callback.on_log(None, state, None, logs)
    assert {name: values.tolist() for name, values in memory.logs.items()} == {
        "loss": [0.5],
        "tokens": [7],
        "norm": [2.0],
    }
    assert memory.records["loss"].steps["step"].tolist() == [5]


def test_a_trainer_gets_back_what_was_its_own(monkeypatch):
    detached, closed = [], []
    monkeypatch.setattr(_callback, "detach", detached.append)
    callback = SawlogCallback("t")
    trainer = SimpleNamespace(training_step=1, compute_loss=2, other=3)
    callback._trainer, callback._loader = trainer, "loader"
    callback.capture = SimpleNamespace(close=lambda: closed.append(1))
    for _ in range(2):
        callback._stop()
    assert vars(trainer) == {"other": 3}
    assert (detached, closed, callback.capture) == (["loader"], [1], None)


def test_ids_begin_anew_with_each_epoch():
    callback, state = SawlogCallback("t"), SimpleNamespace(epoch=2.0)
    callback.on_epoch_begin(None, state, None)  # nothing is captured
    restarted = []
    callback.capture = Noting()
    callback._ids = SimpleNamespace(restart=lambda: restarted.append(1))
    callback.on_epoch_begin(None, state, None)
    assert (restarted, callback._epoch) == ([1], 2)


def test_everything_is_written_with_a_checkpoint(monkeypatch):
    flushed = []
    callback = SawlogCallback("t")
    monkeypatch.setattr(callback._metrics, "flush", lambda: flushed.append("metrics"))
    callback.on_save(None, None, None)
    callback.capture = SimpleNamespace(flush=lambda: flushed.append("rows"))
    callback.on_save(None, None, None)
    assert flushed == ["metrics", "metrics", "rows"]


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_two_examples_in_one_row_are_refused(examples):
    inputs = {"input_ids": torch.zeros(1, 6), "lengths": torch.zeros(3)}
    if examples == 1:
        return _check_rows(inputs, examples)
    with pytest.raises(CaptureError, match=f"joins {examples} examples into one row"):
        _check_rows(inputs, examples)


# -- after training -------------------------------------------------------------------------------


def computing(loss):
    class Odd:
        accelerator = SimpleNamespace(autocast=lambda: torch.no_grad())
        compute_loss_context_manager = staticmethod(torch.enable_grad)

        def _prepare_inputs(self, inputs):
            return {**inputs, "prepared": True}

        def compute_loss(self, model, inputs):
            assert inputs["prepared"]
            return loss

    return Odd()


def test_losses_of_examples_are_joined_as_the_trainer_does(monkeypatch):
    """A Trainer takes the mean of a vector of losses, and the run is told what counts."""
    weight = torch.tensor([1.0, 5.0], requires_grad=True)
    noted = []
    run = SimpleNamespace(
        draws_labels=False,
        declare_loss=lambda loss: noted.append(loss) or loss,
        declare_items=lambda counts: noted.append(counts),
    )
    monkeypatch.setattr(_loss, "token_counts", lambda trainer, inputs: inputs.get("counts"))
    found = _loss.extraction_loss(computing(weight * 2), None, {"counts": [3, 4]}, run)
    assert noted[0] == [3, 4]
    assert found.item() == 6.0
    assert noted[1] is found
    noted.clear()
    one = weight.sum()
    assert _loss.extraction_loss(computing(one), None, {}, run) is one
    assert noted == [one]
    with pytest.raises(ArgumentError, match="returned no loss with a gradient"):
        _loss.extraction_loss(computing(torch.ones(())), None, {}, run)


def test_what_is_logged_of_which_dataset(monkeypatch):
    """Queries are not divided among processes, and only the data is checked."""
    asked = []
    run = SimpleNamespace(
        save=lambda on: asked.append(("save", on)),
        eval=lambda: asked.append("eval"),
        get_log=lambda: "log",
    )
    trainer = SimpleNamespace(train_dataset="train")
    for check in (True, False):
        logs = TrainerLogs(trainer, SimpleNamespace(check=check))
        logs._run = run
        monkeypatch.setattr(
            logs, "_pass", lambda *args, **own: asked.append((*args, own)) or "done"
        )
        assert logs.extract() == "done"
        assert logs.extract("more") == "done"
        assert asked == [
            ("save", True),
            ("train", "logging", check, {}),
            ("save", True),
            ("more", "logging", check, {}),
        ]
        asked.clear()
        assert logs.queries("dev") == "log"
        assert asked == ["eval", ("dev", "queries", False, {"shards": False}), ("save", True)]
        asked.clear()


class OfTrainer:
    """In place of what logs: notes what the methods of a Trainer ask for."""

    def __init__(self):
        self.asked = []

    def extract(self, dataset):
        self.asked.append(("extract", dataset))

    def influence(self, dataset, options):
        self.asked.append(("influence", dataset, options))

    def self_influence(self, dataset, options):
        self.asked.append(("self", dataset, options))


def test_methods_of_a_trainer_pass_on_what_they_get():
    kind = patch_trainer(Trainer)
    trainer = object.__new__(kind)
    trainer.log_args, trainer._sawlog = LogArguments(), OfTrainer()
    trainer.train_dataset, trainer.eval_dataset = "train", {"dev": "d", "test": "t"}
    trainer.extract_log()
    trainer.extract_log("more")
    trainer.influence("dev", top_k=3)
    trainer.influence("test")
    trainer.self_influence(damping=0.5)
    trainer.self_influence("other")
    assert trainer._sawlog.asked == [
        ("extract", None),
        ("extract", "more"),
        ("influence", "d", {"top_k": 3}),
        ("influence", "t", {}),
        ("self", None, {"damping": 0.5}),  # the examples that are stored
        ("self", "other", {}),
    ]
    with pytest.raises(ArgumentError, match="several evaluation datasets"):
        trainer.influence()


def of_dataset(monkeypatch, batch, size=3, world=1, rank=0, many=7):
    """The examples of a dataset, and the arguments of their Trainer."""
    args = SimpleNamespace(
        world_size=world,
        process_index=rank,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=8,
        dataloader_drop_last=True,
    )
    trainer = SimpleNamespace(args=args, accelerator=SimpleNamespace(), seen=[])

    def loader(dataset):
        both = args.per_device_eval_batch_size, args.dataloader_drop_last
        trainer.seen.append((*both, trainer.accelerator.prepare("plain", device_placement=[True])))
        return [batch() for _ in range(2)]

    trainer.get_test_dataloader = loader
    examples = _Examples(trainer, range(many), None, True, False)
    monkeypatch.setattr(examples.ids, "attach", lambda loader: None)
    monkeypatch.setattr(examples.ids, "take", lambda batch: batch["ids"])
    return examples, trainer


@pytest.mark.parametrize(("width", "sizes"), [(3, [3]), (1, [3, 1])])
def test_arguments_of_a_trainer_are_put_back(monkeypatch, width, sizes):
    """Nothing is dropped; and where a batch has one row for all, examples come one by one."""

    def batch():
        return {"ids": range(3), "x": torch.rand(width, 4)}

    examples, trainer = of_dataset(monkeypatch, batch)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with examples.loader():
        assert trainer.seen == [(size, False, "plain") for size in sizes]
        args = trainer.args
        assert (args.per_device_eval_batch_size, args.dataloader_drop_last) == (8, True)
        assert not vars(trainer.accelerator)
    drawn = torch.get_rng_state()
    torch.set_rng_state(before)
    for _ in range(2 * len(sizes)):  # what the loaders here draw, and no more
        torch.rand(width, 4)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(("world", "many"), [(2, 7), (3, 7), (3, 9), (4, 3)])
def test_every_example_is_of_one_process(monkeypatch, world, many):
    found = []
    for rank in range(world):
        examples, _ = of_dataset(monkeypatch, dict, world=world, rank=rank, many=many)
        found += examples.ids.positions.tolist()
    assert sorted(found) == list(range(many))


def test_a_mask_of_other_rows_says_nothing():
    trainer = SimpleNamespace(
        model=None, accelerator=SimpleNamespace(unwrap_model=lambda model: model)
    )
    mask = torch.ones(4, 5)
    assert position_mask(trainer, {"attention_mask": mask}, 4) is mask
    assert position_mask(trainer, {"attention_mask": mask}, 2) is None  # pairs of sequences
    assert position_mask(trainer, {"attention_mask": mask[0]}, 5) is None
    assert position_mask(trainer, {"attention_mask": [1]}, 1) is None
    assert position_mask(trainer, {"mask": mask}, 4, "mask") is mask


@pytest.mark.parametrize(
    ("keys", "two", "unknown"),
    [
        ([], False, False),
        (["attention_mask"], False, False),
        (["attention_mask"], True, True),
        (["decoder_attention_mask"], False, True),
        (["chosen_attention_mask", "rejected_attention_mask"], False, True),
        (["mask"], True, False),
    ],
)
def test_which_masks_say_nothing_of_all_layers(keys, two, unknown):
    config = SimpleNamespace(is_encoder_decoder=two)
    trainer = SimpleNamespace(
        model=SimpleNamespace(config=config),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
    )
    batch = {"input_ids": torch.zeros(4, 5), **{key: torch.ones(4, 5) for key in keys}}
    assert is_padded_otherwise(trainer, batch, 4) is unknown
