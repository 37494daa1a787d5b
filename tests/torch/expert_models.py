"""Mixtures of experts: tokens are routed by what they are, or by how many each expert has."""

import torch
import torch.nn.functional as F
from torch import nn


class Router(nn.Module):
    """A layer, and which of two experts each token goes to."""

    def __init__(self, size):
        super().__init__()
        self.first, self.router = nn.Linear(4, 6), nn.Linear(6, 2)
        nn.init.normal_(self.router.weight, std=4)
        self.experts = nn.ModuleList([nn.Linear(6, size) for _ in range(2)])

    def routed(self, x):
        h = torch.tanh(self.first(x))
        share = self.router(h).softmax(-1)
        return h, share, *share.max(-1)


class Experts(Router):
    """Tokens are routed to one of two experts."""

    def __init__(self):
        super().__init__(3)

    def forward(self, x):
        h, share, best, chosen = self.routed(x)
        out = h.new_zeros(len(h), 3)
        for number, expert in enumerate(self.experts):
            own = torch.where(chosen == number)[0]
            out = out.index_add(0, own, expert(h[own]) * best[own, None])
        return out, share, chosen


class SplitExperts(Router):
    """Tokens are sorted by their experts, and split by how many each has."""

    def __init__(self):
        super().__init__(6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        h, _, best, chosen = self.routed(x)
        order = chosen.sort(stable=True).indices
        parts = h[order].split(F.one_hot(chosen, 2).sum(0).tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return self.last(torch.zeros_like(h).index_add(0, order, out * best[order, None]))
