"""``JaxRun``: a capture of a JAX loss function."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from sawlog.capture._backend import CutOne
from sawlog.capture._batches import DataId
from sawlog.capture._data_ids import data_ids
from sawlog.capture._extract import Extraction, ExtractionJob, Mask
from sawlog.capture._run import CaptureRun
from sawlog.errors import ArgumentError, CaptureError
from sawlog.jax import _compat
from sawlog.jax._capture.parameters import Names
from sawlog.jax._capture_run.backend import JaxBackend, LossFunction, WatchedFunction, as_arrays
from sawlog.jax._capture_run.processes import JaxProcessGroup, process_group
from sawlog.jax._capture_run.sampled_labels import SampleLabels
from sawlog.jax._core.functions import check_callable
from sawlog.run_files._blocks import Report


class JaxRun(CaptureRun):
    """Logs per-example gradients of a JAX loss function; ``sawlog.init`` creates it.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        exists: what to do if the run exists: ``"append"`` continues it and skips the examples that
            it has; ``"replace"`` deletes it; ``"error"`` raises.
        config: initial options, as for :meth:`setup`; None takes those that an existing run was
            last set up with.
        sinks: where :meth:`log` writes; by default a store in the folder ``metrics`` of the run.

    >>> import tempfile, jax.numpy as jnp, sawlog
    >>> def loss_fn(params, x):
    ...     return ((x @ params["w"] + params["b"]) ** 2).sum(-1)
    >>> params, x = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, jnp.ones((4, 3))
    >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
    >>> report = run.watch(loss_fn, params, x, quiet=True)
    >>> losses = run.record(["a", "b", "c", "d"], params, x)
    >>> run.finalize()
    >>> sawlog.store.open(run.store_path).gather(["b"])["grad/w"].shape
    (1, 2, 4)
    """

    def _process_group(self) -> JaxProcessGroup | None:
        """Return the processes of the running ``jax.distributed`` job; None outside of one."""
        return process_group()

    def watch(
        self,
        loss_fn: LossFunction,
        params: Any,
        batch: Any,
        *,
        names: Names = None,
        has_aux: bool = False,
        batch_axes: Any = 0,
        sample_labels: SampleLabels | None = None,
        quiet: bool = False,
    ) -> Report:
        """Choose the loss function and the parameters to log; shows a table of what they take.

        The function is traced for this batch; nothing is computed.

        Args:
            loss_fn: ``loss_fn(params, batch)`` returns one loss for each example, ``[examples]``;
                or their sum or mean, if ``run.setup(reduction=...)`` says so.
            params: the parameters, a pytree.
            batch: a batch like those to be logged.
            names: patterns of names of parameters, such as ``["*/kernel"]``, or a function.
            has_aux: whether the loss function returns ``(losses, aux)``.
            batch_axes: where the leaves of a batch have their examples, as ``in_axes`` of
                ``jax.vmap``; None for a leaf that all examples share.
            sample_labels: for ``fisher="true"``: ``sample_labels(params, batch, keys)`` returns
                the batch with labels drawn from the outputs of the model. ``keys`` has a random
                key for each example, which depends on ``fisher_seed`` and its id.
            quiet: whether to hide the table.

        Raises:
            ArgumentError: no parameter matches, a pass is running, or the loss is one number and
                nothing says how it joins the examples.
            CaptureError: the losses of the examples depend on each other.
        """
        self._check_idle("watch")
        check_callable(loss_fn, "watch")
        watched = WatchedFunction(names, has_aux, batch_axes, sample_labels)
        reduction = self.options.reduction
        backend = JaxBackend(loss_fn, params, batch, watched, reduction, lambda: self._sampling)
        return self._watch(backend, quiet)

    def record(
        self,
        data_id: Any,
        params: Any,
        batch: Any,
        *,
        mask: Any = None,
        loss_fn: LossFunction | None = None,
    ) -> Any:
        """Compute and log the gradients of a batch.

        Micro-batches of gradient accumulation are recorded one by one. The first batch of each
        shape is proven: its rows must add up to the gradient of the batch.

        Args:
            data_id: one id for each example: integers, strings, or the inputs themselves, which
                are then identified by a hash of their content.
            params: the parameters.
            batch: the batch.
            mask: which positions of each example count, ``[batch, positions]``: the others are
                left out of K-FAC statistics.
            loss_fn: another function than the watched one, for queries.

        Returns:
            What the loss function returned: the losses. None if all examples are logged already.

        Raises:
            ArgumentError: the ids do not fit the batch, or :meth:`watch` was not called.
            DuplicateIdError: an id was logged before in this run.
            WeightsMismatchError: the parameters changed since the pass started.
            CaptureError: the gradients of the examples cannot be separated.
        """
        backend = self._function()
        ids = data_ids(data_id, once=False)  # the pass decides about those that occur twice
        batch = as_arrays(batch)
        if any(map(_compat.is_tracer, jax.tree.leaves((params, batch)))):
            raise CaptureError(
                "run.record was called inside jax.jit or another transformation, where there are "
                "no numbers to store. Hint: call it outside; inside, sawlog.jax.capture(loss_fn) "
                "computes the gradients of each example as arrays."
            )
        backend.check_size(batch, len(ids))
        self._use(params)
        losses = None
        with self(ids, mask=mask):
            if self._batch is not None:
                step = backend.loss_fn if loss_fn is None else loss_fn
                losses = backend.run_step(self._batch, step, batch, len(ids))
        return losses

    def extract(  # type: ignore[override]
        self,
        loss_fn: LossFunction,
        params: Any,
        batches: Iterable[Any],
        data_id: DataId = None,
        *,
        mask: Mask = None,
        check: bool = True,
        one: CutOne = None,
        quiet: bool = False,
    ) -> Extraction:
        """Log every example of some batches, in as many passes as the options need.

        PCA projections need a pass for covariances, EK-FAC a pass for K-FAC before its own.
        Examples that are logged already are skipped. Without :meth:`watch`, the function is
        watched with the first batch. After :meth:`eval` the examples are queries, and
        :meth:`get_log` returns all of them.

        Args:
            loss_fn: as for :meth:`watch`.
            params: the parameters.
            batches: an iterable of batches, read once for each pass.
            data_id: as for :meth:`batches`.
            mask: which positions count, as for :meth:`record`: a function of the batch, or the key
                of the mask in it.
            check: whether to compare some examples of the first batch with themselves alone.
            one: how the check cuts an example out of a batch, ``one(batch, i)``.
            quiet: whether to hide progress bars and the table of :meth:`watch`.

        Raises:
            CaptureError: the check found differences, or examples cannot be separated.
            ArgumentError: batches cannot be read again for another pass.

        >>> import tempfile, jax.numpy as jnp, sawlog
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.setup(statistic="ekfac", compress=2)
        >>> batches = [jnp.eye(4), 2 * jnp.eye(4)]
        >>> def loss_fn(params, x):
        ...     return jnp.tanh(x @ params["w"]).sum(-1)
        >>> run.watch(loss_fn, {"w": jnp.ones((4, 3))}, batches[0], quiet=True).bytes_per_example
        16
        >>> run.extract(loss_fn, {"w": jnp.ones((4, 3))}, batches, quiet=True).passes
        ('K-FAC', 'EK-FAC and rows')
        """
        check_callable(loss_fn, "extract")
        if self._backend is None:
            first, batches = _peek(batches)
            self.watch(loss_fn, params, first, quiet=quiet)
        elif loss_fn is not self._function().loss_fn and not self.evaluates:
            raise ArgumentError(
                "extract was called with another loss function than watch. Hint: "
                "run.watch(loss_fn, params, batch) first."
            )
        self._use(params)
        return ExtractionJob(self, loss_fn, batches, data_id, mask, one, quiet).run_all(check)

    def _use(self, params: Any) -> None:
        """Compute with these parameters from now on."""
        self._function().params = params

    def _function(self) -> JaxBackend:
        backend = self._backend
        if backend is None:
            raise ArgumentError(
                "No function is watched yet. Hint: run.watch(loss_fn, params, batch)."
            )
        assert isinstance(backend, JaxBackend)
        return backend


def _peek(batches: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """Return the first batch, and all batches."""
    iterator = iter(batches)
    try:
        first = next(iterator)
    except StopIteration:
        raise ArgumentError(
            "There are no batches to log. Hint: an iterator that was read before is empty."
        ) from None
    if isinstance(batches, Iterator):
        return first, itertools.chain([first], iterator)
    return first, batches
