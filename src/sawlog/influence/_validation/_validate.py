"""``validate``: compare scores with what retraining on subsets of the data does."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog._array_device import to_numpy
from sawlog._validate import fraction, integer, positive_integer, refuse
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores
from sawlog.influence._validation._bank import Bank, BankModels, StrPath
from sawlog.influence._validation._groups import ExampleGroup, Groups, changes_of, groups_of
from sawlog.influence._validation._rank_correlation import attainable, mean_correlation
from sawlog.influence._validation._subset import Subset, number_left_out, random_subsets
from sawlog.influence._validation._trainer import Measure, Train, Trainer
from sawlog.influence._validation._validation import Validation

LEAST_SUBSETS = 5
BLOCK = 1 << 16  # examples


def validate(
    scores: Any,
    train: Train | None = None,
    *,
    measure: Measure | None = None,
    bank: Bank | StrPath | None = None,
    drop: float = 0.5,
    subsets: int = 100,
    seeds: int = 5,
    together: int = 1,
    better: str | None = None,
    groups: Groups = 2,
    share: float = 0.05,
    ids: Any = None,
    queries: Any = None,
    settings: Mapping[str, Any] | None = None,
    draw: int = 0,
    confidence: float = 0.95,
    progress: bool = False,
) -> Scores:
    """Compare scores with what retraining on random subsets of the data does.

    The linear datamodeling score (LDS) is the rank correlation, over subsets, of the sum of the
    scores of a subset with the metric of a query after training on it; the mean over queries. In
    addition, the best and the worst examples are left out, and the measured change is compared
    with the predicted one. Scores are positive for examples that help.

    Args:
        scores: :class:`Scores` of all examples, or an array ``[queries, examples]`` from elsewhere.
        train: ``train(ids, seed)`` trains a model on these examples and returns the metric of each
            query, in the order of ``scores.queries``, or as a dict by query; or it returns a model
            for ``measure``. Without it, only models in the bank are used.
        measure: ``measure(model)`` returns the metric of each query.
        bank: a folder for the metrics of retrained models, which further calls reuse and which
            several processes may fill at once; or a :class:`Bank`. By default nothing is kept.
        drop: the share of examples that each random subset leaves out.
        subsets: the number of random subsets.
        seeds: the number of models to train on each.
        together: how many models one call of ``train`` trains. If it is more than 1, ``train`` gets
            ids ``[together, examples]`` and seeds ``[together]`` and returns metrics
            ``[together, queries]``, as ``jax.jit(jax.vmap(train))`` does.
        better: whether a ``"lower"`` or a ``"higher"`` metric is better; ``"lower"``, as for a
            loss, unless the bank says otherwise.
        groups: for how many queries to leave out the best and the worst examples, besides those
            for the sum over all queries; or a dict of groups of ids; or None for no groups.
        share: the share of examples in a group of the best or the worst.
        ids, queries: the ids of an array; by default those of the bank, or indices.
        settings: JSON values that the metrics depend on, saved with the bank and compared.
        draw: the seed of the random subsets.
        confidence: the confidence level of the interval of the LDS.
        progress: whether to show a progress bar.

    Returns:
        The scores with :attr:`Scores.validation`, a :class:`Validation`, which is saved with them.

    Raises:
        ArgumentError: scores are a top k or not finite; the bank is one of other examples, queries
            or settings, or has fewer than 5 subsets and ``train`` is missing; or ``train`` returns
            something else than one finite number for each query.
    """
    _check_options(train, measure, bank, subsets, seeds, together, drop, share, confidence)
    given = scores
    if not isinstance(scores, Scores):
        if isinstance(bank, (str, Path)) and (ids is None or queries is None):
            bank = _existing(bank)
        given = scores_of_array(scores, ids, queries, bank if isinstance(bank, Bank) else None)
    _check_scores(given)
    with tempfile.TemporaryDirectory(prefix="sawlog-bank-") as folder:
        if isinstance(bank, Bank):
            own = bank
            own.check_settings(better, settings)
        else:
            place = Path(folder) / "bank" if bank is None else Path(bank)
            known = {} if train is None else {"ids": given.ids, "queries": given.queries}
            own = Bank(place, **known, better=better, settings=settings)
        ordered = in_order_of(own, given)
        chosen = groups_of(ordered, groups, share)
        wanted: list[Subset] | None = None
        if train is not None:
            wanted = random_subsets(len(own.ids), drop, subsets, draw)
            trainer = Trainer(train, measure, together, own.ids, given.queries)
            left_out = [group.subset for group in chosen]
            left_out += [Subset(np.zeros(len(own.ids), bool))] if chosen else []
            own.fill([*left_out, *wanted], seeds, trainer, progress=progress)
        names = None if wanted is None else {each.name for each in wanted}
        found = validation_on(ordered, own, names, chosen, drop, confidence)
    return dataclasses.replace(given, validation=found)


def _existing(path: StrPath) -> Bank | StrPath:
    return Bank(path) if (Path(path) / "store.json").exists() else path


def _check_options(
    train: Any,
    measure: Any,
    bank: Any,
    subsets: Any,
    seeds: Any,
    together: Any,
    drop: Any,
    share: Any,
    confidence: Any,
) -> None:
    if train is None and bank is None:
        raise ArgumentError(
            "There is nothing to compare the scores with. Hint: validate(scores, train) retrains "
            "models; validate(scores, bank=PATH) uses those of an earlier call."
        )
    if train is None and measure is not None:
        raise ArgumentError(
            "`measure` measures the models that `train` returns, and nothing is trained. Hint: "
            "validate(scores, train, measure=measure)."
        )
    integer("subsets", subsets, least=LEAST_SUBSETS)
    positive_integer("seeds", seeds)
    positive_integer("together", together)
    for name, value in (("drop", drop), ("share", share)):
        fraction(name, value)
    if not 0 < fraction("confidence", confidence) < 1:
        refuse("confidence", "a number between 0 and 1", confidence)


def scores_of_array(values: Any, ids: Any, queries: Any, bank: Bank | None) -> Scores:
    """Return scores for an array ``[queries, examples]`` from elsewhere.

    Raises:
        ArgumentError: it is not a matrix of real numbers, or there are other numbers of ids.
    """
    array = to_numpy(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ArgumentError(
            "Scores from elsewhere are an array [queries, examples] of real numbers; got "
            f"{array.dtype} {list(array.shape)}."
        )
    named = []
    for axis, (what, own) in enumerate((("queries", queries), ("ids", ids))):
        known = None if bank is None else getattr(bank, what)
        if own is None:
            own = range(array.shape[axis]) if known is None else known
        found = np.asarray(own)
        if len(found) != array.shape[axis]:
            raise ArgumentError(
                f"The array has {array.shape[axis]} {'rows' if what == 'queries' else 'columns'}, "
                f"but there are {len(found)} {what}."
            )
        named.append(found)
    return Scores(named[0], named[1], array.astype(np.float64), about={"unit": None})


def _check_scores(scores: Scores) -> None:
    if not scores.whole:
        raise ArgumentError(
            "Validation needs the scores of all examples, not the top k of each query. Hint: "
            "attribute(..., top_k=None)."
        )
    for what, ids in (("examples", scores.ids), ("queries", scores.queries)):
        if len(set(ids.tolist())) < len(ids):
            raise ArgumentError(
                f"Some {what} have the same id, so they cannot be told apart. Hint: give each its "
                "own id."
            )
    if not np.isfinite(scores.values).all():
        raise ArgumentError("Some scores are infinite or NaN. Hint: leave those examples out.")
    if scores.values.size and not np.ptp(scores.values, axis=1).any():
        raise ArgumentError(
            "All examples have the same score, so that the scores do not rank them, and a rank "
            "correlation does not exist."
        )


def in_order_of(bank: Bank, scores: Scores) -> Scores:
    """Return scores with the examples in the order of the bank; queries keep their own order."""
    bank.check(scores.ids, scores.queries)
    place = {each: i for i, each in enumerate(scores.ids.tolist())}
    columns = [place[each] for each in bank.ids.tolist()]
    return Scores(scores.queries, bank.ids, scores.values[:, columns], about=scores.about)


def validation_on(
    scores: Scores,
    bank: Bank,
    wanted: set[str] | None,
    groups: Sequence[ExampleGroup],
    drop: float,
    confidence: float,
) -> Validation:
    """Compare scores, in the order of the bank, with its models on some or all random subsets.

    Args:
        scores: scores of all examples of the bank.
        bank: the models.
        wanted: the names of the subsets; None for all random ones.
        groups: further groups of examples to compare.
        drop: the share of examples that the subsets leave out.
        confidence: the confidence level of the interval.
    """
    models = bank.models()
    rows = {each: i for i, each in enumerate(bank.queries.tolist())}
    columns = [rows[each] for each in scores.queries.tolist()]
    models = dataclasses.replace(models, answers=models.answers[:, columns])
    size = number_left_out(len(bank.ids), drop)
    chosen = _random(models, size) if wanted is None else wanted
    places = [own for name, own in models.by_subset().items() if name in chosen]
    if len(places) < LEAST_SUBSETS:
        raise ArgumentError(_too_few(bank, models, len(places), drop))
    sign = -1.0 if bank.better == "lower" else 1.0
    left_out = np.stack([models.subsets[own[0]].left_out for own in places])
    predicted = -_sums(left_out, scores.values)
    measured = np.stack([sign * models.answers[own].mean(0) for own in places])
    if not np.ptp(measured, axis=0).any():
        raise ArgumentError(
            f"The metrics are the same for all {len(places)} subsets, so that a rank correlation "
            "does not exist. Hint: does `train(ids, seed)` use `ids`, and return the metrics of "
            "the model that it trained?"
        )
    found = mean_correlation(predicted, measured, confidence)
    seeds = min(map(len, places))
    each = np.stack([models.answers[own[:seeds]] for own in places], 1)
    return Validation(
        lds=found.mean,
        low=found.low,
        high=found.high,
        confidence=float(confidence),
        attainable=attainable(each),
        per_query=found.per_query,
        subsets=len(places),
        drop=float(drop),
        models=sum(map(len, places)),
        groups=changes_of(groups, scores, models, bank.better),
    )


def _sums(left_out: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the sum of the scores of the examples that each subset leaves out, ``[m, q]``."""
    total = np.zeros((len(left_out), len(values)))
    for start in range(0, left_out.shape[1], BLOCK):
        own = slice(start, start + BLOCK)
        total += left_out[:, own].astype(np.float64) @ values[:, own].T
    return total


def _random(models: BankModels, size: int) -> set[str]:
    """Return the names of the random subsets of a size."""
    return {each.name for each in models.subsets if each.number >= 0 and each.size == size}


def _too_few(bank: Bank, models: BankModels, count: int, drop: float) -> str:
    shares = sorted({each.size / len(bank.ids) for each in models.subsets if each.number >= 0})
    others = f" It has subsets with drop={', '.join(f'{s:g}' for s in shares)}." if shares else ""
    return (
        f"The bank at {bank.path} has {count} random subsets without {drop:.0%} of the examples; "
        f"at least {LEAST_SUBSETS} are needed.{others} Hint: validate(scores, train, bank=PATH) "
        "trains more models."
    )
