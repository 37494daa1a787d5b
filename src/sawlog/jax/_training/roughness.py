"""Whether derivatives of one run predict what a small change of its data does to it.

With ReLU, momentum or a large learning rate, any change may send a run elsewhere, however small.
Its derivative then holds at one point and not a step further. The mean over runs is smooth.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

#: Below this agreement a single run is not trusted.
TRUSTED = 0.9
#: By which factor the sizes of changes may differ from those predicted.
ALIKE = 3


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Predicted and measured changes of the metrics for small changes of the weights.

    Args:
        predicted: By the derivatives of the run, ``[directions, q]``.
        measured: By training again, ``[directions, q]``.
    """

    predicted: np.ndarray
    measured: np.ndarray

    @property
    def cosine(self) -> float:
        """The cosine of predicted and measured changes: 1 if derivatives hold over the step."""
        predicted, measured = self._sizes
        if not predicted * measured:
            return float(predicted == measured)
        return float(np.sum(self.predicted * self.measured) / predicted / measured)

    @property
    def _sizes(self) -> tuple[float, float]:
        return float(np.linalg.norm(self.predicted)), float(np.linalg.norm(self.measured))

    @property
    def size(self) -> float:
        """The size of measured changes, relative to that of predicted ones."""
        predicted, measured = self._sizes
        return measured / predicted if predicted else float(measured > 0) or 1.0

    @property
    def trusted(self) -> bool:
        """Whether a single run predicts the direction of changes, and roughly their size."""
        return self.cosine >= TRUSTED and 1 / ALIKE <= self.size <= ALIKE

    def sentence(self) -> str:
        """Say in words whether a single run can be trusted."""
        cosine = self.cosine
        if cosine >= TRUSTED and not self.trusted:
            return (
                f"Derivatives of one run predict the direction of a change of its data, but its "
                f"size is {self.size:.2g} times the predicted one. Do not trust the scores of a "
                "single run. Hint: a state that is rounded in each step, as an integer or in half "
                "precision, hides a part of what examples change; keep it in float32."
            )
        if cosine >= TRUSTED:
            return (
                f"Derivatives of one run predict a change of its data that is as large as one "
                f"example (cosine {cosine:.2f} with training again)."
            )
        return (
            f"Training is rough: derivatives of one run do not predict a change of its data that "
            f"is as large as one example (cosine {cosine:.2f} with training again). Do not trust "
            "the scores of a single run. Hint: average over runs=10 or more with subset=0.5, "
            "use a smaller learning rate, or a smoother activation such as gelu or tanh."
        )


def agreement(runner: Any, result: Any, directions: int, seed: int) -> Agreement:
    """Train again with slightly other weights, and compare with the derivatives.

    Args:
        runner: The runner of the run.
        result: Its scores.
        directions: How many changes to try. Each takes as long as training once.
        seed: The seed of the directions.
    """
    random = np.random.default_rng([seed, 17])
    predicted, measured = [], []
    slopes = -np.asarray(result.values, np.float64) / len(result.weights)
    for _ in range(directions):
        change = random.normal(size=len(result.weights)) * (result.weights > 0)
        change /= max(float(np.linalg.norm(change)), 1e-300)
        weights = np.maximum(result.weights + change, 0.1 * result.weights)  # keep who is present
        after = runner.ends(result.run, weights)
        change = weights - result.weights
        predicted.append(slopes @ change)
        measured.append(after.astype(np.float64) - result.metrics)
    return Agreement(np.stack(predicted), np.stack(measured))
