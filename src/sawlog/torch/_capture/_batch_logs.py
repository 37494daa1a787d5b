"""The logs of one batch: rows of blocks, statistics, forward and backward tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._log_names import LogName
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._hooks._hooks import LayerCall
from sawlog.torch._loss._terms import Scale
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import pairs_of
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._pairs import scaled
from sawlog.torch._rows._row_builder import RowBuilder
from sawlog.torch._rows._tensor_logs import TensorLogs


class PairMap(Protocol):
    """A linear map of the gradients of blocks, such as what an optimizer applies to them."""

    def apply(self, block: Block, pair: Pair) -> Pair:
        """Return the gradients of one use of a block after the map."""


class BatchLogs:
    """Collects what the gradients of a batch are turned into.

    ``factor`` is the scale of a ``GradScaler``, by which gradients are divided.

    Args:
        watched: the layers.
        options: what to log.
        batch: the batch.
        rows: builds the rows of blocks.
        statistics: computes the statistics of the batch.
    """

    def __init__(
        self,
        watched: Watched,
        options: Options,
        batch: BatchSpec,
        rows: RowBuilder,
        statistics: BatchStatistics,
    ) -> None:
        self._blocks, self._batch = watched.blocks, batch
        self.row_builder, self._statistics = rows, statistics
        self.tensors = TensorLogs(batch, options.forward)
        self.wants = frozenset(options.log)
        self.factor = 1.0
        self.correction: PairMap | None = None
        self.asked: frozenset[str] | None = None
        """The blocks whose gradients the backward pass has to give; None is all."""
        self.gradients = 0
        """The number of gradients that were seen."""
        self._observer: Callable[[Block, Pair], None] | None = None

    @property
    def needs_gradients(self) -> bool:
        """Whether anything is logged that a backward pass computes."""
        return bool(self.wants & {"grad", "backward"})

    def add_call(
        self,
        call: LayerCall,
        grad: Tensor,
        layout: ExampleLayout | None,
        scale: Scale,
        by_rule: frozenset[str],
    ) -> None:
        """Add the gradient of the output of a layer call.

        Args:
            call: the call.
            grad: the gradient.
            layout: where the examples are in it; None if unknown.
            scale: the factor for the gradient of each example.
            by_rule: the names of the blocks whose rows the layer rule gives.
        """
        self.gradients += 1
        self.tensors.add_layout(call, layout)
        if "backward" in self.wants:
            self.tensors.add_backward(call, grad, layout, scale / self.factor)
        shares = [share for share in call.unit.shares if share.block.name in by_rule]
        if "grad" in self.wants and shares:
            assert layout is not None
            pairs = pairs_of(call, grad, self._batch.size, layout)
            for share in shares:
                pair = share.of(pairs[share.part.name])
                self.add_pair(share.block, pair, scale, share.inputs)

    def add_pair(self, block: Block, pair: Pair, scale: Scale, inputs: str) -> None:
        """Add the gradients of one use of a block to its rows and statistics.

        ``inputs`` is the side of the inputs in this use: a weight that an embedding and a linear
        layer share is used from both sides.
        """
        if self.asked is not None and block.name not in self.asked:
            return
        if self._observer is None:
            own = self._batch.chosen_pair(pair)
            if self.correction is not None:
                own = self.correction.apply(block, own)
            small = self.row_builder.projected(block, own)
        else:  # reentrant checkpointing, which takes no correction
            whole = self.row_builder.projected(block, pair)
            self._observer(block, whole)
            small = self._batch.chosen_pair(whole)
        if self.row_builder.needed:
            self.row_builder.add(block, scaled(small, scale, self.factor, self._batch))
        self._statistics.add(block, small, scale, self.factor, inputs, pair.is_whole)

    @contextlib.contextmanager
    def observed(self, observer: Callable[[Block, Pair], None]) -> Iterator[None]:
        """Pass the projected gradients of all examples to ``observer`` inside the ``with``."""
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    def rows(self, examples: int) -> dict[str, Any]:
        """Return all logs of the batch by name, for the ``examples`` to log.

        Raises:
            CaptureError: no gradient was seen.
        """
        if self.needs_gradients and not self.gradients:
            raise CaptureError(
                "No gradient of a watched layer was seen in this batch. Hint: run the forward "
                "pass and loss.backward() inside `with run(data_id=ids):`, not under "
                "torch.no_grad()."
            )
        logs: dict[str, Any] = dict(self.tensors.finish())
        if "grad" in self.wants and self.row_builder.needed:
            for block in self._blocks:
                logs[str(LogName("grad", block.name))] = self.row_builder.rows(block, examples)
        return logs

    def add_statistics(self, sums: RunStatistics, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics of a pass."""
        self._statistics.add_to(sums, logs, self._blocks, examples)

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the logs to store, as encoded columns."""
        return self.row_builder.columns(logs)
