"""Handwritten digits with 10 % wrong labels: find them, and see which examples made a prediction.

    python examples/wrong_digits.py

A small MLP is trained on scikit-learn's digits, of which every tenth label was changed. The
gradient of every training image goes into a store. Those with a large influence on themselves are
inspected first; and for one test image the most and least helpful training images are drawn.
wrong_digits_jax.py does the same in JAX, with the same answer.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from torch import nn

import sawlog
from sawlog import influence

TRAIN, WRONG = 1500, 0.1
SIZES = (64, 64, 32, 10)


def digits(seed: int = 0) -> tuple[np.ndarray, ...]:
    """Images, labels, and which of the training labels are wrong; training, then test images."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = random.permutation(len(images))
    x, y = (images[order] / 16).astype(np.float32), labels[order]
    wrong = np.zeros(TRAIN, bool)
    wrong[random.permutation(TRAIN)[: int(WRONG * TRAIN)]] = True
    other = (y[:TRAIN] + random.integers(1, 10, TRAIN)) % 10
    return x[:TRAIN], np.where(wrong, other, y[:TRAIN]), wrong, x[TRAIN:], y[TRAIN:]


def initial(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weight and bias of each layer before training; wrong_digits_jax.py has the same."""
    random = np.random.default_rng(seed)
    return [
        (random.normal(0, i**-0.5, (o, i)).astype(np.float32), np.zeros(o, np.float32))
        for i, o in itertools.pairwise(SIZES)
    ]


def batches(epochs: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The images of each step of training; wrong_digits_jax.py has the same."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        yield from random.permutation(TRAIN).reshape(-1, 100)


def trained(x: torch.Tensor, y: torch.Tensor, epochs: int) -> nn.Module:
    """A small MLP, after Adam with weight decay."""
    first, second, last = (nn.Linear(i, o) for i, o in itertools.pairwise(SIZES))
    with torch.no_grad():
        for layer, (weight, bias) in zip((first, second, last), initial(), strict=True):
            layer.weight.copy_(torch.as_tensor(weight))
            layer.bias.copy_(torch.as_tensor(bias))
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    for rows in batches(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


def drawn(image: torch.Tensor) -> str:
    """An image of 8 x 8 in characters."""
    shades = " .:-=+*#%@"
    levels = (image.reshape(8, 8) * 9.99).int().tolist()
    return "\n".join("".join(shades[level] * 2 for level in row) for row in levels)


def logged(model: nn.Module, x: torch.Tensor, y: torch.Tensor, folder: Path) -> sawlog.torch.Run:
    """A run with the gradient of every image."""
    run = sawlog.init(project="digits", root=folder)
    run.setup(log="grad", statistic="kfac")
    run.watch(model, quiet=True)
    for ids in torch.arange(len(x)).split(250):
        with run(data_id=ids):
            run.backward(F.cross_entropy(model(x[ids]), y[ids]))
    run.finalize()
    return run


def main(arguments: Sequence[str] | None = None) -> influence.Ranking:
    """Train, log, rank, show; return the ranking."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)
    console = Console()
    images, labels, wrong, test_images, test_labels = digits()
    x, y, test_x, test_y = map(torch.as_tensor, (images, labels, test_images, test_labels))
    model = trained(x, y, options.epochs)
    accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    console.print(f"Trained with {int(wrong.sum())} wrong labels; test accuracy {accuracy:.1%}.")

    with tempfile.TemporaryDirectory() as folder:
        run = logged(model, x, y, Path(folder))
        suspects = influence.label_errors(run.store_path)
        for share in (0.05, 0.1, 0.2):
            recall = wrong[suspects.ids[: int(share * len(x))]].sum() / wrong.sum()
            console.print(
                f"  inspecting {share:>4.0%} of the images finds {recall:.0%} of the wrong labels"
            )
        sure = int(model(test_x).max(1).values.argmax())
        run.eval()
        with run(data_id=["test"]):
            run.backward(F.cross_entropy(model(test_x[[sure]]), test_y[[sure]]))
        scores = run.influence.compute_influence_all(run.get_log())
    panels = [Panel(drawn(test_x[sure]), title=f"test: {test_y[sure]}", expand=False)]
    for sign, color in (("positive", "green"), ("negative", "red")):
        for each, value in scores.top(4, sign)["test"]:
            title = f"{y[each]}{' (wrong)' if wrong[each] else ''}  {value:+.2g}"
            panels.append(Panel(drawn(x[each]), title=title, border_style=color, expand=False))
    console.print(
        "\nA test image, the images that helped with it (green), and those that did not (red):"
    )
    console.print(Columns(panels))
    return suspects


if __name__ == "__main__":
    main()
