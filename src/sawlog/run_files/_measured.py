"""Read the statistics of a run: means, variances, covariances, K-FAC, EK-FAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError, UnknownNameError
from sawlog.factored import eigh
from sawlog.run_files._blocks import Block
from sawlog.run_files._provenance import Provenance, fingerprint_of_arrays

LEFT, RIGHT = "kfac.left", "kfac.right"


class Measured:
    """The statistics of a run, as float64 numpy arrays.

    ``name`` is the name of a log in the store, such as ``"grad/fc1.weight"`` or ``"forward/fc1"``;
    ``block`` is the name of a block, such as ``"fc1.weight"``.

    Args:
        arrays: sums, means and squares, each with its count.
        blocks: the watched blocks.
        examples: the number of examples in K-FAC.
        provenance: the weights that the statistics were computed with.
        factors: the fingerprint of the K-FAC whose eigenbasis EK-FAC was measured in.
        fisher: which labels the curvature was measured with: ``"empirical"``, those of the data, or
            ``"true"``, labels drawn from the model.
    """

    def __init__(
        self,
        arrays: Mapping[str, tuple[np.ndarray, int]],
        blocks: Sequence[Block],
        examples: int,
        provenance: Sequence[Provenance] = (),
        factors: str | None = None,
        fisher: str = "empirical",
    ) -> None:
        self._arrays = dict(arrays)
        self._blocks = {block.name: block for block in blocks}
        self.examples = examples
        self.provenance = tuple(provenance)
        self._factors = factors
        self.fisher = fisher

    def factors(self) -> str:
        """Return a fingerprint of the K-FAC factors."""
        return fingerprint_of_arrays(
            {
                key: array
                for key, (array, _) in self._arrays.items()
                if key.startswith((f"sum/{LEFT}/", f"sum/{RIGHT}/"))
            }
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all statistics, such as ``"variance:grad/fc1.weight"``."""
        prefixes = {"sum/": "", "mean/": "mean:", "squares/": "variance:"}
        named = []
        for key in self._arrays:
            kind = next(kind for kind in prefixes if key.startswith(kind))
            named.append(prefixes[kind] + key.removeprefix(kind))
        return tuple(named)

    def _get(self, key: str, what: str) -> tuple[np.ndarray, int]:
        if key not in self._arrays:
            raise UnknownNameError(
                f"{what} was not measured. The run has: {', '.join(self.names) or 'no statistics'}."
            )
        array, count = self._arrays[key]
        return np.asarray(array, np.float64), count

    def mean(self, name: str) -> np.ndarray:
        """Return the mean over examples."""
        return self._get(f"mean/{name}", f"The mean of {name!r}")[0]

    def variance(self, name: str) -> np.ndarray:
        """Return the variance of each element over examples, divided by their number."""
        squares, count = self._get(f"squares/{name}", f"The variance of {name!r}")
        return squares / count

    def covariance(self, name: str, *, centered: bool = False) -> np.ndarray:
        """Return the mean outer product: of flat gradients over examples, of forward and backward
        logs over examples and positions.

        It is not centered, as curvature needs it; ``centered=True`` subtracts the outer product of
        the mean.
        """
        total, count = self._get(f"sum/covariance:{name}", f"The covariance of {name!r}")
        moment = total / count
        if centered:
            mean = self._get(f"sum/mean:{name}", f"The mean of {name!r}")[0] / count
            moment = moment - np.outer(mean, mean)
        return moment

    def kfac(self, block: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the left and right factor of K-FAC, in the layout of the block.

        Their Kronecker product approximates the mean outer product of the gradients of examples.
        The factor of the inputs is a mean over positions. That of the outputs is a sum over
        positions and a mean over examples. A factor with one axis is a diagonal.
        """
        left, positions = self._get(f"sum/{LEFT}/{block}", f"K-FAC of {block!r}")
        right, _ = self._get(f"sum/{RIGHT}/{block}", f"K-FAC of {block!r}")
        if self._blocks[block].inputs == "left":
            return left / positions, right / self.examples
        return left / self.examples, right / positions

    def eigenbasis(self, block: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the eigenvectors of both factors of K-FAC as columns; ones for a diagonal."""
        left, right = self.kfac(block)
        return _vectors(left), _vectors(right)

    def ekfac(self, block: str) -> np.ndarray:
        """Return the corrected eigenvalues ``[rows, cols]``.

        They are the mean over examples of the squared gradients in the eigenbasis.
        """
        total, count = self._get(f"sum/ekfac/{block}", f"EK-FAC of {block!r}")
        if self._factors is not None and self._factors != self.factors():
            raise ArgumentError(
                "EK-FAC was measured in the eigenbasis of an earlier K-FAC, to which examples were "
                'added since. Hint: run over the data with statistic="ekfac" again, '
                "in a separate run or after sawlog.init(project, exists='replace')."
            )
        return total / count

    def to_json(self) -> dict[str, Any]:
        """Return the number of examples and all names, in types of JSON."""
        return {"examples": self.examples, "names": list(self.names)}


def _vectors(moment: np.ndarray) -> np.ndarray:
    if moment.ndim == 1:
        return np.ones_like(moment)
    return eigh(moment)[1]
