"""Datasets, resumption and refusals of a Trainer that logs."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from transformers import (
    BertForQuestionAnswering,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

import sawlog.store
from sawlog.errors import ArgumentError, CaptureError
from sawlog.huggingface import LogArguments, SawlogCallback, add_scores, patch_trainer
from sawlog.influence import Logs
from tests.huggingface.small import (
    ROWS,
    LogTrainer,
    alone,
    arguments,
    assert_rows,
    bart,
    bert,
    gpt,
    llama,
    made,
    padded,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about itself


def flattened(items):
    """As collators without padding: all examples in one row, told apart by their positions."""

    def row(parts):
        return torch.tensor([[*itertools.chain.from_iterable(parts)]])

    return {
        "input_ids": row(item["input_ids"] for item in items),
        "labels": row([-100, *item["labels"][1:]] for item in items),
        "position_ids": row(range(len(item["input_ids"])) for item in items),
    }


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


def test_queries_are_in_the_order_of_their_dataset(tmp_path):
    """Also where the Trainer sorts its data by length."""
    items = texts(7)[::-1]
    options = {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 2}
    trainer = made(tmp_path, gpt(), items, **options)
    trainer.extract_log()
    scores = trainer.influence(items[:5], curvature="identity")
    assert scores.queries.tolist() == list(range(5))
    own = scores.values[range(5), [scores.ids.tolist().index(i) for i in range(5)]]
    sizes = alone(gpt(), items[:5])
    expected = sum((rows.reshape(5, -1).astype(np.float64) ** 2).sum(1) for rows in sizes.values())
    np.testing.assert_allclose(own, expected, rtol=1e-4)
    assert trainer.args.train_sampling_strategy == "group_by_length"


def test_gradients_that_are_0_but_for_rounding(tmp_path):
    """Adding a vector to all positions changes no answer, so a bias before them has none."""
    items = [{**item, "start": i % 3, "end": 1 + i % 2} for i, item in enumerate(texts())]

    def collate(several):
        batch = padded(several)
        del batch["labels"]
        places = {f"{k}_positions": torch.tensor([e[k] for e in several]) for k in ("start", "end")}
        return {**batch, **places}

    trainer = made(
        tmp_path,
        bert(BertForQuestionAnswering),
        items,
        data_collator=collate,
        remove_unused_columns=False,
    )
    assert trainer.extract_log().check.ok


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


def test_what_a_checkpoint_was_trained_on_is_on_disk_with_it(tmp_path):
    """Whoever resumes from a checkpoint finds the rows and metrics of all steps before it."""
    found = []

    class Killed(TrainerCallback):
        def on_save(self, args, state, control, **_):
            found.append(state.global_step)
            found.append(len(Logs(tmp_path.joinpath("training", *ROWS))))
            with sawlog.store.open(tmp_path / "training" / "metrics") as reader:
                found.append(reader.entries("loss").steps["step"].tolist())

    callbacks = [SawlogCallback("training", root=tmp_path), Killed()]
    saves = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3, "logging_steps": 1}
    saves["logging_strategy"] = "steps"
    options = {"per_device_train_batch_size": 2, "callbacks": callbacks}
    made(tmp_path, gpt(), texts(8), **options, **saves).train()
    assert found[:3] == [2, 4, [1, 2]]


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
