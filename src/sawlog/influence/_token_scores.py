"""Scores of single positions: which words of a training example it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.capture import ragged
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.factored import OneHot, Pair
from sawlog.influence._compatibility import check_together
from sawlog.influence._find_factors import stored_factors_of
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._stored_factors import StoredFactors

_FEW = 4


def token_scores(
    train: Any,
    queries: Any,
    ids: Any = None,
    *,
    curvature: str | Curvature = "ekfac",
    damping: Damping = None,
    names: Sequence[str] | None = None,
    budget: int = BUDGET,
    weights: str = "same",
) -> np.ndarray:
    """The scores of each position of some examples for queries, ``[queries, examples, positions]``.

    The gradients of linear layers, embeddings and biases are sums over positions, so their scores
    are. The store needs both factors: ``run.setup(log=["forward", "backward", "grad"])``, with
    compression or without. Over positions the scores add up to those of :func:`attribute` for the
    same layers; positions without a gradient, as those of padding, have 0, and so have those
    behind the end of examples that are shorter than others.

    Args:
        train: the path of a store of a run, a reader, or a :class:`Logs`.
        queries: what :func:`attribute` takes.
        ids: the examples; all that are stored by default.
        curvature, damping: see :func:`attribute`.
        names: which layers; all by default.
        budget: how many bytes of memory to use, about, beside the result.
        weights: see :func:`attribute`.

    Raises:
        ArgumentError: some layers cannot be split by position, names them and says why; or their
            stored factors do not make up their stored gradients.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ArgumentError(f"budget is a number of bytes from 1 on, got {budget!r}.")
    logs = Logs(train, names=names)
    splits = stored_factors_of(logs)
    asked = Logs(queries, names=logs.layers)
    check_together(logs, asked, weights)
    fitted = curvature_for(logs, curvature, budget=budget, weights=weights)
    wanted = _listed(logs.ids if ids is None else ids)
    splits = [_settled(logs, split, wanted[:_FEW]) for split in splits]
    positions = _positions(logs, splits[0], wanted)
    scores = np.zeros((len(asked), len(wanted), positions))
    longer = max(1, -(-positions // max(1, splits[0].positions)))
    most = max(1, budget // 2 // (8 * longer * max(split.elements for split in splits)))
    at = 0
    for batch in asked.batches(budget // 4):
        solved = fitted.solve_all(batch.rows(), damping)
        for start in range(0, len(wanted), most):
            block = scores[at : at + len(batch), start : start + most]
            _add(block, logs, splits, solved, wanted[start : start + most], check=at == 0)
        at += len(batch)
    return scores


def _positions(logs: Logs, split: StoredFactors, ids: Sequence[Any]) -> int:
    """How many positions the longest of the examples has."""
    assert logs.reader is not None
    name = split.calls[0].outputs
    if not ragged.is_ragged(logs.reader, name):
        return split.positions
    shape = logs.reader.schema.column(name).shape
    most = int(ragged.lengths_of(logs.reader, name, ids).max(initial=0))
    return most * (split.positions // max(1, shape[0]))


def _settled(logs: Logs, split: StoredFactors, ids: Sequence[Any]) -> StoredFactors:
    """The layer as some gradients say it was used: alone, or with others that share its weight."""
    assert logs.reader is not None
    if not split.others or not ids:
        return split
    for used in (split, split.shared()):
        rows = ragged.gather(logs.reader, ids, used.columns(logs.reader))
        if used.adds_up(used.pairs(rows), rows):
            return used
    return split


def _add(
    scores: np.ndarray,
    logs: Logs,
    splits: Sequence[StoredFactors],
    solved: Mapping[str, np.ndarray],
    ids: Sequence[Any],
    check: bool,
) -> None:
    """Add what each layer scores at each position of some examples; check what they are made of."""
    assert logs.reader is not None
    wrong = []
    for split in splits:
        rows = ragged.gather(logs.reader, ids, split.columns(logs.reader))
        pairs = split.pairs(rows)
        if pairs is None or (check and not split.adds_up(pairs, rows)):
            wrong.append(split.block.name)
            continue
        matrices = solved[split.block.name].reshape(-1, *split.block.stored)
        for own, matrix in zip(scores, matrices, strict=True):
            for pair in pairs:
                found = _at_positions(pair, matrix)
                own[:, : found.shape[1]] += found
    if wrong:
        right = [split.block.name for split in splits if split.block.name not in wrong]
        raise ArgumentError(
            "What is stored of inputs and output gradients does not make up the stored gradients "
            f"of the layers {', '.join(wrong)}: they leave out a padding index, they share weights "
            "with layers whose factors are not there, they compute something else than a linear "
            "layer, or the covariances behind a projection changed. Hint: leave them out by "
            f"names={right!r}."
        )


def _at_positions(pair: Pair, matrix: np.ndarray) -> np.ndarray:
    """``left^T matrix right`` at each position, ``[examples, positions]``."""
    right = pair.right.full()
    if isinstance(pair.left, OneHot):
        found = matrix[pair.left.ids] * right
    elif matrix.shape[0] < matrix.shape[1]:
        found = (right @ matrix.T) * pair.left.full()
    else:
        found = (pair.left.full() @ matrix) * right
    return np.asarray(found.sum(-1))


def _listed(ids: Any) -> list[Any]:
    if isinstance(ids, (int, str)):
        raise ArgumentError(f"ids are those of several examples, as [{ids!r}], got {ids!r}.")
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
