"""Scores of single positions: which tokens of a training example influence a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._validate import positive_integer
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.factored import OneHot, Pair
from sawlog.influence._compatibility import check_together
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._rows import id_list
from sawlog.influence._tokens._find_factors import find_stored_factors
from sawlog.influence._tokens._stored_factors import StoredFactors
from sawlog.run_files import ragged

_SAMPLE = 4  # examples that decide whether a weight is shared


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
    """Score each position of some examples for queries.

    The gradients of linear layers, embeddings and biases are sums over positions, and so are their
    scores. The store must contain both factors, compressed or not:
    ``run.setup(log=["forward", "backward", "grad"])``. Scores sum over positions to those of
    :func:`attribute` for the same layers. Positions without a gradient, such as padding, and
    positions beyond the end of shorter examples have the score 0.

    Args:
        train: the path of the store of a run, a reader, or a :class:`Logs`.
        queries: what :func:`attribute` takes.
        ids: the examples to score; all stored examples by default.
        curvature, damping: see :func:`attribute`.
        names: the layers to use; all by default.
        budget: approximate bytes of memory to use besides the result.
        weights: see :func:`attribute`.

    Returns:
        Scores ``[queries, examples, positions]`` in float64.

    Raises:
        ArgumentError: some layers cannot be split by position (lists them and the reasons), or
            their stored factors do not multiply to their stored gradients.
    """
    positive_integer("budget", budget)
    logs = Logs(train, names=names)
    layers = find_stored_factors(logs)
    asked = Logs(queries, names=logs.layers)
    check_together(logs, asked, weights)
    fitted = curvature_for(logs, curvature, budget=budget, weights=weights)
    wanted = _checked_ids(logs.ids if ids is None else ids)
    layers = [_with_sharing(logs, layer, wanted[:_SAMPLE]) for layer in layers]
    positions = _most_positions(logs, layers[0], wanted)
    scores = np.zeros((len(asked), len(wanted), positions))
    longer = max(1, -(-positions // max(1, layers[0].positions)))
    most = max(1, budget // 2 // (8 * longer * max(layer.elements for layer in layers)))
    at = 0
    for batch in asked.batches(budget // 4):
        solved = fitted.solve_all(batch.rows(), damping)
        for start in range(0, len(wanted), most):
            block = scores[at : at + len(batch), start : start + most]
            _add(block, logs, layers, solved, wanted[start : start + most], check=at == 0)
        at += len(batch)
    return scores


def _most_positions(logs: Logs, layer: StoredFactors, ids: Sequence[Any]) -> int:
    """Return the number of positions of the longest example."""
    assert logs.reader is not None
    name = layer.calls[0].outputs
    if not ragged.is_ragged(logs.reader, name):
        return layer.positions
    shape = logs.reader.schema.column(name).shape
    most = int(ragged.lengths_of(logs.reader, name, ids).max(initial=0))
    return most * (layer.positions // max(1, shape[0]))


def _with_sharing(logs: Logs, layer: StoredFactors, ids: Sequence[Any]) -> StoredFactors:
    """Decide by the gradients of some examples whether other layers share the weight."""
    assert logs.reader is not None
    if not layer.others or not ids:
        return layer
    for used in (layer, layer.shared()):
        rows = ragged.gather(logs.reader, ids, used.columns(logs.reader))
        if used.adds_up(used.pairs(rows), rows):
            return used
    return layer


def _add(
    scores: np.ndarray,
    logs: Logs,
    layers: Sequence[StoredFactors],
    solved: Mapping[str, np.ndarray],
    ids: Sequence[Any],
    check: bool,
) -> None:
    """Add the scores of each layer at each position; check that factors multiply to gradients."""
    assert logs.reader is not None
    wrong = []
    for layer in layers:
        rows = ragged.gather(logs.reader, ids, layer.columns(logs.reader))
        pairs = layer.pairs(rows)
        if pairs is None or (check and not layer.adds_up(pairs, rows)):
            wrong.append(layer.block.name)
            continue
        matrices = solved[layer.block.name].reshape(-1, *layer.block.stored)
        for own, matrix in zip(scores, matrices, strict=True):
            for pair in pairs:
                found = _at_positions(pair, matrix)
                own[:, : found.shape[1]] += found
    if wrong:
        right = [layer.block.name for layer in layers if layer.block.name not in wrong]
        raise ArgumentError(
            "The stored inputs and output gradients do not multiply to the stored gradients of the "
            f"layers {', '.join(wrong)}: they ignore a padding index, share weights with layers "
            "whose factors are not stored, are not linear, or the covariances of a projection "
            f"changed. Hint: leave them out by names={right!r}."
        )


def _at_positions(pair: Pair, matrix: np.ndarray) -> np.ndarray:
    """Return ``left^T matrix right`` at each position, ``[examples, positions]``."""
    right = pair.right.full()
    if isinstance(pair.left, OneHot):
        found = matrix[pair.left.ids] * right
    elif matrix.shape[0] < matrix.shape[1]:
        found = (right @ matrix.T) * pair.left.full()
    else:
        found = (pair.left.full() @ matrix) * right
    return np.asarray(found.sum(-1))


def _checked_ids(ids: Any) -> list[Any]:
    if isinstance(ids, (int, str)):
        raise ArgumentError(f"`ids` must be a sequence of ids, such as [{ids!r}]; got {ids!r}.")
    return id_list(ids)
