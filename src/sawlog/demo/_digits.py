"""PyTorch: the gradient of every example, wrong labels, and what made the model err."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

import sawlog
from sawlog import influence
from sawlog.demo._drawings import ANNOTATORS, CARELESS, SIDE, Digits, draw_digits
from sawlog.demo._sizes import Sizes

_QUERIES, _RANK, _BATCH = 6, 24, 50


@dataclasses.dataclass(frozen=True)
class TrainedDigits:
    """A trained model, the run with the gradients of its examples, and its data."""

    model: nn.Module
    run: Any
    train: Digits
    test: Digits

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.run.path)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside the block: matrices this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_and_log(console: Console, root: Path, sizes: Sizes) -> TrainedDigits:
    """Train on digits with wrong labels; store the gradient and the image of every example."""
    console.rule("PyTorch: the gradient of every single example")
    train = draw_digits(sizes.digits, seed=0, careless=True)
    test = draw_digits(max(100, sizes.digits // 3), seed=1, careless=False)
    run = sawlog.init(project="digits", root=root)
    model = _trained(train, _steps(sizes), seed=0, run=run)
    loss, accuracy = _measured(model, test)
    console.print(
        f"Trained on {len(train.labels):,} drawn digits, {int(train.wrong.sum())} of them with a "
        f"wrong label; test loss {loss:.3f}, accuracy {accuracy:.1%}."
    )
    run.setup(log="grad", statistic="kfac", compress=_RANK)
    report = run.watch(model, quiet=True)
    for ids in torch.arange(len(train.labels)).split(200):
        with run(data_id=ids):
            run.backward(_loss(model, train, ids))
    run.describe(train.described())
    run.finalize()
    console.print(
        f"Stored {report.bytes_per_example:,} bytes for each example: a projection of its gradient "
        "in every layer. The model is not changed.\n"
    )
    return TrainedDigits(model, run, train, test)


def find_wrong_labels(console: Console, watched: TrainedDigits, sizes: Sizes) -> None:
    """Rank examples by self-influence, and train again without the first of them."""
    train, suspects = watched.train, influence.label_errors(watched.run.store_path).ids
    looked = max(1, len(train.labels) // 10)
    found = train.wrong[suspects[:looked]].sum() / train.wrong.sum()
    console.print(
        f"\nLooking at the first {looked} of {len(train.labels):,} examples finds {found:.0%} of "
        "the wrong labels."
    )
    before = _measured(watched.model, watched.test)
    kept = np.delete(np.arange(len(train.labels)), suspects[:looked])
    after = _measured(_trained(_chosen(train, kept), _steps(sizes), seed=0), watched.test)
    console.print(
        f"Trained again without them: test loss {before[0]:.3f} -> {after[0]:.3f}, "
        f"accuracy {before[1]:.1%} -> {after[1]:.1%}.\n"
    )


@dataclasses.dataclass(frozen=True)
class DigitQueries:
    """The run of the queries, their scores, and those with the greatest loss."""

    folder: Path
    scores: influence.Scores
    hardest: list[str]


def ask(watched: TrainedDigits) -> DigitQueries:
    """Log all test digits as queries; save the scores of those with the greatest loss."""
    model, test = watched.model, watched.test
    names = [f"test-{i}" for i in range(len(test.labels))]
    run = sawlog.init(project="digits-asked", root=watched.folder.parent)
    run.setup(log="grad", compress=_RANK)
    run.watch(model, quiet=True)
    for ids in torch.arange(len(names)).split(200):
        with run(data_id=[names[i] for i in ids.tolist()]):
            run.backward(_loss(model, test, ids))
    with torch.no_grad():
        logits = model(_pixels(test))
        losses = cross_entropy(logits, torch.as_tensor(test.labels), reduction="none")
    said = logits.argmax(1).tolist()
    looks = [{**own, "model says": said[i]} for i, own in enumerate(test.described())]
    run.describe(dict(zip(names, looks, strict=True)))
    run.finalize()
    scores = influence.attribute(watched.run.store_path, run.store_path, per_layer=True)
    hardest = losses.argsort(descending=True)[:_QUERIES].tolist()
    dataclasses.replace(
        scores,
        queries=scores.queries[hardest],
        values=scores.values[hardest],
        layers={name: values[hardest] for name, values in scores.layers.items()},
    ).save(watched.folder / "scores" / "hardest test digits")
    return DigitQueries(Path(run.path), scores, [names[i] for i in hardest])


def drop_each_annotator(
    console: Console, watched: TrainedDigits, asked: DigitQueries, sizes: Sizes
) -> None:
    """Estimate how the test loss would change without one annotator, and measure it."""
    train = watched.train
    groups = {who: np.flatnonzero(train.annotators == who) for who in ANNOTATORS}
    estimated = asked.scores.of_groups(groups).values.mean(0) / len(train.labels)
    before, _ = _measured(watched.model, watched.test)
    console.print("\nHow would the test loss change without the labels of one annotator?")
    for (who, own), value in zip(groups.items(), estimated.tolist(), strict=True):
        kept = np.setdiff1d(np.arange(len(train.labels)), own)
        after, _ = _measured(_trained(_chosen(train, kept), _steps(sizes), seed=0), watched.test)
        note = "   who gave the wrong labels" if who == CARELESS else ""
        console.print(
            f"  without {who}  estimated {value:+.2f}, trained again {after - before:+.2f}{note}"
        )
    console.print("Trust the order of such estimates more than their sizes.")


def _steps(sizes: Sizes) -> int:
    return sizes.epochs * -(-sizes.digits // _BATCH)


def _trained(data: Digits, steps: int, seed: int, run: Any = None) -> nn.Module:
    """Train for a number of steps. Fewer examples do not make training shorter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model.append(nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    count = len(data.labels)
    batches = ((epoch, ids) for epoch in itertools.count() for ids in _shuffled(count))
    for step, (epoch, ids) in enumerate(itertools.islice(batches, steps)):
        optimizer.zero_grad()
        loss = _loss(model, data, ids)
        loss.backward()
        optimizer.step()
        if run is not None:
            run.log({"train/loss": loss.item()}, step=step, epoch=epoch)
    return model


def _shuffled(count: int) -> tuple[torch.Tensor, ...]:
    return torch.randperm(count).split(_BATCH)


def _pixels(data: Digits) -> torch.Tensor:
    return torch.as_tensor(data.images.reshape(len(data.images), -1))


def _loss(model: nn.Module, data: Digits, ids: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(_pixels(data)[ids]), torch.as_tensor(data.labels)[ids])


def _measured(model: nn.Module, data: Digits) -> tuple[float, float]:
    with torch.no_grad():
        logits = model(_pixels(data))
        labels = torch.as_tensor(data.labels)
        right = (logits.argmax(1) == labels).float().mean()
        return float(cross_entropy(logits, labels)), float(right)


def _chosen(data: Digits, rows: np.ndarray) -> Digits:
    values = (getattr(data, field.name)[rows] for field in dataclasses.fields(data))
    return Digits(*values)
