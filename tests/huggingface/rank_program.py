"""One process of a Trainer under torchrun; started by test_ranks.py."""

import os
import sys
from pathlib import Path

from transformers import Trainer

from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer
from tests.huggingface.small import alone, arguments, assert_rows, gpt, padded, texts


def main(path: Path) -> None:
    model, items = gpt(), texts(11)
    expected = alone(model, items)
    trainer = patch_trainer(Trainer)(
        log_args=LogArguments("run", {"statistic": "kfac"}, root=path),
        model=model,
        args=arguments(
            path,
            ddp_backend="gloo",
            gradient_accumulation_steps=2,
            per_device_train_batch_size=2,
        ),
        train_dataset=items,
        data_collator=padded,
        callbacks=[SawlogCallback("training", root=path)],
    )
    trainer.train()
    trainer.extract_log()
    scores = trainer.influence(items[:2], curvature="identity")
    assert scores.values.shape == (2, 11)
    if os.environ["RANK"] == "0":
        blocks = trainer.log_run._blocks()
        assert_rows(trainer.log_run.store_path, blocks, range(11), expected)
        folder = path / "training" / "epoch-0" / "logs" / "whole-float32"
        assert_rows(folder, blocks, range(11), expected)
        assert trainer.log_run.statistics.examples == 11


if __name__ == "__main__":
    main(Path(sys.argv[1]))
