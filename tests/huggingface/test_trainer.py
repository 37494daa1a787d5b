"""Rows of a Trainer, after training and while it trains, are those of batches of one example."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback
from transformers.trainer_pt_utils import LabelSmoother

import sawlog.store
from sawlog.errors import ArgumentError, CaptureError
from sawlog.huggingface import LogArguments, SawlogCallback, add_scores, patch_trainer
from sawlog.influence import Logs, training_influence
from sawlog.sinks import MemorySink
from tests.huggingface.small import (
    alone,
    arguments,
    assert_rows,
    bart,
    bert,
    classifier,
    gpt,
    llama,
    padded,
    regression,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about itself

LogTrainer = patch_trainer(Trainer)
ROWS = ("epoch-0", "logs", "whole-float32")


def smoothed(model, batch):
    batch = dict(batch)
    labels = batch.pop("labels")
    return LabelSmoother(0.1)(model(**batch), labels, shift_labels=True)


def labelled(kind):
    return [{**text, "labels": kind(i % 3)} for i, text in enumerate(texts())]


def flattened(items):
    """As collators without padding: all examples in one row, told apart by their positions."""

    def row(parts):
        return torch.tensor([[*itertools.chain.from_iterable(parts)]])

    return {
        "input_ids": row(item["input_ids"] for item in items),
        "labels": row([-100, *item["labels"][1:]] for item in items),
        "position_ids": row(range(len(item["input_ids"])) for item in items),
    }


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


def made(tmp_path, model, items, *, log=None, **options):
    given = {"train_dataset": items, "data_collator": padded}
    trainer_options = {k: options.pop(k) for k in [*options] if k in (*given, "callbacks")}
    return LogTrainer(
        log_args=LogArguments("run", root=tmp_path, **(log or {})),
        model=model,
        args=arguments(tmp_path, **options),
        **{**given, **trainer_options},
    )


@pytest.mark.parametrize("name", CASES)
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


def test_a_dataset_of_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    items = [{**text, "name": f"text {i}"} for i, text in enumerate(texts())]
    data = datasets.Dataset.from_list(items)
    model = classifier_free = gpt()
    expected = alone(classifier_free, texts())
    trainer = made(
        tmp_path,
        model,
        data,
        log={"config": {"statistic": "mean"}, "lora": True, "rank": 4, "data_id": "name"},
    )
    trainer.extract_log()
    names = [f"text {i}" for i in range(7)]
    assert sorted(Logs(trainer.log_run.store_path).ids) == names
    scores = trainer.influence(data.select([2, 4]), curvature="identity")
    assert scores.queries.tolist() == ["text 2", "text 4"]
    ranking = trainer.self_influence(curvature="identity")
    found = add_scores(data, ranking, data_id="name", column="own")
    rows = Logs(trainer.log_run.store_path).gather(names).rows()
    want = sum((each.reshape(7, -1) ** 2).sum(1) for each in rows.values())
    np.testing.assert_allclose(found["own"], want, rtol=1e-4)
    one = add_scores(data, scores, query="text 4", data_id="name")
    assert one["influence"][4] == pytest.approx(want[4], rel=1e-4)
    assert len(expected) > 0
    with pytest.raises(ArgumentError, match="7 rows have no score"):
        add_scores(data, scores)
    with pytest.raises(ArgumentError, match="not a column of the dataset"):
        made(tmp_path, gpt(), data, log={"data_id": "title"}).extract_log()


def test_influence_of_whole_gradients(tmp_path):
    model, items = gpt(), texts()
    grads = alone(model, items)
    flat = np.concatenate([each.reshape(7, -1) for each in grads.values()], 1)
    trainer = made(tmp_path, model, items, dataloader_drop_last=True)
    trainer.eval_dataset = items[:2]
    extraction = trainer.extract_log()
    assert extraction.check.ok
    assert extraction.examples == (7,)  # also of the last, smaller batch
    scores = trainer.influence(curvature="identity")
    np.testing.assert_allclose(scores.values, flat[:2] @ flat.T, rtol=1e-3, atol=1e-4)
    assert trainer.extract_log().examples == (0,)  # nothing is left to log
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


def test_an_interrupted_extraction_continues(tmp_path):
    model, items = gpt(), texts()
    trainer = made(tmp_path, model, items)
    plain, calls = trainer.compute_loss, []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == 8:  # after the check and one batch
            raise KeyboardInterrupt
        return plain(*args, **options)

    trainer.compute_loss = failing
    with pytest.raises(KeyboardInterrupt):
        trainer.extract_log()
    trainer.log_run.close()
    before = len(Logs(trainer.log_run.store_path))
    assert 0 < before < 7
    again = made(tmp_path, model, items)
    assert again.extract_log().examples == (7 - before,)
    assert_rows(again.log_run.store_path, again.log_run._blocks(), range(7), alone(model, items))


def test_training_that_is_resumed(tmp_path):
    """Batches that a resumed Trainer skips do not shift the ids of the others."""
    model, items = gpt(), texts(8)
    expected = alone(model, items)
    options = {"per_device_train_batch_size": 2, "num_train_epochs": 2}
    saves = {"save_strategy": "steps", "save_steps": 3, "max_steps": 5}
    made(tmp_path, model, items, **options, **saves).train()
    callback = SawlogCallback("training", root=tmp_path)
    trainer = made(tmp_path, model, items, callbacks=[callback], **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "output" / "checkpoint-3"))
    folder = tmp_path / "training"
    assert len(Logs(folder.joinpath(*ROWS))) == 2  # of the fourth step
    for epoch in ("epoch-0", "epoch-1"):
        logs = Logs(folder / epoch / "logs" / "whole-float32")
        ids = np.asarray(logs.ids)
        own = {name: each[ids] for name, each in expected.items()}
        assert_rows(logs.path, trainer.log_run._blocks(), ids, own)
    steps = sawlog.store.open(folder / "epoch-1" / "steps")
    assert sorted({*np.asarray(steps.gather(range(8), ["step"])["step"]).tolist()}) == [4, 5, 6, 7]


def test_a_stream_has_ids_of_a_column(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({**text, "id": f"t{i}"} for i, text in enumerate(texts()))

    model = gpt()
    options = {"remove_unused_columns": False, "max_steps": 1}
    trainer = made(tmp_path, model, Stream(), log={"data_id": "id"}, **options)
    trainer.extract_log()
    names = [f"t{i}" for i in range(7)]
    blocks = trainer.log_run._blocks()
    assert_rows(trainer.log_run.store_path, blocks, names, alone(model, texts()))
    with pytest.raises(ArgumentError, match="stream, whose rows have no numbers"):
        made(tmp_path, model, Stream(), **options).extract_log()


def test_rows_without_padding(tmp_path):
    """Examples that a collator joins into one row are logged one by one, or refused."""
    model, items = llama(), texts(4)
    trainer = made(tmp_path, model, items, data_collator=flattened)
    trainer.extract_log()
    assert_rows(
        trainer.log_run.store_path, trainer.log_run._blocks(), range(4), alone(model, items)
    )
    callback = SawlogCallback("training", root=tmp_path)
    trainer = made(tmp_path, model, items, data_collator=flattened, callbacks=[callback])
    with pytest.raises(CaptureError, match="joins 3 examples into one row"):
        trainer.train()


def test_adapters_and_mixed_precision(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(llama(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    items = texts(5)
    expected = alone(model, items)
    assert {name.split(".")[-3] for name in expected} == {"lora_A", "lora_B"}
    callback = SawlogCallback("training", root=tmp_path)
    trainer = made(tmp_path, model, items, callbacks=[callback], gradient_accumulation_steps=2)
    trainer.train()
    trainer.extract_log()
    blocks = trainer.log_run._blocks()
    assert_rows(trainer.log_run.store_path, blocks, range(5), expected)
    assert_rows((tmp_path / "training").joinpath(*ROWS), blocks, range(5), expected)
    half = made(tmp_path / "half", llama(), items, bf16=True)
    half.extract_log()
    rows = Logs(half.log_run.store_path).gather(range(5)).rows()
    full = alone(llama(), items)
    got, want = rows["model.layers.0.mlp.up_proj.weight"], full["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())


def test_other_trainers(tmp_path):
    options = {"predict_with_generate": True, "use_cpu": True, "report_to": "none"}
    args = Seq2SeqTrainingArguments(str(tmp_path / "output"), disable_tqdm=True, **options)
    kind = patch_trainer(Seq2SeqTrainer)
    assert kind.__name__ == "LogSeq2SeqTrainer"
    log = LogArguments("run", root=tmp_path, lora=True, rank=2, ekfac=True)
    trainer = kind(log, model=bart(), args=args, train_dataset=texts(), data_collator=padded)
    assert trainer.extract_log().passes == ("K-FAC", "EK-FAC and rows")
    assert trainer.influence(texts(2), top_k=3).values.shape == (2, 3)


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (lambda t, p: LogTrainer(model=gpt()), r"needs log_args=LogArguments"),
        (lambda t, p: made(p, gpt(), texts()).influence(), r"no eval_dataset\. Hint: trainer"),
        (lambda t, p: made(p, gpt(), None).extract_log(), r"no train_dataset"),
        (lambda t, p: made(p, gpt(), texts()).influence("dev"), r"no evaluation dataset 'dev'"),
        (lambda t, p: SawlogCallback(), r"would log nothing"),
        (
            lambda t, p: made(
                p,
                gpt(),
                texts(),
                callbacks=[SawlogCallback("t", {"statistic": "kfac"}, root=p)],
            ).train(),
            r"Statistics are those of one state of the weights",
        ),
        (
            lambda t, p: LogArguments(config={"statistic": "kfac"}, ekfac=True).options(),
            r"leave it out of config",
        ),
    ],
)
def test_what_is_refused(does, message, tmp_path):
    with pytest.raises(ArgumentError, match=message), contextlib.nullcontext():
        does(None, tmp_path)


def test_another_loss_is_refused(tmp_path):
    """A sum that is divided by a number that is no count gets no factor, but an error."""

    class Odd(LogTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(input_ids=inputs["input_ids"]).logits
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum"
            )
            return losses / 17.5

    trainer = Odd(
        log_args=LogArguments("run", root=tmp_path),
        model=gpt(),
        args=arguments(tmp_path),
        train_dataset=texts(),
        data_collator=padded,
    )
    with pytest.raises((ArgumentError, CaptureError), match=r"it is a sum divided by 17\.5"):
        trainer.extract_log()
