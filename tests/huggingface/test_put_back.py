"""What is changed for the time of a pass is put back, and who writes metrics."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from sawlog.huggingface import SawlogCallback
from sawlog.huggingface._batches import IDS, Batches, ExampleIds, detach
from sawlog.huggingface._content_ids import numbered, row_hash
from sawlog.huggingface._extract import TrainerLogs, one_example
from sawlog.huggingface._loss import alone, evaluating, token_counts
from sawlog.huggingface._padding import counts_positions
from sawlog.run_files._options import read
from sawlog.sinks import MemorySink


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_own_mode_back(fails):
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    model[1].eval()
    model[1][1].train()
    before = [each.training for each in model.modules()]
    assert set(before) == {False, True}
    try:
        with evaluating(model):
            assert not any(each.training for each in model.modules())
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert [each.training for each in model.modules()] == before


class Accelerator:
    def gather(self, value):
        return [value, value]

    gather_for_metrics = gather


def test_metrics_of_a_trainer_are_those_of_training():
    metrics = {"train": defaultdict(list, {"loss": [1.0]}), "eval": defaultdict(list)}
    trainer = SimpleNamespace(accelerator=Accelerator(), _metrics=metrics)
    with alone(trainer):
        assert trainer.accelerator.gather(3) == trainer.accelerator.gather_for_metrics(3) == 3
        metrics["train"]["loss"].append(trainer.accelerator.gather(2.0))
        metrics["eval"]["length"].append(7)
    assert metrics == {"train": {"loss": [1.0]}, "eval": {}}
    assert trainer.accelerator.gather(3) == [3, 3]


@pytest.mark.parametrize("first", [True, False])
def test_the_first_process_alone_writes_metrics(tmp_path, first):
    memory = MemorySink()
    callback = SawlogCallback(root=tmp_path, sinks=[memory])
    state = SimpleNamespace(is_world_process_zero=first, global_step=4)
    callback.on_log(None, state, None, logs={"loss": 0.5, "text": "no number"})
    written = {name: values.tolist() for name, values in memory.logs.items()}
    assert written == ({"loss": [0.5]} if first else {})


def test_epochs_are_counted_where_rounding_is_below_a_whole_number(tmp_path):
    callback = SawlogCallback(root=tmp_path, sinks=[MemorySink()])
    for said, epoch in ((None, 0), (0.5, 0), (3 - 1e-9, 3), (2.0, 2), (4.75, 4)):
        callback.on_epoch_begin(None, SimpleNamespace(epoch=said), None)
        assert callback._epoch == epoch


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"name": f"r{i}", "x": float(i)} for i in range(5)])


def collate(items):
    assert all(set(item) == {"x"} for item in items)  # the column is not passed on
    return {"x": torch.tensor([item["x"] for item in items])}


def test_a_loader_of_a_stream_gets_its_collator_back():
    loader = DataLoader(Stream(), 2, collate_fn=collate)
    ids = ExampleIds(Stream(), "name")
    ids.attach(loader)
    ids.attach(loader)  # twice is once
    batches = list(Batches(loader, ids))
    assert [batch["sawlog_ids"].tolist() for batch in batches] == [
        ["r0", "r1"],
        ["r2", "r3"],
        ["r4"],
    ]
    detach(loader)
    assert vars(loader)["collate_fn"] is collate


def test_contents_are_numbered_and_hashed():
    from collections import Counter

    times = Counter()
    assert numbered(["a", "b", "a", "a"], times) == ["a", "b", "a#2", "a#3"]
    assert numbered(["a", "b"], times) == ["a#4", "b#2"]
    one = torch.arange(6.0)
    assert row_hash({"x": one, "y": 1}) == row_hash({"y": 1, "x": one})
    others = [{"x": one.reshape(2, 3)}, {"x": one.reshape(3, 2)}, {"x": one.double()}, {"z": one}]
    others += [{"x": one}, {"x": one + 0.5}, {"x": one.tolist()[:5]}]
    assert len({row_hash(each) for each in others}) == len(others)


def of_model(**config):
    model = SimpleNamespace(config=SimpleNamespace(**config))
    return SimpleNamespace(
        model=model, accelerator=SimpleNamespace(unwrap_model=lambda model: model)
    )


@pytest.mark.parametrize("shifts", [False, True])
def test_which_labels_count(shifts):
    """The loss of a causal model never sees the first label; 0 is a label as any other."""
    trainer = of_model()
    trainer._loss_shifts_labels = shifts
    labels = torch.tensor([[0, 0, 3, -100], [-100, 5, -100, -100], [7, -100, -100, -100]])
    wanted = [2, 1, 0] if shifts else [3, 1, 1]
    assert token_counts(trainer, {"labels": labels}).tolist() == wanted
    shifted = {"labels": labels, "shift_labels": labels}
    assert token_counts(trainer, shifted).tolist() == [3, 1, 1]
    assert token_counts(trainer, {"labels": labels[:, 0]}).tolist() == [1, 0, 1]
    for none in (labels.float(), None, labels[0, 0]):
        assert token_counts(trainer, {"labels": none}) is None
    encoder = of_model(is_encoder_decoder=True)
    encoder._loss_shifts_labels = True
    assert token_counts(encoder, {"labels": labels}).tolist() == [3, 1, 1]


class OfRun:
    """Notes what it is asked for."""

    def __init__(self):
        self.influence, self.asked = self, []

    def compute_influence_all(self, queries, **options):
        self.asked.append(options)

    def compute_self_influence(self, queries, **options):
        self.asked.append(options)


def test_options_of_scores_go_before_those_of_the_arguments(monkeypatch):
    said = {"mode": "cosine", "damping": 0.1, "curvature": "kfac", "top_k": None}
    logs = TrainerLogs(None, SimpleNamespace(analysis=lambda: said))
    logs._run = run = OfRun()
    monkeypatch.setattr(logs, "queries", lambda dataset: None)
    logs.influence(None, {"damping": 0.2, "names": None, "sign": "negative"})
    logs.self_influence(None, {"damping": 0.3})
    logs.self_influence([1], {"mode": "dot"})
    assert run.asked == [
        {"mode": "cosine", "damping": 0.2, "curvature": "kfac", "sign": "negative"},
        {"damping": 0.3, "curvature": "kfac"},  # which has no modes
        {"damping": 0.1, "curvature": "kfac"},
    ]


def test_one_example_of_several_rows():
    """All first rows come before all second ones, as chosen and rejected answers do."""
    several = torch.arange(12).reshape(6, 2)
    batch = {
        IDS: torch.tensor([7, 8, 9]),
        "pairs": several,
        "texts": list("abcdef"),
        "single": several[:3],
        "other": several[:4],
        "name": "abcdef",
        "rate": 0.5,
        "more": {"a": 1, "b": 2, "c": 3},
    }
    found = one_example(batch, 1)
    assert found[IDS].tolist() == [8]
    assert found["pairs"].tolist() == [[2, 3], [8, 9]]
    assert found["texts"] == ["b", "e"]
    assert found["single"].tolist() == [[2, 3]]
    assert {key: found[key] for key in ("name", "rate", "more")} == {
        key: batch[key] for key in ("name", "rate", "more")
    }
    assert found["other"] is batch["other"]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, False),
        ({"statistic": "kfac"}, True),
        ({"statistic": "ekfac"}, True),
        ({"statistic": "mean"}, False),
        ({"compress": {"kind": "pca", "rank": 2}}, True),
        ({"compress": 4}, False),
    ],
)
def test_which_options_count_positions(options, counts):
    assert counts_positions(read(None, **options)) == counts
