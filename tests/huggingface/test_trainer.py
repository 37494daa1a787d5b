"""Rows of a Trainer, after training and while it trains, are those of batches of one example."""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_pt_utils import LabelSmoother

import sawlog.store
from sawlog.errors import ArgumentError
from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer
from sawlog.influence import Logs, training_influence
from sawlog.sinks import MemorySink
from tests.huggingface.small import (
    ROWS,
    alone,
    arguments,
    assert_rows,
    bart,
    bert,
    classifier,
    gpt,
    llama,
    made,
    padded,
    regression,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about itself


def smoothed(model, batch):
    batch = dict(batch)
    labels = batch.pop("labels")
    return LabelSmoother(0.1)(model(**batch), labels, shift_labels=True)


def labelled(kind):
    return [{**text, "labels": kind(i % 3)} for i, text in enumerate(texts())]


CASES = {
    "causal": (gpt, texts(), None, {}),
    "accumulated": (gpt, texts(), None, {"gradient_accumulation_steps": 2}),
    "one example a batch": (
        gpt,
        texts(4),
        None,
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1},
    ),
    "another causal model": (llama, texts(), None, {"gradient_accumulation_steps": 2}),
    "label smoothing": (
        gpt,
        texts(),
        smoothed,
        {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1},
    ),
    "checkpointing": (gpt, texts(), None, {"gradient_checkpointing": True}),
    "masked": (bert, texts(), None, {"gradient_accumulation_steps": 3}),
    "classification": (classifier, labelled(int), None, {"gradient_accumulation_steps": 2}),
    "regression": (regression, labelled(float), None, {"gradient_accumulation_steps": 2}),
    "seq2seq": (bart, texts(), None, {"gradient_accumulation_steps": 2}),
}


SLOW = {"another causal model", "checkpointing", "masked", "one example a batch"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.thorough][: each in SLOW]) for each in CASES]
)
def test_rows(name, tmp_path):
    make, items, loss, options = CASES[name]
    model = make()
    expected = alone(model, items, loss)
    callback = SawlogCallback("training", root=tmp_path)
    trainer = made(tmp_path, model, items, callbacks=[callback], **options)
    trainer.train()
    trainer.extract_log()
    run = trainer.log_run
    ids = range(len(items))
    assert_rows(run.store_path, run._blocks(), ids, expected)
    assert_rows((tmp_path / "training").joinpath(*ROWS), run._blocks(), ids, expected)


@pytest.mark.parametrize("name", ["causal", "classification"])
def test_true_fisher(name, tmp_path):
    """K-FAC with labels drawn from the model where the data has labels; rows with those."""
    make, items, _, options = CASES[name]
    used = []

    class Noting(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            used.append(inputs["labels"])
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = make()
    trainer = patch_trainer(Noting)(
        log_args=LogArguments(
            "run", {"statistic": "kfac", "fisher": "true"}, root=tmp_path, check=False
        ),
        model=model,
        args=arguments(tmp_path, **options),
        train_dataset=items,
        data_collator=padded,
    )
    assert trainer.extract_log().passes == ("K-FAC", "rows")
    run, batches = trainer.log_run, len(used) // 2
    assert_rows(run.store_path, run._blocks(), range(len(items)), alone(model, items))
    given = [padded(items[n : n + 3])["labels"] for n in range(0, len(items), 3)]
    assert all(map(torch.equal, used[batches:], given))
    drawn = [(own, was) for own, was in zip(used, given, strict=False)]
    assert any(not torch.equal(own, was) for own, was in drawn)
    assert all(torch.equal(own == -100, was == -100) for own, was in drawn)
    if name == "causal":  # the first label is never predicted
        assert all(torch.equal(own[:, 0], was[:, 0]) for own, was in drawn)
    else:
        labels = torch.cat(used[:batches]).tolist()
        fakes = [{**item, "labels": label} for item, label in zip(items, labels, strict=True)]
        bias = alone(model, fakes)["classifier.bias"]
        left, _ = run.statistics.kfac("classifier.weight")
        np.testing.assert_allclose(left, bias.T @ bias / len(items), rtol=1e-4, atol=1e-7)


def test_true_fisher_of_other_losses_is_refused(tmp_path):
    trainer = made(
        tmp_path,
        regression(),
        labelled(float),
        log={"config": {"statistic": "kfac", "fisher": "true"}, "check": False},
    )
    with pytest.raises(ArgumentError, match="draws labels of a cross entropy, and the inputs have"):
        trainer.extract_log()


def test_training_is_the_same(tmp_path):
    """Weights and random numbers are those of training without the callback, bit for bit."""
    found = []
    for callbacks in ([], [SawlogCallback("training", {"compress": 2}, root=tmp_path, steps=2)]):
        model = gpt(dropout=0.1)
        trainer = made(
            tmp_path, model, texts(), callbacks=callbacks, learning_rate=0.1, num_train_epochs=2
        )
        trainer.train()
        found.append((model.state_dict(), torch.rand(1)))
    for name, tensor in found[0][0].items():
        assert torch.equal(tensor, found[1][0][name]), name
    assert torch.equal(found[0][1], found[1][1])
    steps = sawlog.store.open(tmp_path / "training" / "epoch-1" / "steps")
    assert {*np.asarray(steps.gather(steps.ids("step"), ["step"])["step"]).tolist()} == {4}


def test_what_is_stored_of_steps(tmp_path):
    model, items = gpt(), texts()
    callback = SawlogCallback("training", root=tmp_path, sinks=[memory := MemorySink()])
    trainer = made(
        tmp_path,
        model,
        items,
        callbacks=[callback],
        gradient_accumulation_steps=2,
        lr_scheduler_type="linear",
        learning_rate=1e-9,
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.train()
    steps = sawlog.store.open(tmp_path / "training" / "epoch-0" / "steps").gather(range(7))
    step, rate, share = (np.asarray(steps[n]) for n in ("step", "learning_rate", "share"))
    assert np.bincount(step).tolist() == [6, 1]
    np.testing.assert_allclose(rate, np.where(step == 0, 1e-9, 5e-10))
    np.testing.assert_allclose(memory.logs["learning_rate"], [1e-9, 5e-10])
    assert memory.logs["loss"].shape == (2,)
    # the shares join rows to the gradient of the step, which is that of the batch here
    rows = Logs((tmp_path / "training").joinpath(*ROWS)).gather(range(7)).rows()
    last = int(np.flatnonzero(step == 1)[0])
    counted = sum(label != -100 for label in items[last]["labels"])
    assert share[last] == pytest.approx((counted - (items[last]["labels"][0] != -100)) / counted)
    queries = {name: each[:2] for name, each in rows.items()}
    scores = training_influence(tmp_path / "training", queries)
    flat = np.concatenate([each.reshape(7, -1) for each in rows.values()], 1)
    order = [scores.ids.tolist().index(i) for i in range(7)]
    np.testing.assert_allclose(
        scores.values[:, order], (flat[:2] @ flat.T) * rate * share, rtol=1e-4, atol=1e-18
    )
    only = training_influence(tmp_path / "training", queries, steps=range(1, 2), weigh=False)
    assert only.ids.tolist() == [last]


def test_correction_by_second_moments(tmp_path):
    model, items = gpt(), texts(4)
    callback = SawlogCallback("training", root=tmp_path, correct=True)
    seen = {}

    class Expected(TrainerCallback):
        def on_step_begin(self, args, state, control, **of):
            if state.global_step != 1:
                return
            grads = alone(of["model"], items)
            for name, parameter in of["model"].named_parameters():
                own = of["optimizer"].state[parameter]
                moments = own["exp_avg_sq"] / (1 - 0.999 ** float(own["step"]))
                seen[name] = grads[name] / (moments.sqrt() + 1e-8).numpy()

    trainer = made(
        tmp_path,
        model,
        items,
        callbacks=[callback, Expected()],
        optim="adamw_torch",
        learning_rate=1e-3,
        per_device_train_batch_size=2,
    )
    trainer.train()
    assert callback.capture is None
    rows = (tmp_path / "training").joinpath(*ROWS)
    ids = np.asarray(Logs(rows).ids)
    assert len(ids) == 2  # there are no moments before the first step
    chosen = {name: each[ids] for name, each in seen.items()}
    assert_rows(rows, trainer.log_run._blocks(), ids, chosen, 1e-3)
