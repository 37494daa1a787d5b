"""The statistics of one batch: K-FAC moments, EK-FAC squares, means and covariances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.factored import Dense, OneHot, Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._log_names import kind_of
from sawlog.run_files._measured import LEFT, RIGHT
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics

Sides = tuple[Any, Any]


def add_moments(
    sums: RunStatistics,
    block: Block,
    pair: Pair,
    sides: Sides,
    mask: np.ndarray | None,
    options: Options,
) -> None:
    """Add the second moments of both factors of one use of a block to K-FAC.

    Args:
        sums: The statistics.
        block: The block.
        pair: The factors of the examples to add.
        sides: The projections of both sides; None for a side that stays whole.
        mask: Which positions of each example count.
        options: The options of the run.
    """
    small = pair.projected(*(None if side is None else jnp.asarray(side) for side in sides))
    if options.precision == "float64":
        small = Pair(_double(small.left), _double(small.right))
    positions = small.left.positions * small.batch
    if mask is not None and mask.shape[1:] == (small.left.positions,):
        small, positions = small.masked(mask), int(mask.sum())
    sums.add(f"{LEFT}/{block.name}", small.left.moment(), positions)
    sums.add(f"{RIGHT}/{block.name}", small.right.moment(), positions)


def add_rows(sums: RunStatistics, logs: Mapping[str, np.ndarray], options: Options) -> None:
    """Add the mean, variance and covariance of logs."""
    wanted = {*options.statistic}
    for name, rows in logs.items():
        if wanted & {"mean", "variance"}:
            sums.add_rows(name, rows)
        if "covariance" in wanted:
            is_grad = kind_of(name) == "grad"
            flat = rows.reshape(len(rows), -1) if is_grad else _by_position(rows)
            flat = flat.astype(options.precision)
            sums.add(f"covariance:{name}", flat.T @ flat, len(flat))
            sums.add(f"mean:{name}", flat.sum(0), len(flat))


def add_squares(
    sums: RunStatistics, block: Block, rows: np.ndarray, basis: Sequence[np.ndarray]
) -> None:
    """Add the squares of gradients in the eigenbasis of K-FAC; a vector is the identity."""
    left, right = (np.asarray(side, rows.dtype) for side in basis)
    turned = rows if left.ndim < 2 else np.swapaxes(left, -1, -2) @ rows
    turned = turned if right.ndim < 2 else turned @ right
    sums.add(f"ekfac/{block.name}", (turned**2).sum(0), len(rows))


def _double(factor: Dense | OneHot) -> Dense | OneHot:
    """Return a factor in float64, by numpy where JAX is set to 32 bits."""
    convert = jnp.asarray if jax.config.read("jax_enable_x64") else np.asarray
    if isinstance(factor, OneHot):
        weights = None if factor.weights is None else convert(factor.weights, np.float64)
        return OneHot(convert(factor.ids), factor.size, weights)
    return Dense(convert(factor.array, np.float64), factor.one)


def _by_position(rows: np.ndarray) -> np.ndarray:
    """Reshape ``[batch, ..., n]`` to ``[all positions, n]``."""
    return rows.reshape(-1, rows.shape[-1]) if rows.ndim > 1 else rows.reshape(-1, 1)
