"""The models whose gradients are captured, with data made up for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RANK = 64
VOCABULARY, TOKENS = 5_000, 128


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, batches for it, and the layers that every tool watches."""

    name: str
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    layers: dict[str, nn.Module]
    loss: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]

    @property
    def examples(self) -> int:
        return sum(len(inputs) for inputs, _ in self.batches)

    @property
    def values(self) -> int:
        """How many numbers are stored for each example."""
        sides = map(self.sizes, self.layers)
        return sum(min(RANK, one) * min(RANK, two) for one, two in sides)

    def sizes(self, name: str) -> tuple[int, int]:
        """How many inputs, with the one of the bias, and outputs a layer has."""
        layer = self.layers[name]
        rows, cols = layer.weight.shape
        return (cols + 1, rows) if isinstance(layer, nn.Linear) else (rows + 1, cols)


def mlp(batches: int, size: int = 256) -> Case:
    """784-512-512-10 on random images, mean cross entropy."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    data = [(torch.rand(size, 784), torch.randint(10, (size,))) for _ in range(batches)]
    layers = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    return Case(
        "MLP", model, data, layers, lambda model, both: F.cross_entropy(model(both[0]), both[1])
    )


def gpt(batches: int, size: int = 8) -> Case:
    """GPT-2 with 4 layers of width 256 on random tokens; its 16 ``Conv1D`` are watched.

    5,000 words: with all 50,257 most of the time would be that of the head, which is tied to the
    embedding, and which no peer watches.
    """
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4,
        n_embd=256,
        n_head=4,
        n_positions=TOKENS,
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.train()
    tokens = [torch.randint(VOCABULARY, (size, TOKENS)) for _ in range(batches)]
    layers = {name: each for name, each in model.named_modules() if isinstance(each, Conv1D)}
    return Case("GPT", model, [(each, each) for each in tokens], layers, _next_token)


def _next_token(model: nn.Module, both: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(both[0]).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), both[1][:, 1:].flatten())


class _Deep(nn.Module):
    """Small layers one after the other: the graph has many nodes, and each takes little time."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def deep(batches: int, size: int = 64, layers: int = 400, width: int = 128) -> Case:
    """400 residual layers, about 2,400 nodes; one of them is watched, for the accounts' sake."""
    torch.manual_seed(0)
    model = _Deep(layers, width)
    data = [(torch.rand(size, width), torch.randint(width, (size,))) for _ in range(batches)]
    return Case(
        "deep",
        model,
        data,
        {"layers.0": model.layers[0]},
        lambda model, both: F.cross_entropy(model(both[0]), both[1]),
    )


CASES = {"MLP": mlp, "GPT": gpt, "deep": deep}
