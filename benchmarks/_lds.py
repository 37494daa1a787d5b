"""The linear datamodeling score: whether scores foretell what retraining on subsets does.

Models are retrained on random halves of the training data, over several seeds. For each test image
the sum of the scores of the examples of a half is to rank the halves as the retrained models do:
the score is the mean over test images of the rank correlation. Thousands of small models are
trained at once, as one batched matrix product a layer, and what they found is kept on disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional as F

CACHE = Path(os.environ.get("SAWLOG_BENCH_CACHE", Path(tempfile.gettempdir()) / "sawlog-lds"))
TOGETHER = 250  # models that are trained at once


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that the truth depends on: data, model, how it is trained, and the random draw.

    The models of subsets and those that are attributed are trained in the same way.
    """

    data: str = "digits"
    train: int = 1000
    test: int = 200
    flipped: float = 0.1
    hidden: tuple[int, ...] = (64, 32)
    subsets: int = 100
    seeds: int = 20
    checkpoints: int = 10
    epochs: int = 20
    batch: int = 50
    optimizer: str = "adam"
    rate: float = 3e-3
    decay: float = 1e-3
    draw: int = 0

    @property
    def name(self) -> str:
        """A name for the file of the truth."""
        said = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.blake2b(said.encode(), digest_size=10).hexdigest()


# -- data -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Data:
    """Training and test examples; some labels of the former are wrong on purpose."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    flipped: np.ndarray

    @property
    def classes(self) -> int:
        return int(max(self.y.max(), self.test_y.max())) + 1


def _loaded(name: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn import datasets

    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        return x / 16, y
    if name == "blobs":
        x, y = datasets.make_blobs(4000, 20, centers=8, cluster_std=5.0, random_state=0)
    elif name == "classes":
        x, y = datasets.make_classification(
            4000, 30, n_informative=10, n_classes=5, n_clusters_per_class=2, random_state=0
        )
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (x - x.mean(0)) / x.std(0), y


def data_of(settings: Settings) -> Data:
    """A random draw of the examples, and of those whose label is another one."""
    x, y = _loaded(settings.data)
    draw = np.random.default_rng([settings.draw, 0])
    order = draw.permutation(len(x))[: settings.train + settings.test]
    x, y = x[order].astype(np.float32), y[order].astype(np.int64)
    wrong = draw.permutation(settings.train)[: round(settings.flipped * settings.train)]
    classes = int(y.max()) + 1
    y[wrong] = (y[wrong] + draw.integers(1, classes, len(wrong))) % classes
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    cut = settings.train
    return Data(tx[:cut], ty[:cut], tx[cut:], ty[cut:], np.sort(wrong))


def subsets_of(settings: Settings) -> np.ndarray:
    """Random halves, ``[subsets, train / 2]``."""
    draw = np.random.default_rng([settings.draw, 1])
    half = settings.train // 2
    return np.stack([draw.permutation(settings.train)[:half] for _ in range(settings.subsets)])


# -- many models at once --------------------------------------------------------------------------


def _sizes(settings: Settings, data: Data) -> list[int]:
    return [data.x.shape[1], *settings.hidden, data.classes]


def model_of(settings: Settings, data: Data, layers: Sequence[Tensor] | None = None) -> nn.Module:
    """The model; with parameters, if they are given."""
    sizes, parts = _sizes(settings, data), []
    for cols, rows in itertools.pairwise(sizes):
        parts += [nn.Linear(cols, rows), nn.ReLU()]
    model = nn.Sequential(*parts[:-1])
    if layers is not None:
        with torch.no_grad():
            for own, given in zip(model.parameters(), layers, strict=True):
                own.copy_(given)
    return model


def _begun(settings: Settings, data: Data, seeds: Sequence[int]) -> list[Tensor]:
    """Weights ``[models, rows, cols]`` and biases ``[models, 1, rows]``, as PyTorch makes them."""
    models = []
    for seed in seeds:
        torch.manual_seed(hash((settings.draw, seed)) % 2**31)
        models.append([p.detach() for p in model_of(settings, data).parameters()])
    stacked = [torch.stack(each) for each in zip(*models, strict=True)]
    return [p if p.ndim == 3 else p[:, None] for p in stacked]


def _logits(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
    for place, (weight, bias) in enumerate(pairs):
        x = torch.baddbmm(bias, x, weight.mT)
        if place < len(pairs) - 1:
            x = x.relu()
    return x


def trained(
    settings: Settings, data: Data, members: np.ndarray, seeds: Sequence[int]
) -> list[Tensor]:
    """Train one model for each row of ``members`` ``[models, examples]``, with its seed."""
    parameters = [p.requires_grad_() for p in _begun(settings, data, seeds)]
    make = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[settings.optimizer]
    more = {"momentum": 0.9} if settings.optimizer == "sgd" else {}
    optimizer = make(parameters, lr=settings.rate, weight_decay=settings.decay, **more)
    draw = torch.Generator().manual_seed(hash((settings.draw, *seeds)) % 2**31)
    members_ = torch.from_numpy(members)
    steps = settings.epochs * -(-members.shape[1] // settings.batch)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(settings.epochs):
        order = torch.rand(members.shape, generator=draw).argsort(1)
        shuffled = members_.gather(1, order)
        for some in shuffled.split(settings.batch, 1):
            logits = _logits(parameters, data.x[some])
            loss = F.cross_entropy(logits.flatten(0, 1), data.y[some].flatten(), reduction="sum")
            optimizer.zero_grad(set_to_none=True)
            (loss / some.shape[1]).backward()  # a mean for each model
            optimizer.step()
            plan.step()
    return [p.detach() for p in parameters]


# -- the truth ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Truth:
    """What retraining found.

    Args:
        members: the examples of each subset, ``[subsets, examples]``.
        losses: of test images, after training on each subset, ``[seeds, subsets, test]``.
        margins: how far the logit of the right class is above the sum of the others, likewise.
        checkpoints: parameters of models that were trained on everything, each ``[models, ...]``.
    """

    members: np.ndarray
    losses: np.ndarray
    margins: np.ndarray
    checkpoints: list[Tensor]


def truth_of(settings: Settings) -> Truth:
    """Retrain, or read what an earlier call found."""
    path = CACHE / f"{settings.name}.npz"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        found = _retrained(settings)
        aside = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(aside, **found)
        aside.rename(path)
    with np.load(path) as kept:
        count = sum(name.startswith("p") for name in kept)
        checkpoints = [torch.from_numpy(kept[f"p{i}"]) for i in range(count)]
        return Truth(kept["members"], kept["losses"], kept["margins"], checkpoints)


def _retrained(settings: Settings) -> dict[str, np.ndarray]:
    data, members = data_of(settings), subsets_of(settings)
    jobs = [(seed, subset) for seed in range(settings.seeds) for subset in range(len(members))]
    losses, margins = [], []
    test = data.test_x.expand(TOGETHER, *data.test_x.shape)
    for start in track(range(0, len(jobs), TOGETHER), "retraining on subsets", transient=True):
        some = jobs[start : start + TOGETHER]
        seeds = [1000 + seed * len(members) + subset for seed, subset in some]
        parameters = trained(settings, data, members[[subset for _, subset in some]], seeds)
        with torch.no_grad():
            logits = _logits(parameters, test[: len(some)])
            losses.append(_losses(logits, data.test_y))
            margins.append(_margins(logits, data.test_y))
    everything = np.tile(np.arange(settings.train), (settings.checkpoints, 1))
    whole = trained(settings, data, everything, range(settings.checkpoints))
    whole = [p[:, 0] if place % 2 else p for place, p in enumerate(whole)]
    shape = (settings.seeds, len(members), -1)
    return {
        "members": members,
        "losses": torch.cat(losses).numpy().reshape(shape),
        "margins": torch.cat(margins).numpy().reshape(shape),
        **{f"p{i}": p.numpy() for i, p in enumerate(whole)},
    }


def half_checkpoints(settings: Settings, data: Data) -> list[Tensor]:
    """Parameters of models that were trained on random halves, each ``[models, ...]``.

    Halves are pairs: what one leaves out, the other has.
    """
    draw = np.random.default_rng([settings.draw, 2])
    members = []
    for _ in range(0, settings.checkpoints, 2):
        order = draw.permutation(settings.train)
        half = settings.train // 2
        members += [order[:half], order[half : 2 * half]]
    seeds = range(1_000_000, 1_000_000 + settings.checkpoints)
    found = trained(settings, data, np.stack(members[: settings.checkpoints]), seeds)
    return [p[:, 0] if place % 2 else p for place, p in enumerate(found)]


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.mT, y.expand(len(logits), -1), reduction="none")


def _margins(logits: Tensor, y: Tensor) -> Tensor:
    right = logits.gather(2, y.expand(len(logits), -1)[..., None])[..., 0]
    others = logits.scatter(2, y.expand(len(logits), -1)[..., None], -torch.inf)
    return right - others.logsumexp(2)


# -- the score ------------------------------------------------------------------------------------


def lds(scores: np.ndarray, members: np.ndarray, outcomes: np.ndarray) -> float:
    """The mean over test images of the rank correlation of foretold and found.

    Args:
        scores: of training examples ``[test, train]``; positive where an example helps.
        members: the examples of each subset.
        outcomes: what is found for each subset, ``[subsets, test]``, greater where it is better.
    """
    foretold = np.stack([scores[:, own].sum(1) for own in members])
    return _agreement(foretold, outcomes)


def _agreement(foretold: np.ndarray, found: np.ndarray) -> float:
    """The mean over columns of the rank correlation."""
    ranks = rankdata(foretold, axis=0), rankdata(found, axis=0)
    one, two = (each - each.mean(0) for each in ranks)
    lengths = np.sqrt((one**2).sum(0) * (two**2).sum(0))
    return float(np.mean((one * two).sum(0) / np.maximum(lengths, 1e-12)))


def lds_both(scores: np.ndarray, truth: Truth) -> tuple[float, float]:
    """By the loss, and by the margin."""
    loss, margin = -truth.losses.mean(0), truth.margins.mean(0)
    return lds(scores, truth.members, loss), lds(scores, truth.members, margin)


def ceiling(truth: Truth) -> float:
    """The score of one half of the seeds for the other: what noise leaves to be had."""
    half = len(truth.losses) // 2
    return _agreement(-truth.losses[:half].mean(0), -truth.losses[half:].mean(0))
