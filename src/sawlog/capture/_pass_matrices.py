"""The matrices that the gradients of a pass are multiplied by: projections and eigenbases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.run_files._folders import measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options
from sawlog.run_files._projections import projection_of
from sawlog.run_files._provenance import fingerprint_of_arrays

Sides = tuple[np.ndarray | None, np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class PassMatrices:
    """Matrices of each block, by its name.

    Args:
        projections: the left and right projection; None for a side that is not projected.
        bases: the left and right eigenbasis for EK-FAC; empty if it is not measured. A vector
            represents the identity.
        fingerprint: of projections that were fitted to data; empty for those that the options
            determine.
    """

    projections: Mapping[str, Sides]
    bases: Mapping[str, tuple[np.ndarray, np.ndarray]]
    fingerprint: str = ""


def pass_matrices(
    path: Path, options: Options, blocks: Sequence[Block], factors: Measured | None
) -> PassMatrices:
    """Compute the matrices of a pass.

    Args:
        path: the folder of the run, whose covariances determine PCA projections.
        options: the options of the pass.
        blocks: the blocks with their ranks.
        factors: the K-FAC statistics whose eigenbases EK-FAC uses.

    Raises:
        ArgumentError: the options need statistics that were not measured.
    """
    is_pca = options.compress is not None and options.compress.kind == "pca"
    covariances = measured(path, "whole", blocks) if is_pca else None
    bases = {}
    if "ekfac" in options.statistic:
        if factors is None:
            raise ArgumentError(
                'statistic="ekfac" corrects the eigenvalues of K-FAC, which was not measured. '
                'Hint: run over the data with statistic="kfac" and the same compression, '
                "finalize(), and set up again."
            )
        bases = {block.name: factors.eigenbasis(block.name) for block in blocks}
    found = {b.name: projection_of(b, options.compress, covariances) for b in blocks}
    projections = {name: (each.left, each.right) for name, each in found.items()}
    return PassMatrices(projections, bases, _fingerprint(projections) if is_pca else "")


def _fingerprint(projections: Mapping[str, Sides]) -> str:
    return fingerprint_of_arrays(
        {
            f"{name}/{side}": matrix
            for name, both in projections.items()
            for side, matrix in zip(("left", "right"), both, strict=True)
        }
    )
