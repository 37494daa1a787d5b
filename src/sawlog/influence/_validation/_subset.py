"""``Subset``: the training data without some of the examples."""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np

from sawlog._validate import refuse


@dataclasses.dataclass(frozen=True)
class Subset:
    """The training data without some of the examples.

    Args:
        left_out: whether each example is left out, ``[n]``.
        number: the number of a random subset; -1 for one that was chosen by scores or by name.
    """

    left_out: np.ndarray
    number: int = -1

    @functools.cached_property
    def size(self) -> int:
        """The number of examples that are left out."""
        return int(self.left_out.sum())

    @property
    def packed(self) -> np.ndarray:
        """The examples that are left out, as one bit each."""
        return np.packbits(self.left_out)

    def key(self, repeat: int) -> str:
        """Return the name of the n-th model that is trained on this subset."""
        return f"{self.name}-{repeat}"

    @functools.cached_property
    def name(self) -> str:
        """A name that depends on the examples that are left out, and on nothing else."""
        return hashlib.blake2b(self.packed.tobytes(), digest_size=12).hexdigest()

    def seed(self, repeat: int) -> int:
        """Return the seed of the n-th model, different for each subset; below ``2**31``."""
        digest = hashlib.blake2b(self.key(repeat).encode(), digest_size=4)
        return int.from_bytes(digest.digest(), "little") >> 1


def random_subsets(examples: int, drop: float, count: int, draw: int) -> list[Subset]:
    """Return random subsets without a share ``drop`` of the examples.

    The first subsets do not depend on ``count``, so that more can be drawn later.

    Raises:
        ArgumentError: the share leaves out no example, or all.

    >>> [subset.size for subset in random_subsets(10, 0.3, 2, draw=0)]
    [3, 3]
    """
    size = number_left_out(examples, drop)
    found = []
    for number in range(count):
        left_out = np.zeros(examples, bool)
        left_out[np.random.default_rng([draw, number]).permutation(examples)[:size]] = True
        found.append(Subset(left_out, number))
    return found


def number_left_out(examples: int, drop: float) -> int:
    """Return how many examples a share is.

    Raises:
        ArgumentError: it leaves out no example, or all.
    """
    size = round(drop * examples)
    if not 0 < size < examples:
        refuse("drop", f"a share that leaves out some of the {examples} examples, not all", drop)
    return size
