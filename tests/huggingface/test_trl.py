"""TRL's trainers: supervised fine-tuning with a fused head, and preferences."""

import numpy as np
import pytest

from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer
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


def check(tmp_path, kind, args, columns, loss=None, **options):
    data = datasets.Dataset.from_list(
        [
            {name: words(2 + i % (3 + k), 100 * k + i) for k, name in enumerate(columns)}
            for i in range(7)
        ]
    )
    callback = SawlogCallback("training", root=tmp_path)
    trainer = patch_trainer(kind)(
        log_args=LogArguments("run", root=tmp_path),
        model=llama(),
        args=args(str(tmp_path / "output"), **OPTIONS),
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


def test_preferences(tmp_path):
    columns = ("prompt", "chosen", "rejected")
    check(tmp_path, trl.DPOTrainer, trl.DPOConfig, columns, ref_model=llama())
