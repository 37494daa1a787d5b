"""Sampled labels: the random numbers that the true Fisher needs.

The Fisher information is the mean of outer products of gradients, with labels drawn from the
model's own distribution of outputs. With the labels of the data it is called the empirical
Fisher. The numbers here depend on the seed and on the id of an example alone, so the labels of an
example are the same in every pass, in every batch and on every process.
"""

from __future__ import annotations

import numpy as np
import xxhash

from sawlog.errors import ArgumentError, CaptureError
from sawlog.run_files._options import Options

CURVATURE = {"kfac", "ekfac"}
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def samples_labels(options: Options) -> bool:
    """Return whether the passes of these options need labels that are drawn from the model."""
    return options.fisher == "true" and bool(CURVATURE & {*options.statistic})


def check_no_rows(options: Options) -> None:
    """Refuse to store rows of sampled labels, which are not gradients of the data.

    Raises:
        ArgumentError: one pass would measure the true Fisher and store rows.
    """
    if samples_labels(options) and options.saved:
        raise ArgumentError(
            f'fisher="true" measures {options.statistic[0]!r} with labels drawn from the model, '
            "and the rows to store need the labels of the data, so one pass cannot do both. Hint: "
            "run.extract(step, loader) makes all passes; in a loop of your own, "
            'run.setup(statistic="kfac", fisher="true", save=[]), and a pass without a statistic.'
        )


class LabelSampling:
    """The labels of one batch, while the true Fisher is measured.

    Args:
        seed: the seed of the run.
        ids: the ids of the examples.
    """

    def __init__(self, seed: int, ids: np.ndarray) -> None:
        self._seed, self._ids = seed, ids
        self._calls = 0

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self._ids)

    def uniforms(self, count: int) -> np.ndarray:
        """Return ``count`` random numbers in [0, 1) for each example, ``[batch, count]``.

        Every call returns others.

        >>> two = LabelSampling(0, np.array([7, 8])).uniforms(3)
        >>> bool((two[1:] == LabelSampling(0, np.array([8])).uniforms(2 + 1)).all())
        True
        """
        about = f"{self._seed}\0{self._calls}\0{self._ids.dtype.kind}\0"
        keys = [xxhash.xxh3_64_intdigest(f"{about}{name}".encode()) for name in self._ids.tolist()]
        numbers = (
            np.array(keys, np.uint64)[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP
        )
        self._calls += 1
        return (_mixed(numbers) >> np.uint64(11)) * 2.0**-53

    def check_used(self) -> None:
        """Raise a CaptureError if the loss of the batch was computed without sampled labels."""
        if not self._calls:
            raise CaptureError(
                'fisher="true" needs labels that are drawn from the outputs of the model, and '
                "run.labels was not called in this batch. Nothing of it was measured. Hint: "
                "compute the loss with run.labels(logits, labels) in place of labels: outside of "
                "such a pass it returns the labels that it is given."
            )


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return well-mixed bits of 64-bit counters: the output function of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FACTORS[0]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _FACTORS[1]
    return numbers ^ (numbers >> np.uint64(31))
