"""``Sizes``: how large the models and data of the demo are."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large the models and data of the demo are.

    Args:
        seeds: how many models of the spirals are trained at once.
        steps: for how many steps.
        rows: how many rows the killed writer has to write.
        digits: how many drawn digits there are to train on.
        epochs: how often the model of the digits sees them. Models that are trained again without
            some of them take as many steps.
    """

    seeds: int = 5
    steps: int = 300
    rows: int = 40_000
    digits: int = 1200
    epochs: int = 20

    @classmethod
    def quick(cls) -> Sizes:
        """Return sizes that only show that everything works."""
        return cls(seeds=2, steps=20, rows=2_000, digits=480, epochs=20)
