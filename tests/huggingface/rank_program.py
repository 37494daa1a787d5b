"""One process of Trainers under torchrun; started by test_ranks.py."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor
from transformers import Trainer

from sawlog.errors import ArgumentError, ProcessLostError
from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer
from tests.huggingface.small import alone, arguments, assert_rows, gpt, llama, padded, texts


def adapted():
    """LoRA on a Llama, whose second factors are no longer zero."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(llama(), config)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def mixed(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(**batch).loss


class ShardedTrainer(Trainer):
    """A Trainer with FSDP2 on the CPU, where accelerate uses DDP whatever is asked for."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            cpu_ram_efficient_loading=False,
        )
        shared = {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
        AcceleratorState._shared_state.update(shared)
        self.is_fsdp_enabled = True


MANY = 14
ACCUMULATED = {"gradient_accumulation_steps": 2}
VARIANTS = {  # the model, how many examples, the loss of one, the tolerance, options
    "accumulated": (gpt, 11, None, 2e-5, ACCUMULATED),
    "an uneven last batch": (gpt, 7, None, 2e-5, ACCUMULATED),
    "checkpointing": (gpt, 11, None, 2e-5, {"gradient_checkpointing": True, **ACCUMULATED}),
    "bf16": (gpt, 11, mixed, 5e-2, {"bf16": True, **ACCUMULATED}),
    "an adapter": (adapted, 11, None, 2e-5, ACCUMULATED),
    "unused parameters": (gpt, 11, None, 2e-5, {"ddp_find_unused_parameters": True}),
    "tokens of one process": (
        gpt,
        11,
        None,
        2e-5,
        {"average_tokens_across_devices": False, **ACCUMULATED},
    ),
}


def check(path: Path, name: str) -> None:
    make, many, loss, tolerance, options = VARIANTS[name]
    model, items = make(), texts(many)
    expected = alone(model, items, loss)
    trainer = patch_trainer(Trainer)(
        log_args=LogArguments("run", {"statistic": "kfac"}, root=path),
        model=model,
        args=arguments(path, ddp_backend="gloo", per_device_train_batch_size=2, **options),
        train_dataset=items,
        data_collator=padded,
        callbacks=[SawlogCallback("training", root=path)],
    )
    trainer.train()
    trainer.extract_log()
    scores = trainer.influence(items[:2], curvature="identity")
    assert scores.values.shape == (2, many), name
    if os.environ["RANK"] == "0":
        blocks = trainer.log_run._blocks()
        assert_rows(trainer.log_run.store_path, blocks, range(many), expected, tolerance)
        folder = path / "training" / "epoch-0" / "logs" / "whole-float32"
        assert_rows(folder, blocks, range(many), expected, tolerance)
        assert trainer.log_run.statistics.examples == many
    dist.barrier()


def sharded(path: Path) -> None:
    """FSDP2 while training, and rows of the trained model."""
    model, items = llama(), texts(7)
    expected = alone(model, items)
    trainer = patch_trainer(ShardedTrainer)(
        log_args=LogArguments("run", root=path),
        model=model,
        args=arguments(path, ddp_backend="gloo", per_device_train_batch_size=2, **ACCUMULATED),
        train_dataset=items,
        data_collator=padded,
        callbacks=[SawlogCallback("training", root=path)],
    )
    trainer.train()
    assert all(isinstance(each, DTensor) for each in trainer.model.parameters())
    trainer.extract_log()
    dist.barrier()
    if os.environ["RANK"] == "0":
        blocks = trainer.log_run._blocks()
        folder = path / "training" / "epoch-0" / "logs" / "whole-float32"
        assert_rows(folder, blocks, range(7), expected)
        assert_rows(trainer.log_run.store_path, blocks, range(7), expected)
    dist.barrier()


def refuse_static_graph(path: Path) -> None:
    trainer = Trainer(
        model=gpt(),
        args=arguments(path, ddp_backend="gloo", ddp_static_graph=True),
        train_dataset=texts(4),
        data_collator=padded,
        callbacks=[SawlogCallback("training", root=path)],
    )
    with pytest.raises(ArgumentError, match=r"ddp_static_graph=False"):
        trainer.train()


class Killed(Trainer):
    """A Trainer whose last process is killed in the middle of its examples."""

    batches, last = 0, 0

    def compute_loss(self, *args, **options):
        Killed.batches += 1
        if Killed.batches == Killed.last and os.environ["RANK"] != "0":
            self.log_run.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_loss(*args, **options)


def logging(path: Path, kind: type[Trainer], statistic: str) -> Trainer:
    own = {} if "RANK" not in os.environ else {"ddp_backend": "gloo"}
    config = {"statistic": statistic, "precision": "float64", "dtype": "float64"}
    return patch_trainer(kind)(
        log_args=LogArguments("resumed", config, root=path),
        model=gpt(),
        args=arguments(path, per_device_train_batch_size=1, **own),
        train_dataset=texts(MANY),
        data_collator=padded,
    )


def killed(path: Path, statistic: str, last: str) -> None:
    Killed.last = int(last)
    with pytest.raises(ProcessLostError, match="Rank 1 of this job ended before"):
        logging(path, Killed, statistic).extract_log()
    os._exit(7)  # the others are gone, so there is nothing to shut down


def go_on(path: Path, statistic: str) -> None:
    """Log what is left, and keep statistics and scores."""
    trainer = logging(path, Trainer, statistic)
    rank, size = int(os.environ.get("RANK", 0)), trainer.args.world_size
    left = trainer.extract_log().examples[-1]
    run = trainer.log_run
    if size > 1:
        assert left < len(range(rank, MANY, size)) or rank
    assert run.statistics.examples == MANY
    assert_rows(run.store_path, run._blocks(), range(MANY), alone(gpt(), texts(MANY)))
    scores = trainer.influence(texts(MANY)[:4], curvature=statistic)
    sums = {f"sum {key}": array for key, (array, _) in run.statistics._arrays.items()}
    counts = {f"count {key}": count for key, (_, count) in run.statistics._arrays.items()}
    values = scores.values[:, np.argsort(scores.ids)]
    np.savez(path / f"found-{rank}.npz", scores=values, **sums, **counts)
    if size > 1:
        dist.barrier()


def main(path: Path) -> None:
    for variant in VARIANTS:
        check(path / variant, variant)
    refuse_static_graph(path / "static")


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
