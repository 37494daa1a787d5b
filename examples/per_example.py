"""What a PyTorch model does for each single example: which training labels does it not believe?

A classifier is trained on points of which some have a wrong label. The gradient of every example,
projected and in eight bits, goes into a store. Those with a large gradient, in the measure of
K-FAC, are the ones that the rest of the data speaks against.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import sawlog
import sawlog.store
from sawlog.capture import decode

EXAMPLES, WRONG, BATCH = 2000, 60, 250


def spirals(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points on two spirals, their labels, and which of the labels are wrong."""
    angle = torch.rand(EXAMPLES, generator=generator).sqrt() * 2.2 * torch.pi
    labels = torch.arange(EXAMPLES) % 2
    turn = angle + torch.pi * labels
    points = torch.stack([turn.cos(), turn.sin()], -1) * (angle / 4)[:, None]
    points += 0.02 * torch.randn(points.shape, generator=generator)
    wrong = torch.zeros(EXAMPLES, dtype=torch.bool)
    wrong[torch.randperm(EXAMPLES, generator=generator)[:WRONG]] = True
    return points, torch.where(wrong, 1 - labels, labels), wrong


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Adam, for a few hundred steps; the final loss."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def show(console: Console, folder: Path) -> None:
    """Train, log every example, and look for wrong labels."""
    console.rule("PyTorch: the gradient of every single example")
    torch.manual_seed(0)
    x, y, wrong = spirals(torch.Generator().manual_seed(0))
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    loss = train(model, x, y)
    console.print(f"Trained on {EXAMPLES:,} points, {WRONG} with a wrong label; loss {loss:.3f}.")

    run = sawlog.init(project="spirals", root=folder)
    run.setup(log="grad", statistic="kfac", compress=16, dtype="int8")
    report = run.watch(model, quiet=True)
    console.print(report)
    data = torch.utils.data.TensorDataset(torch.arange(EXAMPLES), x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    for ids, (_, points, labels) in run.batches(loader, data_id=lambda batch: batch[0]):
        with run(data_id=ids):
            run.backward(F.cross_entropy(model(points), labels))
    run.finalize()

    size = np.zeros(EXAMPLES)
    with sawlog.store.open(run.store_path) as reader:
        rows = {name: np.asarray(each) for name, each in reader.gather(range(EXAMPLES)).items()}
    for block in report.blocks:
        left, right = run.statistics.kfac(block.name)
        grads = decode(rows, f"grad/{block.name}")
        left = np.linalg.inv(left + 0.1 * np.trace(left) / len(left) * np.eye(len(left)))
        right = np.linalg.inv(right + 0.1 * np.trace(right) / len(right) * np.eye(len(right)))
        size += np.einsum("bij,ik,bkl,lj->b", grads, left, grads, right)
    found = np.argsort(-size)[:WRONG]
    hits = int(wrong.numpy()[found].sum())
    chance = WRONG**2 / EXAMPLES
    console.print(
        f"{report.bytes_per_example:,} bytes for each example. Of the {WRONG} examples with the "
        f"largest gradients, {hits} have a wrong label; by chance it would be {chance:.0f}.\n"
    )
    assert hits > WRONG // 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        show(Console(), Path(place))
