"""Capture the batches of a pass: rows, forward and backward logs, statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.capture._backend import BatchRequest
from sawlog.capture._pass_matrices import PassMatrices
from sawlog.errors import ArgumentError, CaptureError
from sawlog.factored import Dense, OneHot, Pair
from sawlog.jax._capture.captured import Captured
from sawlog.jax._capture_run import statistics
from sawlog.jax._core.arrays import unsharded
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import encode
from sawlog.run_files._log_names import LogName, kind_of
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics

if TYPE_CHECKING:
    from sawlog.jax._capture_run.backend import JaxBackend


class JaxCapturer:
    """Captures the batches of one pass.

    Args:
        backend: The watched loss function.
        options: What to log.
        blocks: The blocks with their ranks.
        matrices: The projection and eigenbasis of each block.
    """

    def __init__(
        self,
        backend: JaxBackend,
        options: Options,
        blocks: Sequence[Block],
        matrices: PassMatrices,
    ) -> None:
        self.options, self.blocks, self.matrices = options, tuple(blocks), matrices
        self._backend = backend
        wanted = {*options.statistic}
        if "forward" in options.log and options.forward == "output":
            raise ArgumentError(
                'forward="output" is not available for JAX functions, whose layers are the uses of '
                'parameters. Hint: forward="input" logs the inputs of each use.'
            )
        self.stores_rows = "grad" in options.log and (
            "grad" in options.saved or bool(wanted - {"kfac", "ekfac"})
        )
        self._what = (
            *(("grad",) if self.stores_rows or "ekfac" in wanted else ()),
            *(("pairs",) if {"forward", "backward"} & {*options.log} or "kfac" in wanted else ()),
        )
        self._projection = {
            name: tuple(None if side is None else jnp.asarray(side) for side in sides)
            for name, sides in matrices.projections.items()
        }

    def batch(self, request: BatchRequest) -> JaxBatch:
        """Prepare the capture of one batch."""
        if request.scaler is not None or request.views != 1:
            raise ArgumentError("`scaler` and `views` are options for PyTorch models.")
        return JaxBatch(self, request)

    def capture(self, loss_fn: Callable[..., Any], params: Any, batch: Any) -> Captured:
        """Compute what the options need of a batch."""
        make = self._backend.capture_of(loss_fn, self.options.reduction, params, batch)
        return make(self._what, self._projection)(params, batch)


class JaxBatch:
    """One batch, and its logs after :meth:`run`."""

    def __init__(self, capturer: JaxCapturer, request: BatchRequest) -> None:
        self._capturer, self._request = capturer, request
        self._captured: Captured | None = None
        self._mask = _mask(request)

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing: :meth:`run` computes everything."""
        return contextlib.nullcontext()

    def run(self, loss_fn: Callable[..., Any], params: Any, batch: Any) -> Any:
        """Capture a batch, and return what the loss function returned for it."""
        if self._captured is not None:
            raise CaptureError("Two batches were recorded for the same ids.")
        found = self._capturer.capture(loss_fn, params, batch)
        self._captured = found
        return found.losses

    # -- logs -------------------------------------------------------------------------------------

    def rows(self, examples: int) -> dict[str, np.ndarray]:
        """Return all logs by name, for the examples to log."""
        captured, options = self._done(), self._capturer.options
        logs: dict[str, np.ndarray] = {}
        for block in self._capturer.blocks:
            pairs = captured.pairs.get(block.name, ())
            if "forward" in options.log:
                self._add_calls(logs, "forward", block, pairs)
            if "backward" in options.log:
                self._add_calls(logs, "backward", block, tuple(reversed(pairs)))
        if self._capturer.stores_rows:
            for block in self._capturer.blocks:
                logs[str(LogName("grad", block.name))] = self._gradients(block)
        sizes = {len(rows) for rows in logs.values()} - {examples}
        if sizes:
            raise ArgumentError(
                f"The batch has {sizes.pop()} examples, and {self._request.size} ids were given."
            )
        return logs

    def _add_calls(
        self, logs: dict[str, np.ndarray], kind: str, block: Block, pairs: Sequence[Pair]
    ) -> None:
        """Add the inputs or the output gradients of all uses of a matrix."""
        if len(block.shape) > 2 or block.cols == 1:
            return
        for call, pair in enumerate(pairs, 1):
            inputs, outputs = pair.left, pair.right
            if block.inputs == "right":
                inputs, outputs = outputs, inputs
            if isinstance(outputs, OneHot):  # gradients of whole matrices, without factors
                return
            rows = _array(inputs if kind == "forward" else outputs)
            logs[str(LogName(kind, block.name, call))] = self._chosen(_without_position(rows))

    def _gradients(self, block: Block) -> np.ndarray:
        return self._chosen(np.asarray(self._done().grads[block.name]))

    def _chosen(self, rows: np.ndarray) -> np.ndarray:
        return rows if self._request.todo is None else rows[self._request.todo]

    def _done(self) -> Captured:
        if self._captured is None:
            raise CaptureError(
                "No batch was recorded inside `with run(...)`. Hint: a JAX function has no hooks; "
                "call run.record(ids, params, batch) instead of the `with`."
            )
        return self._captured

    # -- statistics and columns -------------------------------------------------------------------

    def add_statistics(self, sums: RunStatistics, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics that the options select."""
        del examples
        capturer = self._capturer
        options, matrices = capturer.options, capturer.matrices
        if "kfac" in options.statistic:
            for block in capturer.blocks:
                for pair in self._done().pairs[block.name]:
                    sides = matrices.projections[block.name]
                    own = self._chosen_pair(pair)
                    statistics.add_moments(sums, block, own, sides, self._mask, options)
        statistics.add_rows(sums, logs, options)
        if "ekfac" in options.statistic:
            for block in capturer.blocks:
                basis = matrices.bases[block.name]
                statistics.add_squares(sums, block, self._gradients(block), basis)

    def _chosen_pair(self, pair: Pair) -> Pair:
        todo, pair = self._request.todo, jax.tree.map(unsharded, pair)
        if todo is None:
            return pair
        places = np.flatnonzero(todo)
        chosen: Pair = jax.tree.map(lambda x: x[places], pair)
        return chosen

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the logs to store, encoded in the dtype of the options."""
        options, columns = self._capturer.options, {}
        for name, rows in logs.items():
            if kind_of(name) in options.saved:
                columns.update(encode(name, rows, options.dtype))
        return columns


def _array(factor: Dense | OneHot) -> np.ndarray:
    """Return a factor as it is logged: features without the constant, or the ids of rows."""
    if isinstance(factor, OneHot):
        return np.asarray(factor.ids, np.float32)
    return np.asarray(factor.array)


def _without_position(rows: np.ndarray) -> np.ndarray:
    """Return ``[examples, features]`` of ``[examples, 1, features]``."""
    return rows[:, 0] if rows.ndim > 1 and rows.shape[1] == 1 else rows


def _mask(request: BatchRequest) -> np.ndarray | None:
    if request.mask is None:
        return None
    mask = np.asarray(request.mask)
    if mask.ndim != 2 or mask.shape[0] != request.size:
        raise ArgumentError(
            f"`mask` must have the shape [batch, positions], here [{request.size}, ...]; got "
            f"{list(mask.shape)}."
        )
    mask = mask != 0
    return mask if request.todo is None else mask[request.todo]
