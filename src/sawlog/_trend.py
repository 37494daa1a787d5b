"""Trends: a series as the means of a few bins, and those as a sparkline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=+*#"


def sparkline(means: Sequence[float | None], unicode: bool = True) -> str:
    """Draw one character for each mean: a blank for None, ``x`` for what is not finite.

    >>> sparkline([0.0, 1.0, 2.0, None, float("nan"), 7.0])
    '▁▂▃ x█'
    >>> sparkline([1.0, 1.0])
    '▄▄'
    """
    blocks = BLOCKS if unicode else ASCII
    values = np.array([np.nan if mean is None else mean for mean in means])
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = max(abs(low), abs(high)) or 1.0  # so that no difference overflows
        span = high / scale - low / scale
        share = (values / scale - low / scale) / span if span > 0 else np.full(len(values), 0.45)
    levels = np.minimum(np.nan_to_num(share * len(blocks)), len(blocks) - 1).astype(int)
    return "".join(
        " " if mean is None else blocks[level] if np.isfinite(mean) else "x"
        for mean, level in zip(means, levels.tolist(), strict=True)
    )


def bin_means(
    bins: np.ndarray, width: int, bounds: tuple[float, float] | None
) -> list[float | None]:
    """Return the means of at most ``width`` groups of bins of equal length.

    Args:
        bins: ``[3, bins]``: of each bin the sum of its finite values, how many these are, and how
            many values are not finite.
        width: how many means to return at most.
        bounds: the least and the greatest finite value, between which every mean is; None if no
            value is finite.

    Returns:
        A mean for each group; NaN where all its values are not finite, None where it has none.
    """
    length = bins.shape[1]
    if not length:
        return []
    width = min(max(1, width), length)
    edges = np.arange(width) * length // width
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums, counts, odd = (np.add.reduceat(part, edges) for part in bins)
        means = sums / counts
    if bounds is not None:  # a sum may overflow, a mean cannot
        means = np.clip(np.where(counts > 0, means, np.nan), *bounds)
    seen = (counts + odd) > 0
    return [mean if there else None for mean, there in zip(means.tolist(), seen, strict=True)]
