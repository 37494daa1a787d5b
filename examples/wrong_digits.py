"""Handwritten digits with 10 % wrong labels: find them, and see which examples made a prediction.

    python examples/wrong_digits.py

A small MLP is trained on scikit-learn's digits, of which every tenth label was changed. The
gradient of every training image goes into a store. Those with a large influence on themselves are
inspected first; and for one test image the most and least helpful training images are drawn.
"""

from __future__ import annotations

import tempfile
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

WRONG = 0.1


def digits(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Images, labels, and which of the training labels are wrong; training, then test images."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=generator).numpy()
    x = torch.tensor(images[order] / 16, dtype=torch.float32)
    y = torch.tensor(labels[order])
    train = 1500
    wrong = torch.zeros(train, dtype=torch.bool)
    wrong[torch.randperm(train, generator=generator)[: int(WRONG * train)]] = True
    other = (y[:train] + torch.randint(1, 10, (train,), generator=generator)) % 10
    return x[:train], torch.where(wrong, other, y[:train]), wrong, x[train:], y[train:]


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Adam with weight decay, in batches of 100."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    for _ in range(15):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def drawn(image: torch.Tensor) -> str:
    """An image of 8 x 8 in characters."""
    shades = " .:-=+*#%@"
    levels = (image.reshape(8, 8) * 9.99).int().tolist()
    return "\n".join("".join(shades[level] * 2 for level in row) for row in levels)


def main() -> None:
    """Train, log, rank, show."""
    console = Console()
    torch.manual_seed(0)
    x, y, wrong, test_x, test_y = digits(torch.Generator().manual_seed(0))
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    train(model, x, y)
    accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    console.print(f"Trained with {int(wrong.sum())} wrong labels; test accuracy {accuracy:.1%}.")

    with tempfile.TemporaryDirectory() as folder:
        run = sawlog.init(project="digits", root=Path(folder))
        run.setup(log="grad", statistic="kfac", compress=32)
        run.watch(model, quiet=True)
        for ids in torch.arange(len(x)).split(250):
            with run(data_id=ids):
                run.backward(F.cross_entropy(model(x[ids]), y[ids]))
        run.finalize()

        suspects = influence.label_errors(run.store_path)
        order = torch.as_tensor(suspects.ids)
        for share in (0.05, 0.1, 0.2):
            looked = order[: int(share * len(x))]
            recall = wrong[looked].sum() / wrong.sum()
            console.print(
                f"  inspecting {share:>4.0%} of the images finds {recall:.0%} of the wrong labels"
            )

        sure = int(model(test_x).max(1).values.argmax())
        run.eval()
        with run(data_id=["test"]):
            run.backward(F.cross_entropy(model(test_x[[sure]]), test_y[[sure]]))
        (scores,) = [run.influence.compute_influence_all(run.get_log())]
    best, worst = scores.top(4)["test"], scores.top(4, "negative")["test"]
    panels = [Panel(drawn(test_x[sure]), title=f"test: {test_y[sure]}", expand=False)]
    for pairs, color in ((best, "green"), (worst, "red")):
        for each, value in pairs:
            title = f"{y[each]}{' (wrong)' if wrong[each] else ''}  {value:+.2g}"
            panels.append(Panel(drawn(x[each]), title=title, border_style=color, expand=False))
    console.print(
        "\nA test image, the images that helped with it (green), and those that did not (red):"
    )
    console.print(Columns(panels))
    found = np.isin(suspects.ids[:150], np.flatnonzero(wrong.numpy())).mean()
    assert found > 0.7, found


if __name__ == "__main__":
    main()
