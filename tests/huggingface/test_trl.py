"""TRL's trainers: supervised fine-tuning with a fused head, and preferences."""

import numpy as np
import pytest

from sawlog.errors import ArgumentError
from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer
from sawlog.huggingface._loss import check_supported
from tests.huggingface.small import VOCABULARY, alone, assert_rows, llama
from tests.huggingface.test_logix_trainer import tokenizer

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of trl, about itself
    pytest.mark.thorough,
]
OPTIONS = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "num_train_epochs": 1,
    "learning_rate": 0.0,
    "optim": "sgd",
    "max_length": 16,
    "dataloader_pin_memory": False,
}


def words(many, seed):
    random = np.random.default_rng(seed)
    return " ".join(f"w{i}" for i in random.integers(4, VOCABULARY, many))


def check(tmp_path, kind, args, columns, loss=None, more=None, data=None, **options):
    data = datasets.Dataset.from_list(
        data
        or [
            {name: words(2 + i % (3 + k), 100 * k + i) for k, name in enumerate(columns)}
            for i in range(7)
        ]
    )
    callback = SawlogCallback("training", root=tmp_path)
    trainer = patch_trainer(kind)(
        log_args=LogArguments("run", root=tmp_path),
        model=llama(),
        args=args(str(tmp_path / "output"), **OPTIONS, **(more or {})),
        train_dataset=data,
        processing_class=tokenizer(),
        callbacks=[callback],
        **options,
    )
    trainer.train()
    trainer.extract_log()
    items = [trainer.train_dataset[i] for i in range(7)]
    plain = loss or (lambda model, batch: trainer.compute_loss(model, dict(batch)))
    expected = alone(trainer.model, items, plain, trainer.data_collator)
    blocks = trainer.log_run._blocks()
    assert_rows(trainer.log_run.store_path, blocks, range(7), expected, 1e-4)
    folder = tmp_path / "training" / "epoch-0" / "logs" / "whole-float32"
    assert_rows(folder, blocks, range(7), expected, 1e-4)


def test_supervised_fine_tuning(tmp_path):
    def loss(model, batch):
        return model(**{k: batch[k] for k in ("input_ids", "attention_mask", "labels")}).loss

    check(tmp_path, trl.SFTTrainer, trl.SFTConfig, ("prompt", "completion"), loss)


@pytest.mark.parametrize("losses", [["sigmoid"], ["sft"], ["sigmoid", "bco_pair", "sft"]])
def test_preferences(losses, tmp_path):
    """Also with the loss of fine-tuning, which joins tokens of all examples and is not theirs."""
    columns = ("prompt", "chosen", "rejected")
    options = {"loss_type": losses, "loss_weights": [0.8, 0.2, 1.0][: len(losses)]}
    check(tmp_path, trl.DPOTrainer, trl.DPOConfig, columns, ref_model=llama(), more=options)


def unpaired(i):
    return {
        "prompt": words(2 + i % 3, i),
        "completion": words(2 + i % 4, 9 * i),
        "label": i % 3 > 0,
    }


def test_answers_without_pairs(tmp_path):
    """Good and bad answers, whose losses are computed apart; KTO compares the batch besides."""
    options = {"loss_type": "apo_zero_unpaired"}
    given = {"data": [unpaired(i) for i in range(7)], "ref_model": llama()}
    check(tmp_path, trl.KTOTrainer, trl.KTOConfig, (), more=options, **given)
    with pytest.raises(ArgumentError, match=r"over the batch .*loss_type=.apo_zero_unpaired"):
        check(tmp_path, trl.KTOTrainer, trl.KTOConfig, (), more={"loss_type": "kto"}, **given)


def test_texts_that_are_written_while_training(tmp_path):
    trainer = type("GRPOTrainer", (), {"args": None, "num_generations": 2})()
    with pytest.raises(ArgumentError, match="GRPOTrainer writes the texts that it trains on"):
        check_supported(trainer)
