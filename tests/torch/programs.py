"""Small models with data and a loss, and what plain autograd says of each example alone."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import sawlog


class Program:
    """A model, a batch, and a loss of the batch."""

    def __init__(self, model, batch, loss, *, positions=None):
        self.model, self.batch, self.loss, self.positions = model, batch, loss, positions

    @property
    def size(self):
        return len(self.batch[0])

    def part(self, index):
        """The batch of some examples."""
        return tuple(each[index] for each in self.batch)

    def of(self, batch=None):
        return self.loss(self.model, *(self.batch if batch is None else batch))

    def alone(self):
        """The gradient of each example by plain autograd: name -> ``[batch, ...]``."""
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        rows = []
        for i in range(self.size):
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            rows.append(
                torch.autograd.grad(
                    self.of(self.part(slice(i, i + 1))), parameters, allow_unused=True
                )
            )
        return {
            name: np.stack([np.zeros(()) if r is None else r.numpy() for r in each])
            for name, each in zip(names, zip(*rows, strict=True), strict=True)
        }


def mlp(reduction="mean", size=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3, bias=False))
    batch = (torch.randn(size, 4).double(), torch.randint(0, 3, (size,)))

    def loss(model, x, y):
        return F.cross_entropy(model(x), y, reduction=reduction)

    return Program(model.double(), batch, loss)


class Language(nn.Module):
    """A tied embedding, a layer that is used twice, and positions."""

    def __init__(self, words=11, width=6):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x)
        h = h + torch.tanh(self.mix(self.norm(h)))
        return self.head(h + self.mix(h).cumsum(1))


def language(reduction="mean", size=4, length=7):
    torch.manual_seed(1)
    x, y = torch.randint(0, 11, (2, size, length))
    y[0, 3:], y[2, 1:] = -100, -100

    def loss(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)

    return Program(Language().double(), (x, y), loss, positions=length)


def picture(reduction="mean", size=3):
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(3 * 2 * 2, 2),
    )
    batch = (torch.randn(size, 2, 4, 4).double(), torch.randn(size, 2).double())

    def loss(model, x, y):
        apart = ((model(x) - y) ** 2).sum(1)
        return apart.mean() if reduction == "mean" else apart.sum()

    return Program(model.double(), batch, loss)


PROGRAMS = {"mlp": mlp, "language": language, "picture": picture}


def logged(run, report, ids):
    """What a run stored of whole gradients: name of a parameter -> ``[batch, ...]``."""
    with sawlog.store.open(run.store_path) as reader:
        rows = {name: np.array(values) for name, values in reader.gather(ids).items()}
    found = {}
    for block in report.blocks:
        whole = sawlog.capture.decode(rows, f"grad/{block.name}")
        found.update(block.parts(whole))
    return found


def assert_alike(found, expected, rtol=1e-5, atol=1e-6):
    assert set(found) == set(expected)
    for name, rows in expected.items():
        np.testing.assert_allclose(
            found[name].reshape(rows.shape), rows, rtol=rtol, atol=atol, err_msg=name
        )
