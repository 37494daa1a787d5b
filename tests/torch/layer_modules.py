"""Modules for the tests of layer rules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from torch import nn

from tests.thorough import seeded_examples


def examples(number: int) -> settings:
    return seeded_examples(max(4, number // 2), number)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)
