"""Handwritten digits with 10 % wrong labels: leave out the worst examples, and train again.

    python examples/pruning.py                      # about 25 s on one core
    python examples/pruning.py --plot pruning.png   # and a figure

A small MLP is trained on scikit-learn's digits, of which every tenth label was changed. Its
examples are ranked in two ways: by how much they help with a validation set, whose labels are
right, and by their influence on themselves, which needs no other data. The worst 10, 20 and 30 %
are left out, new models are trained on the rest, and their accuracy and loss on test images are
compared with those of models that were trained on everything, without as many examples chosen by
chance, and without just those that are wrong. ``--quick`` trains fewer models.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import sawlog
from sawlog import influence

WRONG = 0.1
SHARES, QUICK_SHARES = (0.1, 0.2, 0.3), (0.1,)
TRAIN, VALIDATION = 1000, 300  # and 497 for the test
DRAWS, SEEDS = 6, 2
NOTHING, CLEAN = "nothing", "wrong labels"
NONE = np.full(2, np.nan)
WAYS = (NOTHING, CLEAN, "by chance", "least helpful", "self-influence")

Pair = tuple[torch.Tensor, torch.Tensor]
Choice = tuple[str, float]


@dataclasses.dataclass(frozen=True)
class Data:
    """Images and labels; ``wrong`` says which of the training labels are."""

    train: Pair
    validation: Pair
    test: Pair
    wrong: np.ndarray


def digits(seed: int = 0) -> Data:
    """Scikit-learn's digits in three parts, with wrong labels in the first."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    wrong = np.zeros(TRAIN, bool)
    wrong[rng.permutation(TRAIN)[: round(WRONG * TRAIN)]] = True
    labels[:TRAIN][wrong] = (labels[:TRAIN][wrong] + rng.integers(1, 10, wrong.sum())) % 10
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
    ends = (TRAIN, TRAIN + VALIDATION)
    parts = zip(x.tensor_split(ends), y.tensor_split(ends), strict=True)
    return Data(*parts, wrong)


def train(x: torch.Tensor, y: torch.Tensor, seed: int) -> nn.Module:
    """An MLP, by AdamW in batches of 100."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    for _ in range(20):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def tested(model: nn.Module, data: Pair) -> tuple[float, float]:
    """Accuracy and loss."""
    x, y = data
    with torch.no_grad():
        logits = model(x)
        right = (logits.argmax(1) == y).double().mean()
        return float(right), float(F.cross_entropy(logits, y))


def logged(model: nn.Module, data: Pair, name: str, folder: Path) -> sawlog.torch.Run:
    """A run with the gradient of every image, in rank 32."""
    run = sawlog.init(project=name, root=folder)
    run.setup(log="grad", statistic="kfac", compress=32)
    run.watch(model, quiet=True)
    for ids in torch.arange(len(data[0])).split(250):
        with run(data_id=ids):
            run.backward(F.cross_entropy(model(data[0][ids]), data[1][ids]))
    run.finalize()
    return run


def ranked(model: nn.Module, data: Data) -> tuple[influence.Scores, influence.Ranking]:
    """The training images for the validation set, and for themselves."""
    with tempfile.TemporaryDirectory() as folder:
        run = logged(model, data.train, "train", Path(folder))
        asked = logged(model, data.validation, "validation", Path(folder))
        scores = influence.influence_functions(run.store_path, asked.store_path)
        return scores, influence.label_errors(run.store_path)


def choices(
    data: Data, model: nn.Module, shares: Sequence[float], seed: int = 0
) -> dict[Choice, np.ndarray]:
    """What is left out, by the way it was chosen and its share of all."""
    scores, suspects = ranked(model, data)
    chance = np.random.default_rng(seed).permutation(TRAIN)
    found = {(NOTHING, 0.0): chance[:0], (CLEAN, WRONG): np.flatnonzero(data.wrong)}
    for share in shares:
        found["by chance", share] = chance[: round(share * TRAIN)]
        found["least helpful", share] = influence.prune(scores, share)[1]
        found["self-influence", share] = influence.prune(suspects, share)[1]
    return dict(sorted(found.items(), key=lambda item: WAYS.index(item[0][0])))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one choice: the share of wrong labels in it, and of models without it.

    ``test`` and ``validation`` have accuracy and loss of each model, ``[draws, models, 2]``.
    """

    wrong: float
    test: np.ndarray
    validation: np.ndarray


def outcomes(draw: int, seeds: int, shares: Sequence[float]) -> dict[Choice, Outcome]:
    """Rank the images of one draw of the data, leave some out, and train again."""
    data = digits(draw)
    x, y = data.train
    found = {}
    for choice, out in choices(data, train(x, y, seed=0), shares, draw).items():
        kept = torch.from_numpy(np.setdiff1d(np.arange(TRAIN), out))
        models = [train(x[kept], y[kept], seed) for seed in range(1, seeds + 1)]
        wrong = float(data.wrong[out].mean()) if len(out) else 0.0
        test, validation = (
            np.array([[tested(model, part) for model in models]])
            for part in (data.test, data.validation)
        )
        found[choice] = Outcome(wrong, test, validation)
    return found


def joined(draws: Sequence[dict[Choice, Outcome]]) -> dict[Choice, Outcome]:
    """The models of all draws, side by side."""
    return {
        choice: Outcome(
            float(np.mean([draw[choice].wrong for draw in draws])),
            np.concatenate([draw[choice].test for draw in draws]),
            np.concatenate([draw[choice].validation for draw in draws]),
        )
        for choice in draws[0]
    }


# -- shown ----------------------------------------------------------------------------------------


def difference(found: dict[Choice, Outcome], choice: Choice) -> tuple[np.ndarray, np.ndarray]:
    """How accuracy and loss differ from those of models of all images, and standard errors."""
    draws = (found[choice].test - found[NOTHING, 0.0].test).mean(1)
    return draws.mean(0), draws.std(0, ddof=1) / len(draws) ** 0.5 if len(draws) > 1 else NONE


def changed(mean: float, error: float, digits: int) -> str:
    """A difference with its standard error, if that is known."""
    return f"{mean:+.{digits}f}" + ("" if np.isnan(error) else f" ± {error:.{digits}f}")


def verdict(mean: float, error: float) -> str:
    """What a difference says, where more is better."""
    if abs(mean) <= 2 * error:
        return "no clear difference"
    return "better" if mean > 0 else "worse"


def show(console: Console, found: dict[Choice, Outcome]) -> None:
    """A table of all choices, and what it says."""
    table = Table(title="Trained again without some images, and tested")
    table.add_column("left out")
    for name in ("share", "wrong", "accuracy", "change", "loss", "change"):
        table.add_column(name, justify="right")
    said: dict[tuple[str, str], list[str]] = {}
    for choice, outcome in found.items():
        way, share = choice
        right, loss = outcome.test.mean((0, 1))
        cells = ["", "", f"{100 * right:.1f}", "", f"{loss:.2f}", ""]
        if way != NOTHING:
            mean, error = difference(found, choice)
            cells[:2] = f"{share:.0%}", f"{outcome.wrong:.0%}"
            cells[3] = changed(100 * mean[0], 100 * error[0], 1)
            cells[5] = changed(mean[1], error[1], 2)
            verdicts = verdict(mean[0], error[0]), verdict(-mean[1], error[1])
            said.setdefault(verdicts, []).append(f"{way} {share:.0%}")
        last = [each for each in found if each[0] == way][-1]
        table.add_row(way, *cells, end_section=choice == last)
    console.print(table)
    if len(found[NOTHING, 0.0].test) > 1:
        console.print("Against leaving out nothing, by more than twice the standard error:")
        for (accuracy, loss), which in said.items():
            console.print(f"  accuracy {accuracy}, loss {loss}: {', '.join(which)}")
    console.print(chosen(found))


def chosen(found: dict[Choice, Outcome]) -> str:
    """Which choice the validation images would have been for: wrong labels are not known."""
    possible = [choice for choice in found if choice[0] != CLEAN]
    way, share = best = min(possible, key=lambda each: found[each].validation[..., 1].mean())
    return (
        f"Least loss on the validation images: {way} {share:.0%}, test accuracy "
        f"{found[best].test[..., 0].mean():.1%}."
    )


def plot(found: dict[Choice, Outcome], path: Path) -> None:
    """Accuracy and loss by the share that is left out, a line for each way to choose."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for column, name in enumerate(("test accuracy", "test loss")):
        axes = figure.add_subplot(1, 2, column + 1, xlabel="left out", ylabel=name)
        for way in WAYS[2:]:
            choices = [(NOTHING, 0.0), *(choice for choice in found if choice[0] == way)]
            models = np.stack([found[choice].test[..., column].ravel() for choice in choices])
            errors = models.std(1) / models.shape[1] ** 0.5
            axes.errorbar([c[1] for c in choices], models.mean(1), errors, label=way, capsize=3)
        clean = found[CLEAN, WRONG].test[..., column].mean()
        axes.axhline(clean, ls=":", color="gray", label=f"without {CLEAN}")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> dict[Choice, Outcome]:
    """Rank, leave out, train again, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one share, a model of each")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="save a figure there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the matrices are small
    console = Console()
    draws, seeds, shares = (1, 1, QUICK_SHARES) if options.quick else (DRAWS, SEEDS, SHARES)
    console.print(
        f"{TRAIN} images with {WRONG:.0%} wrong labels, {VALIDATION} for validation. Each row: "
        f"{draws * seeds} models, {seeds} for each of {draws} draws of images and wrong labels."
    )
    found = joined([outcomes(draw, seeds, shares) for draw in range(draws)])
    show(console, found)
    if options.plot is not None:
        plot(found, options.plot)
        console.print(f"The figure is {options.plot}.")
    return found


if __name__ == "__main__":
    main()
