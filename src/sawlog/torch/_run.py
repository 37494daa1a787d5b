"""``Run``: a capture of a PyTorch model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog._validate import one_of
from sawlog.capture._run import CaptureRun
from sawlog.errors import CaptureError
from sawlog.run_files._blocks import Report
from sawlog.torch._backend import TorchBackend
from sawlog.torch._capture._batch_capture import BatchCapture
from sawlog.torch._capture._empty_batch import empty_batch, refuse_examples
from sawlog.torch._model._search import Names
from sawlog.torch._processes import TorchProcessGroup, process_group
from sawlog.torch._sampled_labels import Distribution, drawn_labels


class Run(CaptureRun):
    """Logs per-example gradients and activations of a PyTorch model.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        exists: what to do if the run exists: ``"append"`` continues it and skips the examples that
            it has; ``"replace"`` deletes it; ``"error"`` raises.
        config: initial options, as for :meth:`setup`; None takes those that an existing run was
            last set up with.
        sinks: where :meth:`log` writes; by default a store in the folder ``metrics`` of the run.
        distributed: whether the processes of a ``torch.distributed`` job share the run; False is
            for a run that only one of them has.
        timeout: seconds to wait for a process of the job that shows no sign of life.

    >>> import tempfile, torch, sawlog
    >>> model = torch.nn.Linear(3, 2)
    >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
    >>> run.setup({"log": "grad", "save": "grad", "statistic": "kfac"})
    >>> report = run.watch(model, quiet=True)
    >>> with run(data_id=["a", "b"]):
    ...     model(torch.ones(2, 3)).sum().backward()
    >>> run.finalize()
    >>> sawlog.store.open(run.store_path).gather(["b"])["grad/weight"].shape
    (1, 2, 4)
    """

    _is_empty = False
    """Whether the batch that runs now has no ids."""

    def watch(
        self,
        model: nn.Module,
        names: Names = None,
        types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
        *,
        uncovered: str = "func",
        batch_axis: int = 0,
        quiet: bool = False,
        name_filter: str | Sequence[str] | None = None,
        type_filter: Sequence[type[nn.Module]] | None = None,
    ) -> Report:
        """Choose the layers of a model to log; shows a table of what they take.

        Args:
            model: the model, which is not changed: hooks are installed only inside
                ``with run(...)``.
            names: patterns of names of modules or parameters, such as ``["encoder.*"]``, or a
                function of a name.
            types: types of modules, such as ``[nn.Linear]``.
            uncovered: what to do about parameters that no layer rule covers: ``"func"``
                differentiates the operations that use them, ``"skip"`` leaves them out, and
                ``"error"`` raises.
            batch_axis: 1 for models whose tensors have the sequence before the examples.
            quiet: whether to hide the table.
            name_filter, type_filter: LogIX's arguments: substrings of names, and types.

        Raises:
            ArgumentError: no parameter matches, or a pass is running.
            UncoveredError: ``uncovered="error"``, and no layer rule covers some parameters; it
                names all of them. Or a parameter is complex.
        """
        self._check_idle("watch")
        if name_filter is not None:
            parts = [name_filter] if isinstance(name_filter, str) else name_filter
            names = [f"*{part}*" for part in parts]
        types = types if type_filter is None else type_filter
        one_of("batch_axis", batch_axis, (0, 1))
        return self._watch(TorchBackend(model, names, types, uncovered, batch_axis), quiet)

    def declare_loss(self, loss: Tensor) -> Tensor:
        """Say which tensor is the loss of the batch, and return it.

        What is done with it afterwards, as a division by the number of micro-batches or the scale
        of a ``GradScaler``, is then no part of the gradients of the examples. Outside of
        ``with run(...)`` nothing happens.

        Raises:
            CaptureError: when gradients are computed of something else than multiples of the loss.
        """
        if isinstance(self._batch, BatchCapture):
            self._batch.declare_loss(loss)
        return loss

    def declare_items(
        self, counts: Any, total: float | Tensor | None = None, times: float = 1.0
    ) -> None:
        """Say how many items, such as tokens, of each example the loss counts.

        A loss that is a sum over items divided by ``total`` is then read as a mean over the items
        of each example. Outside of ``with run(...)`` nothing happens.

        Args:
            counts: the number of items of each example, ``[batch]``.
            total: by what the loss divides: the number of items of several micro-batches or
                processes; by default the sum of ``counts``.
            times: by what the loss is multiplied besides, such as the number of processes.
        """
        if isinstance(self._batch, BatchCapture):
            self._batch.declare_items(counts, total, times)

    def labels(
        self,
        outputs: Tensor,
        labels: Tensor,
        *,
        distribution: Distribution = "categorical",
        axis: int | None = None,
        shift: int = 0,
        ignore_index: int = -100,
        std: float = math.sqrt(0.5),
    ) -> Tensor:
        """Return the labels to compute the loss with.

        These are the labels given, except while ``fisher="true"`` measures K-FAC or EK-FAC: then
        they are drawn from the distribution that the outputs describe. The labels drawn for an
        example depend on ``fisher_seed`` and on its id alone.

        Args:
            outputs: the outputs of the model, such as logits.
            labels: the labels of the data.
            distribution: ``"categorical"`` for ``cross_entropy``; ``"bernoulli"`` for
                ``binary_cross_entropy_with_logits``; ``"normal"`` for a sum of squared
                differences; or a function of outputs and a ``torch.Generator`` that returns
                labels.
            axis: the axis of the classes; by default the last, or the one that ``cross_entropy``
                takes.
            shift: by how many positions labels are behind outputs: 1 for a causal language model
                that shifts its labels itself.
            ignore_index: the label of positions that the loss ignores; these stay.
            std: the standard deviation of ``"normal"``: a loss ``(outputs - labels) ** 2`` is the
                negative log-likelihood for the root of one half.

        Raises:
            ArgumentError: the shapes do not fit.

        >>> import tempfile, torch, sawlog
        >>> import torch.nn.functional as F
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.setup(statistic="ekfac", fisher="true")
        >>> report = run.watch(model, quiet=True)
        >>> def step(model, batch):
        ...     logits = model(x[batch])
        ...     return F.cross_entropy(logits, run.labels(logits, y[batch]))
        >>> run.extract(step, torch.arange(5).split(2)).passes
        ('K-FAC', 'EK-FAC', 'rows')
        """
        if self._sampling is None:
            return labels
        return drawn_labels(
            outputs,
            labels,
            self._sampling,
            distribution=distribution,
            axis=axis,
            shift=shift,
            ignore_index=ignore_index,
            std=std,
        )

    @property
    def draws_labels(self) -> bool:
        """Whether :meth:`labels` draws labels now."""
        return self._sampling is not None

    def not_captured(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which forward passes of the model are not logged."""
        if isinstance(self._batch, BatchCapture):
            return self._batch.ignoring()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _without_examples(self) -> Iterator[None]:
        self._is_empty = True
        try:
            with empty_batch():
                yield
        finally:
            self._is_empty = False

    def _process_group(self) -> TorchProcessGroup | None:
        """Return the processes of the running ``torch.distributed`` job; None outside of one."""
        return process_group()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass only as far as the logs need: parameters get no ``.grad``.

        Where nothing is trained this replaces ``loss.backward()``, and is faster: the gradients of
        the weights are never computed.
        """
        if self._batch is None:
            if self._is_empty:
                refuse_examples(loss)
            if self._pass is not None:
                return  # all examples of the batch are logged already
            raise CaptureError("Call run.backward(loss) inside `with run(data_id=ids):`.")
        assert isinstance(self._batch, BatchCapture)
        self._batch.backward(loss)
