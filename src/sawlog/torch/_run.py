"""``Run``: a capture of a PyTorch model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sawlog._validate import one_of
from sawlog.capture._run import CaptureRun
from sawlog.errors import CaptureError
from sawlog.run_files._blocks import Report
from sawlog.torch._backend import TorchBackend
from sawlog.torch._capture._batch_capture import BatchCapture
from sawlog.torch._model._search import Names
from sawlog.torch._processes import TorchProcessGroup, process_group


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

    def watch(
        self,
        model: nn.Module,
        names: Names = None,
        types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
        *,
        uncovered: str = "error",
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
            uncovered: what to do about parameters that no layer rule covers: ``"error"``,
                ``"skip"``, or ``"func"``, which differentiates their module example by example
                with ``torch.func``.
            batch_axis: 1 for models whose tensors have the sequence before the examples.
            quiet: whether to hide the table.
            name_filter, type_filter: LogIX's arguments: substrings of names, and types.

        Raises:
            ArgumentError: no parameter matches, or a pass is running.
            UncoveredError: no layer rule covers some parameters; it names all of them.
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

    def _process_group(self) -> TorchProcessGroup | None:
        """Return the processes of the running ``torch.distributed`` job; None outside of one."""
        return process_group()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass only as far as the logs need: parameters get no ``.grad``.

        Where nothing is trained this replaces ``loss.backward()``, and is faster: the gradients of
        the weights are never computed.
        """
        if self._batch is None:
            if self._pass is not None:
                return  # all examples of the batch are logged already
            raise CaptureError("Call run.backward(loss) inside `with run(data_id=ids):`.")
        assert isinstance(self._batch, BatchCapture)
        self._batch.backward(loss)
