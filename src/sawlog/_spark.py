"""Sparklines: the course of a series in a few characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"


def spark(course: Sequence[float | None], unicode: bool = True) -> str:
    """One character for each mean.

    >>> spark([0.0, 1.0, 2.0, None, float("nan"), 7.0])
    '▁▂▃ x█'
    >>> spark([1.0, 1.0])
    '▄▄'
    """
    blocks = BLOCKS if unicode else ASCII
    means = np.array([np.nan if mean is None else mean for mean in course])
    finite = means[np.isfinite(means)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = max(abs(low), abs(high)) or 1.0
        span = high / scale - low / scale
        share = (means / scale - low / scale) / span if span > 0 else np.full(len(means), 0.45)
    levels = np.minimum(np.nan_to_num(share * len(blocks)), len(blocks) - 1).astype(int)
    return "".join(
        " " if mean is None else blocks[level] if np.isfinite(mean) else "x"
        for mean, level in zip(course, levels.tolist(), strict=True)
    )
