"""A run of the Hugging Face Trainer: its metrics and gradients in a store, and wrong labels found.

    python examples/huggingface_trainer.py

A small GPT-2 with a classification head learns to tell happy reviews from unhappy ones; some labels
are wrong. `SawlogCallback` writes what the Trainer logs, and the gradients that training computes
anyway. Afterwards the trained model logs every review once, and the least believable are listed.
Nothing is downloaded: model and tokens are made here.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer, TrainingArguments

import sawlog
from sawlog.huggingface import LogArguments, SawlogCallback, patch_trainer

GOOD = ["good", "great", "lovely", "fine", "superb", "warm", "bright"]
BAD = ["bad", "awful", "dull", "poor", "broken", "cold", "grim"]
REST = [
    "the",
    "film",
    "was",
    "a",
    "very",
    "and",
    "its",
    "story",
    "cast",
    "music",
    "felt",
    "end",
    "to",
    "me",
    "it",
]
VOCABULARY = {word: i for i, word in enumerate(["<pad>", *GOOD, *BAD, *REST])}
LENGTH, WRONG = 12, 0.08


def reviews(count: int, seed: int = 0) -> tuple[datasets.Dataset, np.ndarray]:
    """Reviews as texts, tokens and labels, and which labels are wrong."""
    random = np.random.default_rng(seed)
    rows, wrong = [], random.random(count) < WRONG
    for at in range(count):
        mood = int(random.integers(0, 2))
        words = random.choice(REST, LENGTH).tolist()
        for place in random.permutation(LENGTH)[:3]:
            words[place] = str(random.choice(GOOD if mood else BAD))
        tokens = [VOCABULARY[word] for word in words]
        label = 1 - mood if wrong[at] else mood
        rows.append({"text": " ".join(words), "input_ids": tokens, "labels": label})
    return datasets.Dataset.from_list(rows), wrong


def model_of(seed: int = 0) -> GPT2ForSequenceClassification:
    """A GPT-2 of two small layers."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2ForSequenceClassification(config)


def main(arguments: Sequence[str] | None = None) -> tuple[Path, float]:
    """Train, log, rank; return the folder, and the share of wrong labels among the suspects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reviews", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp())
    data, wrong = reviews(options.reviews)
    training = TrainingArguments(
        str(folder / "trainer"),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=20,
        learning_rate=2e-3,
        logging_steps=5,
        save_strategy="no",
        seed=0,
    )
    trainer = patch_trainer(Trainer)(
        log_args=LogArguments("after", lora=True, rank=16, ekfac=True, root=str(folder)),
        model=model_of(),
        args=training,
        train_dataset=data.remove_columns("text"),
        callbacks=[SawlogCallback("training", {"compress": 4}, root=folder, steps=10)],
    )
    trainer.train()
    logged = sawlog.load(folder / "training" / "metrics")
    print(f"loss {logged['loss'][0]:.3f} -> {logged['loss'][-1]:.3f}")

    trainer.extract_log()
    trainer.log_run.describe(data.select_columns(["text", "labels"]))
    suspects = trainer.self_influence().ids
    order = np.argsort(-trainer.self_influence().values, kind="stable")
    first = suspects[order][: int(wrong.sum())]
    share = float(wrong[first].mean())
    print(
        f"Of the {len(first)} least believable labels {share:.0%} are wrong ({WRONG:.0%} of all):"
    )
    for each in first[:5]:
        row = data[int(each)]
        said = "happy" if row["labels"] else "unhappy"
        print(f"  {'wrong' if wrong[each] else 'right':>5}  {said:>7}: {row['text']}")
    print(f"sawlog report {folder} -o trainer.html     shows all of it")
    return folder, share


if __name__ == "__main__":
    main()
