"""Compute the projections of a block from its compression; the result is deterministic."""

from __future__ import annotations

import numpy as np

from sawlog import store
from sawlog.errors import ArgumentError, UnknownNameError
from sawlog.factored import Projection, principal, random_projection
from sawlog.run_files._blocks import Block
from sawlog.run_files._folders import label_of, measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Compression, Options, read
from sawlog.store._format._store_notes import parsing

_HINT = (
    'Hint: run over some data with statistic="kfac" and without compress first, finalize(), and '
    "set up again."
)


def projections_of(reader: store.Reader) -> dict[str, Projection]:
    """Return the projections of the gradients in a store of rows, by block.

    Raises:
        ArgumentError: the covariances for PCA are missing.
    """
    with parsing(reader.path, "options"):
        blocks = [Block.from_json(each) for each in reader.meta["blocks"]]
        how = read(reader.meta["options"]).compress
    whole = None
    if how is not None and how.kind == "pca":
        whole = measured(reader.path.parent.parent, label_of(Options()), blocks)
    return {block.name: projection_of(block, how, whole) for block in blocks}


def projection_of(block: Block, how: Compression | None, whole: Measured | None) -> Projection:
    """Return the matrices of both sides of a block; None for a side that is not projected.

    Args:
        block: the block, with its ranks.
        how: how it is compressed.
        whole: statistics of whole gradients, for PCA.

    Raises:
        ArgumentError: the covariances for PCA are missing.
    """
    if how is None:
        return Projection()
    if how.kind == "pca":
        return _main(block, whole)
    sides = []
    for side, rank in zip(("left", "right"), block.ranks, strict=True):
        size = block.rows if side == "left" else block.cols
        sides.append(None if rank is None else _random(block, how, side, size, rank))
    return Projection(*sides)


def _random(block: Block, how: Compression, side: str, size: int, rank: int) -> np.ndarray:
    groups = block.shape[:-2]
    names = [f"{block.name}/{side}" + (f"/{i}" if groups else "") for i in range(*groups or (1,))]
    made = [random_projection(how.kind, size, rank, seed=how.seed, name=name) for name in names]
    return np.stack(made) if groups else made[0]


def _main(block: Block, whole: Measured | None) -> Projection:
    if whole is None:
        raise ArgumentError(f"compress kind='pca' needs covariances, which are missing. {_HINT}")
    try:
        moments = whole.kfac(block.name)
    except UnknownNameError as error:
        raise ArgumentError(f"compress kind='pca' needs covariances. {error} {_HINT}") from error
    sides: list[np.ndarray | None] = []
    for moment, rank, size in zip(moments, block.ranks, block.shape[-2:], strict=True):
        if rank is None:
            sides.append(None)
            continue
        if moment.shape[-1] != size:
            raise ArgumentError(
                f"The covariances of {block.name!r} have size {moment.shape[-1]} instead of "
                f"{size}: they were measured after a projection. {_HINT}"
            )
        if block.shape[:-2]:
            sides.append(np.stack([principal(each, rank) for each in moment]))
        else:
            sides.append(principal(moment, rank))
    return Projection(*sides)
