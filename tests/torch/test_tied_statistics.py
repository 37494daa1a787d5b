"""K-FAC of a weight that an embedding and a linear layer share, by hand, in every batch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sawlog

WORDS, WIDTH = 7, 4


class Tied(nn.Module):
    """Predicts a word at each position, with the table of words as the head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words):
        return self.head(torch.tanh(self.table(words)))


def by_hand(model, words, targets):
    """The moments of rows and columns of the table, summed over both uses and all examples."""
    left, right = np.zeros((WORDS, WORDS)), np.zeros((WIDTH, WIDTH))
    for each, target in zip(words, targets, strict=True):
        looked_up = model.table.weight.detach()[each].requires_grad_()
        hidden = torch.tanh(looked_up)
        logits = hidden @ model.table.weight.detach().T
        logits.retain_grad()
        F.cross_entropy(logits, target).backward()
        one_hot = np.eye(WORDS)[each]
        left += one_hot.T @ one_hot + (logits.grad.T @ logits.grad).numpy()
        right += (hidden.T @ hidden).detach().numpy()
        right += (looked_up.grad.T @ looked_up.grad).numpy()
    return left, right


def test_both_uses_count_on_their_own_side_in_every_batch(tmp_path):
    torch.manual_seed(0)
    model = Tied().double()
    words, targets = torch.randint(0, WORDS, (2, 9, 5))
    expected = by_hand(model, words, targets)
    run = sawlog.init("tied", root=tmp_path, config={"statistic": "kfac", "precision": "float64"})
    run.watch(model, quiet=True)
    for ids in torch.arange(9).split(3):  # the first batch is proven, the others are planned
        with run(ids):
            F.cross_entropy(model(words[ids]).flatten(0, 1), targets[ids].flatten()).backward()
    run.finalize()
    found = run.statistics._arrays
    for side, total in zip(("left", "right"), expected, strict=True):
        array, count = found[f"sum/kfac.{side}/table.weight"]
        assert count == 2 * words.numel()
        np.testing.assert_allclose(array, total, rtol=1e-9, atol=1e-12)


class WithPositions(nn.Module):
    """A table of positions, which is looked up once for all examples, or for each."""

    def __init__(self, ids):
        super().__init__()
        self.register_buffer("ids", torch.arange(8)[None])
        self._ids = ids
        self.table, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.head(torch.tanh(self.table(words) + self.positions(self._ids(self, words))))


POSITIONS = {  # and how many positions count for each example
    "once": (lambda m, words: torch.arange(5)[None], 8),
    "a row": (lambda m, words: torch.arange(5), 8),
    "a buffer": (lambda m, words: m.ids[:, : words.shape[1]], 8),
    "for each": (lambda m, words: torch.arange(5).expand(len(words), 5), 5),
    "copied": (lambda m, words: torch.arange(5)[None].repeat(len(words), 1), 5),
    "as the words": (lambda m, words: torch.ones_like(words).cumsum(1) - 1, 5),
    "by the words": (lambda m, words: (words >= 0).cumsum(1) - 1, 5),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_moments_of_positions_do_not_depend_on_the_size_of_a_batch(tmp_path, name):
    torch.manual_seed(0)
    ids_of, positions = POSITIONS[name]
    model = WithPositions(ids_of).double()
    words, targets = torch.randint(0, WORDS, (2, 5, 5))
    found = []
    every = [("even", [5]), ("with one left", [2, 2, 1]), ("ones", [3, 1, 1])]
    for name, sizes in [*every, ("one first", [1, 4]), ("only ones", [1] * 5)]:
        options = {"statistic": "kfac", "precision": "float64"}
        run = sawlog.init(name, root=tmp_path, config=options)
        run.watch(model, quiet=True)
        for ids in torch.arange(5).split(sizes):
            with run(ids):
                loss = F.cross_entropy(model(words[ids]).flatten(0, 1), targets[ids].flatten())
                loss.backward()
        run.finalize()
        found.append(run.statistics._arrays)
    for other in found[1:]:
        for side in ("left", "right"):
            one, two = (each[f"sum/kfac.{side}/positions.weight"] for each in (found[0], other))
            assert one[1] == two[1] == 5 * positions
            np.testing.assert_allclose(one[0], two[0], rtol=1e-9, atol=1e-12)
