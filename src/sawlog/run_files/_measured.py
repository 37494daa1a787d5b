"""Statistics of a run as its users read them: means, variances, covariances, K-FAC, EK-FAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError, UnknownNameError
from sawlog.run_files._blocks import Block
from sawlog.run_files._provenance import Provenance, fingerprint_of_arrays

LEFT, RIGHT = "kfac.left", "kfac.right"


class Measured:
    """The statistics of a run, as float64 numpy arrays.

    ``name`` is that of a log, as in the store: ``"grad/fc1.weight"``, ``"forward/fc1"``; K-FAC
    goes by the names of blocks, as ``"fc1.weight"``.

    Args:
        arrays: sums, means and squares, each with its count.
        blocks: what is watched.
        examples: how many examples K-FAC was measured with.
        provenance: what they were computed with.
        factors: the fingerprint of the K-FAC whose eigenbasis EK-FAC was measured in.
    """

    def __init__(
        self,
        arrays: Mapping[str, tuple[np.ndarray, int]],
        blocks: Sequence[Block],
        examples: int,
        provenance: Sequence[Provenance] = (),
        factors: str | None = None,
    ) -> None:
        self._arrays = dict(arrays)
        self._blocks = {block.name: block for block in blocks}
        self.examples = examples
        self.provenance = tuple(provenance)
        self._factors = factors

    def factors(self) -> str:
        """A fingerprint of K-FAC, which changes with any of it."""
        return fingerprint_of_arrays(
            {
                key: array
                for key, (array, _) in self._arrays.items()
                if key.startswith((f"sum/{LEFT}/", f"sum/{RIGHT}/"))
            }
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What was measured: ``"variance:grad/fc1.weight"`` and so on."""
        said = {"sum/": "", "mean/": "mean:", "squares/": "variance:"}
        named = []
        for key in self._arrays:
            kind = next(kind for kind in said if key.startswith(kind))
            named.append(said[kind] + key.removeprefix(kind))
        return tuple(named)

    def _get(self, key: str, what: str) -> tuple[np.ndarray, int]:
        if key not in self._arrays:
            raise UnknownNameError(
                f"{what} was not measured. Measured were: {', '.join(self.names) or 'nothing'}."
            )
        array, count = self._arrays[key]
        return np.asarray(array, np.float64), count

    def mean(self, name: str) -> np.ndarray:
        """The mean over examples."""
        return self._get(f"mean/{name}", f"The mean of {name!r}")[0]

    def variance(self, name: str) -> np.ndarray:
        """The variance over examples, of each element; divided by their number."""
        squares, count = self._get(f"squares/{name}", f"The variance of {name!r}")
        return squares / count

    def covariance(self, name: str, *, centered: bool = False) -> np.ndarray:
        """The mean of outer products with itself: of gradients as vectors, over examples; of
        forward and backward logs over examples and positions.

        It is not centered, which curvature needs; ``centered=True`` subtracts the product of the
        means.
        """
        total, count = self._get(f"sum/covariance:{name}", f"The covariance of {name!r}")
        moment = total / count
        if centered:
            mean = self._get(f"sum/mean:{name}", f"The mean of {name!r}")[0] / count
            moment = moment - np.outer(mean, mean)
        return moment

    def kfac(self, block: str) -> tuple[np.ndarray, np.ndarray]:
        """The two factors of K-FAC, left and right, whose Kronecker product approximates the mean
        of outer products of the gradients of examples, in the layout of the block.

        That of the inputs is a mean over positions, that of the outputs a sum over positions and a
        mean over examples. One with one axis is a diagonal.
        """
        left, positions = self._get(f"sum/{LEFT}/{block}", f"K-FAC of {block!r}")
        right, _ = self._get(f"sum/{RIGHT}/{block}", f"K-FAC of {block!r}")
        if self._blocks[block].inputs == "left":
            return left / positions, right / self.examples
        return left / self.examples, right / positions

    def eigenbasis(self, block: str) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvectors of both factors of K-FAC, as columns; ones for that of a diagonal."""
        left, right = self.kfac(block)
        return _vectors(left), _vectors(right)

    def ekfac(self, block: str) -> np.ndarray:
        """The corrected eigenvalues ``[rows, cols]``.

        They are the mean over examples of the squares of their gradients in the eigenbasis.
        """
        total, count = self._get(f"sum/ekfac/{block}", f"EK-FAC of {block!r}")
        if self._factors is not None and self._factors != self.factors():
            raise ArgumentError(
                "EK-FAC was measured in the eigenbasis of another K-FAC than is there now, which "
                'has more examples by now. Hint: run over the data with statistic="ekfac" again, '
                "in a run of its own or after sawlog.init(project, exists='replace')."
            )
        return total / count

    def to_json(self) -> dict[str, Any]:
        """What was measured, for programs."""
        return {"examples": self.examples, "names": list(self.names)}


def _vectors(moment: np.ndarray) -> np.ndarray:
    if moment.ndim == 1:
        return np.ones_like(moment)
    vectors = np.linalg.eigh(moment)[1]
    return vectors
