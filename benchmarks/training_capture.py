"""Training with a Hugging Face Trainer, with and without capture at rank 16, side by side.

A GPT-2 of random weights is trained by AdamW on random tokens. Each round trains it without and
with :class:`sawlog.huggingface.SawlogCallback`, one after the other, in this process. The
first steps of each training, in which the structure of the graph is proven, are not timed. The
figure is the ratio of CPU times of the remaining steps; the median of the rounds is reported.

Run with --quick for fewer steps and rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from _timing import Row, save_result
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from sawlog.huggingface import SawlogCallback

RANK = 16
WARM = 3


class Clock(TrainerCallback):
    """Measures the CPU time and wall time of all steps after the first few."""

    def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if state.global_step == WARM:
            self.start = time.process_time(), time.perf_counter()
        if state.global_step == state.max_steps:
            self.cpu = time.process_time() - self.start[0]
            self.wall = time.perf_counter() - self.start[1]


def model(width: int, layers: int, positions: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=2048,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        **drop,
    )
    return GPT2LMHeadModel(config)


def train(steps: int, sizes: tuple[int, int, int], callbacks: list[Any], folder: Path) -> Clock:
    positions = sizes[2]
    random = torch.Generator().manual_seed(0)
    many = 8 * steps
    tokens = torch.randint(0, 2048, (many, positions), generator=random)
    data = [{"input_ids": each, "labels": each} for each in tokens]
    args = TrainingArguments(
        str(folder / "output"),
        per_device_train_batch_size=8,
        max_steps=steps,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    clock = Clock()
    Trainer(model(*sizes), args, train_dataset=data, callbacks=[*callbacks, clock]).train()
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--correct", action="store_true", help="with Adam's second moments as well")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    rounds, steps = (3, 10) if options.quick else (5, 25)
    sizes = (256, 4, 128)
    ratios: dict[str, list[float]] = {"capture": []}
    if options.correct:
        ratios["capture, corrected"] = []
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp())
        try:
            plain = train(steps, sizes, [], folder)
            for name, found in ratios.items():
                callback = SawlogCallback(
                    name,
                    {"compress": RANK},
                    root=folder,
                    correct="corrected" in name,
                )
                with_capture = train(steps, sizes, [callback], folder)
                found.append(with_capture.cpu / plain.cpu)
                print(
                    f"round {number + 1}: {name}: {with_capture.cpu / plain.cpu:.3f} of plain CPU "
                    f"time, {with_capture.wall / plain.wall:.3f} of wall time "
                    f"({plain.cpu / (steps - WARM):.3f} CPU s a plain step)",
                    flush=True,
                )
        finally:
            shutil.rmtree(folder)
    for name, found in ratios.items():
        print(f"{name}: median {statistics.median(found):.3f}, least {min(found):.3f}")
    if options.save is not None:
        save_result(options.save, [_row(name, found) for name, found in ratios.items()])


def _row(name: str, found: list[float]) -> Row:
    middle, who = statistics.median(found), f"{name} / plain, CPU time"
    return Row(f"GPT-2, rank {RANK}", who, middle, min(found), max(found), 0.0)


if __name__ == "__main__":
    main()
