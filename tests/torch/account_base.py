"""What a situation is, and small models and data for situations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass
class Situation:
    """A program; ``examples`` are along ``axis``, as many as ``ids``."""

    model: nn.Module
    batch: tuple[Tensor, ...]
    step: Callable[..., Tensor]
    ids: int | None = None
    axis: int = 0
    watch: dict[str, Any] = dataclasses.field(default_factory=lambda: {"uncovered": "func"})
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    inside: dict[str, Any] = dataclasses.field(default_factory=dict)
    factor: float = 1.0
    unscaled: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        self.model = self.model.double()
        self.ids = self.batch[0].shape[self.axis] if self.ids is None else self.ids

    def part(self, i: int) -> tuple[Tensor, ...]:
        return tuple(t.narrow(self.axis if t.dim() > self.axis else 0, i, 1) for t in self.batch)


RIGHT: dict[str, Callable[[], Situation]] = {}
REFUSED: dict[str, tuple[Callable[[], Situation], str]] = {}


def right(make: Callable[[], Situation]) -> Callable[[], Situation]:
    RIGHT[make.__name__] = make
    return make


def refused(said: str) -> Any:
    def add(make: Callable[[], Situation]) -> Callable[[], Situation]:
        REFUSED[make.__name__] = (make, said)
        return make

    return add


def numbers(n: int = 5, size: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(n, size).double(), torch.randint(0, classes, (n,))


def sequences(n: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, length, 4).double(), torch.randint(0, 3, (n,))


def tokens(n: int = 4, length: int = 6, words: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randint(0, words, (n, length)), torch.randint(0, words, (n, length))


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


def predict(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    return loss


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Module(nn.Module):
    """A module whose ``forward`` is a function of itself and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)


def language(words: int = 7) -> nn.Module:
    return Module(
        lambda m, x: m.out(torch.tanh(m.embed(x)).cumsum(1)),
        embed=nn.Embedding(words, 4),
        out=nn.Linear(4, words),
    )


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0)
