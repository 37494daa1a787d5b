"""Rows of blocks that no layer rule covers: their operations are differentiated by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sawlog.errors import CaptureError
from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._graph._example_sums import ExampleSums
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import pair_of, summed_matrix
from sawlog.torch._proof._measured_gradients import MeasuredGradients
from sawlog.torch._proof._plan import PlannedUse
from sawlog.torch._proof._row_check import RowCheck
from sawlog.torch._proof._use_layouts import UseLayouts


class UnequalSumsError(CaptureError):
    """Rows do not sum to the gradient of the batch."""


def operation_rows(
    blocks: Sequence[Block],
    watched: Watched,
    uses: Mapping[str, Sequence[WeightUse]],
    layouts: UseLayouts,
    measured: MeasuredGradients,
    batch: int,
    check: RowCheck,
) -> tuple[dict[str, list[Pair]], tuple[PlannedUse, ...]]:
    """Return the gradients of blocks, and the uses of weights they were taken at.

    Args:
        blocks: those that no rule covers.
        watched: their parameters.
        uses: the uses of each parameter, by name.
        layouts: finds the examples in the outputs of operations.
        measured: the gradients of operations.
        batch: the number of examples.
        check: proves the rows.

    Raises:
        CaptureError: examples are mixed.
        UnequalSumsError: rows do not sum to the gradient of the batch.
    """
    wanted: dict[tuple[int, int], tuple[WeightUse, list[str]]] = {}
    for block in blocks:
        for name in block.parameters:
            for use in uses[name]:
                wanted.setdefault((use.number, use.place), (use, []))[1].append(name)
    planned, sums = [], ExampleSums(watched.parameters, batch)
    for use, names in wanted.values():
        if use.number not in measured.of_nodes:
            continue  # the loss does not reach it
        where = layouts.of(use, names)
        planned.append(PlannedUse(use.number, use.place, where, tuple(names)))
        sums.add(use, measured.of_nodes[use.number][0], where, names)
    found: dict[str, list[Pair]] = {}
    for block in blocks:
        matrix = summed_matrix(block, sums, watched.parameters)
        found[block.name] = [] if matrix is None else [pair_of(matrix)]
        if not check.holds(block, found[block.name]):
            raise UnequalSumsError(
                f"The gradients of the examples for {block.name!r} do not add up to that of "
                "the batch, so they are not logged. Probably a hook changes gradients, or the "
                "backward pass draws random numbers. Hint: leave it out by names=."
            )
    return found, tuple(planned)


def single_rows(block: Block, watched: Watched, measured: MeasuredGradients) -> list[Pair]:
    """Return the gradient of the only example, which is that of the batch."""
    factor = float(measured.codes.factors[0][0])
    sums = ExampleSums(watched.parameters, 1)
    for name in block.parameters:
        grad = measured.totals[0][name]
        if grad is not None:
            sums.add_rows(name, (grad / factor)[None])
    matrix = summed_matrix(block, sums, watched.parameters)
    return [] if matrix is None else [pair_of(matrix)]
