"""``Trainer``: call the user's training function, and check what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._array_device import to_numpy
from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.influence._validation._subset import Subset

Train = Callable[[Any, Any], Any]
Measure = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Trains models on subsets and returns their metrics.

    Args:
        train: ``train(ids, seed)`` returns the metrics of the queries, or a model.
        measure: ``measure(model)`` returns the metrics of the queries of a model.
        together: how many models a call trains. If it is more than 1, ``train`` gets ids
            ``[models, examples]`` and seeds ``[models]``, and returns metrics
            ``[models, queries]``.
        ids: the ids of all training examples, ``[n]``.
        queries: the ids of the queries, in the order of the metrics.
    """

    train: Train
    measure: Measure | None
    together: int
    ids: np.ndarray
    queries: np.ndarray

    def __post_init__(self) -> None:
        for name in ("train", "measure"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                refuse(name, "a function", getattr(self, name))

    def run(self, jobs: Sequence[tuple[Subset, int]]) -> np.ndarray:
        """Return the metrics ``[jobs, queries]`` of models, each of a subset and a repeat.

        All subsets leave out the same number of examples. If there are fewer jobs than models in a
        call, the last one is repeated, so that every call has the same shapes.

        Raises:
            ArgumentError: The metrics have another shape, or are infinite or NaN.
        """
        members = [self.ids[~subset.left_out] for subset, _ in jobs]
        seeds = [subset.seed(repeat) for subset, repeat in jobs]
        if self.together == 1:
            answers = [self._one(own, seed) for own, seed in zip(members, seeds, strict=True)]
            found = np.stack(answers)
        else:
            more = self.together - len(jobs)
            ids = np.stack(members + members[-1:] * more)
            returned = self._measured(self.train(ids, np.array(seeds + seeds[-1:] * more)))
            found = self._checked(returned, (self.together, len(self.queries)))[: len(jobs)]
        for answers, seed, own in zip(found, seeds, members, strict=True):
            if not np.isfinite(answers).all():
                odd = self.queries[~np.isfinite(answers)].tolist()
                raise ArgumentError(
                    f"The model that was trained on {len(own)} examples with the seed {seed} has "
                    f"metrics that are infinite or NaN, of the queries "
                    f"{', '.join(map(repr, odd[:5]))}. Hint: train(ids, {seed}) diverges."
                )
        return found

    def _one(self, ids: np.ndarray, seed: int) -> np.ndarray:
        returned = self._measured(self.train(ids, seed))
        if isinstance(returned, Mapping):
            missing = [each for each in self.queries.tolist() if each not in returned]
            if missing:
                raise ArgumentError(
                    "The metrics that training returned lack the queries "
                    f"{', '.join(map(repr, missing[:5]))}. Hint: train(ids, seed) returns a number "
                    "for each query, in order or as a dict by id."
                )
            returned = np.array([float(returned[each]) for each in self.queries.tolist()])
        return self._checked(returned, (len(self.queries),))

    def _measured(self, returned: Any) -> Any:
        return returned if self.measure is None else self.measure(returned)

    def _checked(self, returned: Any, shape: tuple[int, ...]) -> np.ndarray:
        try:
            found = np.asarray(to_numpy(returned), np.float64)
        except (TypeError, ValueError):
            raise self._wrong(shape, type(returned).__name__) from None
        if found.shape != shape:
            raise self._wrong(shape, f"the shape {list(found.shape)}")
        return found

    def _wrong(self, shape: tuple[int, ...], got: str) -> ArgumentError:
        what, hint = ("train", "measure=") if self.measure is None else ("measure", "together=")
        axes = "[models, queries]" if len(shape) > 1 else "[queries]"
        return ArgumentError(
            f"`{what}` must return one number for each query, {axes} = {list(shape)}; got {got}. "
            f"Hint: return the metrics of all queries in the order of scores.queries; see {hint}."
        )
