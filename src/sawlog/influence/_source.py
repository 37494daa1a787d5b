"""SOURCE: influence through training that is known by some checkpoints only."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog import curvature as curvatures
from sawlog._validate import non_negative_number, one_of, positive_integer
from sawlog.curvature import KINDS, Curvature, needs_factors
from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._compatibility import check_together
from sawlog.influence._fitted_curvature import check_statistics
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._scores import Scores
from sawlog.run_files._folders import measured_with

Rates = float | Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class TrainingSegment:
    """A part of training in which gradients and curvature change little.

    Args:
        checkpoints: the logs of the training examples at one or more checkpoints of this part,
            each as :func:`attribute` takes them.
        learning_rate: the mean learning rate, for all layers or as a dict by layer. For SGD with
            momentum ``b`` divide it by ``1 - b``. For Adam divide it by the mean of the square
            roots of the second moments of each layer.
        steps: the number of updates.
        weight_decay: that of the loss or the optimizer, added to the curvature.
        curvature: the curvature of this part, if it is not to be fitted to the checkpoints.
    """

    checkpoints: Sequence[Any]
    learning_rate: Rates
    steps: int
    weight_decay: float = 0.0
    curvature: Curvature | None = None


def source(
    segments: Sequence[TrainingSegment],
    queries: Any,
    *,
    curvature: str = "ekfac",
    names: Sequence[str] | None = None,
    top_k: int | None = None,
    sign: str = "positive",
    budget: int = BUDGET,
    weights: str = "same",
    **options: Any,
) -> Scores:
    """Compute SOURCE: influence through segments of training, from stored checkpoints.

    Within a segment, gradients ``g`` and the curvature ``H`` are taken as constant: means over its
    checkpoints. A change of the weights shrinks by ``exp(-r k H)`` in a segment of ``k`` steps with
    the learning rate ``r``, and an example of the segment moves them by
    ``H^-1 (1 - exp(-r k H)) g``. The score is the dot product of the query's gradient at the end of
    training with what is left at the end of all that an example did, summed over segments. So
    models that are not converged, and several stages of training, are accounted for; no damping is
    needed. Divided by the number of examples, a score estimates by how much the loss of the query
    would increase without the example, as for influence functions, which a single long segment
    equals.

    Args:
        segments: the parts of training, in order.
        queries: the queries, logged with the last checkpoint of the last segment.
        curvature: one of :data:`sawlog.curvature.KINDS`, fitted to all checkpoints of a segment.
            With ``"identity"``, which counts as no curvature, the result is TracIn's.
        names, top_k, sign, budget: as for :func:`attribute`.
        weights: ``"same"`` requires that the queries come from the weights of the last checkpoint,
            and that the statistics of each checkpoint come from its weights; ``"any"`` does not.
        options: those of :func:`attribute` that say how products are computed: ``executor``,
            ``device``, ``progress``, ``nonfinite``.

    Raises:
        ArgumentError: there are no segments or checkpoints, examples differ between checkpoints, a
            learning rate is missing, or as for :func:`attribute`.
        WeightsMismatchError: queries do not come from the last checkpoint.
    """
    if not segments or not all(len(each.checkpoints) for each in segments):
        raise ArgumentError(
            "SOURCE needs at least one segment, each with a checkpoint. Hint: "
            "[TrainingSegment([logs], learning_rate, steps)]."
        )
    one_of("curvature", curvature, KINDS)
    asked = Logs(queries, names=names)
    parts = [[Logs(each, names=names) for each in own.checkpoints] for own in segments]
    last = parts[-1][-1]
    for logs in itertools.chain(*parts):
        check_together(logs, asked, weights if logs is last else "any")
    ids = np.asarray(last.ids)
    layers = last.layers
    whole = asked.whole()
    vectors: Mapping[str, np.ndarray] = {n: whole.columns[n].rows() for n in layers}
    total = np.zeros((len(asked), len(ids)))
    for segment, own in zip(reversed(segments), reversed(parts), strict=True):
        rates = _rates(segment, layers)
        fitted = _fitted(segment, own, curvature, budget, weights)
        if fitted.joint is not None and "" not in rates.time:
            raise ArgumentError("A matrix over all layers needs one learning rate for all layers.")
        moved = fitted.transform_all(vectors, rates.moved)
        for logs in own:
            solved = Logs(moved, ids=asked.ids, meta=asked.meta)
            scores = attribute(
                logs, solved, curvature="identity", budget=budget, weights="any", **options
            )
            total += scores.values[:, _order(scores.ids, ids)] / len(own)
        vectors = fitted.transform_all(vectors, rates.left)
    found = [len(own) for own in parts]
    about = {"mode": "dot", "method": "source", "curvature": curvature, "checkpoints": found}
    joined = Scores(np.asarray(asked.ids), ids, total, about={**about, "unit": 1 / len(ids)})
    return joined if top_k is None else joined.top(top_k, sign)


@dataclasses.dataclass(frozen=True)
class _SegmentRates:
    """What a segment does along an eigenvector of its curvature."""

    time: Mapping[str, float]  # learning rate times steps; "" is all layers together
    decay: float

    def _eigenvalues(self, values: np.ndarray) -> np.ndarray:
        return values + self.decay

    def left(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the share of a change that is left at the end of the segment."""
        return np.exp(-self.time[name] * self._eigenvalues(values))

    def moved(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return how far a constant gradient moves the weights, ``(1 - exp(-t e)) / e``."""
        time, eigenvalues = self.time[name], self._eigenvalues(values)
        flat = eigenvalues * time < 1e-12
        usual = np.where(flat, 1.0, eigenvalues)
        return np.where(flat, time, -np.expm1(-time * usual) / usual)


def _rates(segment: TrainingSegment, layers: Sequence[str]) -> _SegmentRates:
    steps = positive_integer("steps", segment.steps)
    decay = non_negative_number("weight_decay", segment.weight_decay)
    given = segment.learning_rate
    if not isinstance(given, Mapping):
        rate = non_negative_number("learning_rate", given)
        return _SegmentRates(dict.fromkeys((*layers, ""), rate * steps), decay)
    missing = [name for name in layers if name not in given]
    if missing:
        raise ArgumentError(
            f"`learning_rate` has no number for the layers {', '.join(missing[:5])}. Hint: a "
            "number for each layer, or one number for all."
        )
    own = {name: non_negative_number("learning_rate", given[name]) * steps for name in layers}
    if len(set(own.values())) == 1:  # one matrix over all layers needs one learning rate
        own[""] = next(iter(own.values()))
    return _SegmentRates(own, decay)


class _MeanFactors:
    """The means of Kronecker factors over checkpoints."""

    def __init__(self, several: Sequence[Any]) -> None:
        self._several = several

    def kfac(self, block: str, /) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean covariances of both factors of a layer."""
        lefts, rights = zip(*(each.kfac(block) for each in self._several), strict=True)
        return np.mean(lefts, axis=0), np.mean(rights, axis=0)

    def ekfac(self, block: str, /) -> np.ndarray:
        """Return the mean corrected eigenvalues of a layer."""
        found: np.ndarray = np.mean([each.ekfac(block) for each in self._several], axis=0)
        return found


def _fitted(
    segment: TrainingSegment, several: Sequence[Logs], kind: str, budget: int, weights: str
) -> Curvature:
    """Return the curvature of a segment: that of all checkpoints together."""
    if segment.curvature is not None:
        return segment.curvature
    if kind == "identity":
        return curvatures.IDENTITY
    measured = None
    if needs_factors(kind) and all(logs.reader is not None for logs in several):
        found = [measured_with(logs.reader) for logs in several if logs.reader is not None]
        for logs, own in zip(several, found, strict=True):
            if weights == "same":
                check_statistics(logs, own)
        measured = None if any(own is None for own in found) else _MeanFactors(found)

    def scan() -> Iterator[Mapping[str, Any]]:
        return itertools.chain.from_iterable(logs.scan(budget) for logs in several)

    return curvatures.fit(kind, scan, measured, count=len(several[0]))


def _order(ids: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Return where the examples of the last checkpoint are among those of another."""
    place = {each: i for i, each in enumerate(ids.tolist())}
    missing = [each for each in wanted.tolist() if each not in place]
    if missing or len(place) != len(wanted):
        odd = missing or sorted(place.keys() - set(wanted.tolist()), key=str)
        raise ArgumentError(
            "All checkpoints must have the logs of the same examples; they differ in "
            f"{', '.join(map(repr, odd[:5]))}."
        )
    return [place[each] for each in wanted.tolist()]
