"""``JaxBackend``: a loss function and its parameters, as :class:`sawlog.capture.Backend`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from array_api_compat import is_torch_array

from sawlog._array_device import to_numpy
from sawlog.capture._backend import ActiveBatch, CutOne, Step
from sawlog.capture._batches import BATCHES_HINT
from sawlog.capture._check import Check
from sawlog.capture._label_sampling import LabelSampling
from sawlog.capture._nonfinite import NonFiniteRows
from sawlog.capture._pass_matrices import PassMatrices
from sawlog.capture._run import CaptureRun
from sawlog.errors import ArgumentError
from sawlog.jax._capture.api import Capture, capture
from sawlog.jax._capture.parameters import Names, batch_axes_of, examples_of, leaf_names
from sawlog.jax._capture_run.capturer import JaxBatch, JaxCapturer
from sawlog.jax._capture_run.check import check_batch
from sawlog.jax._capture_run.declared_loss import refuse_other_reduction
from sawlog.jax._capture_run.fingerprint import ParameterFingerprint
from sawlog.jax._capture_run.nonfinite import nonfinite_rows, nonfinite_sums
from sawlog.jax._capture_run.sampled_labels import DrawnLabels, SampleLabels
from sawlog.jax._core.functions import check_callable
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import Provenance
from sawlog.run_files._statistics import Staged

LossFunction = Callable[..., Any]
Make = Callable[[tuple[str, ...], Mapping[str, Any]], Capture]

#: The rank of the projections with which a batch is proven.
PROOF_RANK = 16


@dataclasses.dataclass(frozen=True)
class WatchedFunction:
    """The arguments of ``run.watch`` that describe loss functions.

    Args:
        names: Which parameters to watch.
        has_aux: Whether loss functions return ``(losses, aux)``.
        batch_axes: Where the leaves of a batch have their examples.
        sample_labels: How to draw labels from the model; None if the user did not say.
    """

    names: Names
    has_aux: bool
    batch_axes: Any
    sample_labels: SampleLabels | None = None


class JaxBackend:
    """A watched loss function.

    Args:
        loss_fn: ``loss_fn(params, batch)`` returns the loss of each example, or of the batch.
        params: The parameters, as they are now.
        batch: A batch like those to be logged.
        watched: What is known about the function.
        reduction: How a loss of the whole batch joins its examples, as in the options.
        sampling: Returns the labels to draw for the current batch; None for those of the data.
    """

    def __init__(
        self,
        loss_fn: LossFunction,
        params: Any,
        batch: Any,
        watched: WatchedFunction,
        reduction: str,
        sampling: Callable[[], LabelSampling | None] = lambda: None,
    ) -> None:
        self._sampling, self._drawn = sampling, DrawnLabels(watched.sample_labels)
        self.loss_fn, self.params, self._watched = loss_fn, params, watched
        self._fingerprint = ParameterFingerprint()
        self._captures: dict[Any, Capture] = {}
        self._kept: list[Any] = []
        self._proven: set[Any] = set()
        self._reductions: dict[Any, str] = {}
        batch = as_arrays(batch)
        how = self._reduction(loss_fn, reduction, params, batch)
        plan = self._capture(loss_fn, how, ("grad",), {}).plan(params, batch)
        self._blocks = plan.blocks
        chosen = {name for block in self._blocks for name in block.parameters}
        floats = [
            name
            for name, leaf in zip(leaf_names(params), jax.tree.leaves(params), strict=True)
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        ]
        self._skipped = tuple((n, "not selected by names=") for n in floats if n not in chosen)

    # -- the protocol -----------------------------------------------------------------------------

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The matrices of parameters that are watched, uncompressed."""
        return self._blocks

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The names of parameters that are not watched, and why."""
        return self._skipped

    def provenance(self, projection: str = "") -> Provenance:
        """Return a fingerprint of all parameters as they are now."""
        return self._fingerprint.now(self.params, projection)

    def changed_weights(self) -> Sequence[str]:
        """Return the names of arrays that changed since :meth:`provenance` was called."""
        return self._fingerprint.changed(self.params)

    def capturer(
        self, options: Options, blocks: Sequence[Block], matrices: PassMatrices, reuse_memory: bool
    ) -> JaxCapturer:
        """Return what captures the batches of a pass."""
        del reuse_memory
        return JaxCapturer(self, options, blocks, matrices)

    def nonfinite_rows(self, logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
        """Return which examples are not finite once stored in a dtype; None if all are."""
        return nonfinite_rows(logs, dtype)

    def nonfinite_sums(self, staged: Staged) -> Sequence[str]:
        """Return the names of statistics that a batch would make infinite or NaN."""
        return nonfinite_sums(staged)

    def sampled_batches(self, loader: Iterable[Any]) -> Iterator[tuple[np.ndarray, Any]] | None:
        """Return None: batches are numbered in their order.

        Raises:
            ArgumentError: the loader is one of PyTorch that shuffles.
        """
        sampler = getattr(loader, "sampler", None)
        of_torch = type(loader).__module__.startswith("torch.")
        if of_torch and type(sampler).__name__ not in ("SequentialSampler", "NoneType"):
            raise ArgumentError(
                "The loader shuffles, so the examples of a batch cannot be numbered in their "
                f"order. {BATCHES_HINT}"
            )
        return None

    def gathered(self, *, for_pass: bool = False) -> contextlib.AbstractContextManager[None]:
        """Do nothing: parameters are those that the user passes."""
        del for_pass
        return contextlib.nullcontext()

    def run_step(self, active: ActiveBatch, step: Step, batch: Any, size: int) -> Any:
        """Capture a batch; ``step`` is a loss function."""
        assert isinstance(active, JaxBatch)
        batch = as_arrays(batch)
        self.check_size(batch, size)
        sampling = self._sampling()
        if sampling is not None:
            batch = self._drawn.batch(self.params, batch, sampling)
        return active.run(step, self.params, batch)

    def check(
        self,
        run: CaptureRun,
        step: Step,
        batch: Any,
        *,
        mask: Any,
        examples: int,
        one: CutOne,
        tolerance: float | None,
    ) -> Check:
        """Compare what is captured of a batch with its examples run alone."""
        del mask
        check_callable(step, "check")
        cut = None if one is None else lambda batch, i: as_arrays(one(batch, i))
        return check_batch(self, step, run.options.reduction, batch, examples, cut, tolerance)

    @staticmethod
    def as_arrays(batch: Any) -> Any:
        """Return a batch with the tensors of PyTorch as numpy arrays."""
        return as_arrays(batch)

    # -- captures ---------------------------------------------------------------------------------

    def capture_of(self, loss_fn: LossFunction, reduction: str, params: Any, batch: Any) -> Make:
        """Return a function that makes the capture of a proven batch.

        Raises:
            CaptureError: the examples cannot be separated, or do not add up to the batch.
            ArgumentError: the loss function uses the parameters in another way than the watched
                one.
        """
        key = (loss_fn, reduction, _signature(params), _signature(batch))
        if key not in self._reductions:
            self._reductions[key] = self._reduction(loss_fn, reduction, params, batch)
        how = self._reductions[key]
        if key not in self._proven:
            self._check_blocks(loss_fn, how, params, batch)
            losses_of = functools.partial(self.losses_of, loss_fn, params)
            refuse_other_reduction(losses_of, how, batch, self.axes_of(batch))
            proof = self.proof(loss_fn, how)(params, batch)
            if proof.is_finite():  # otherwise there is nothing to compare; the next batch is proven
                proof.check()
                self._proven.add(key)
        return lambda what, projection: self._capture(loss_fn, how, what, projection)

    def proof(self, loss_fn: LossFunction, how: str) -> Capture:
        """Return a capture of small projections that also differentiates the whole batch."""
        return self._capture(loss_fn, how, ("grad",), PROOF_RANK, prove=True)

    def capture_with(self, loss_fn: LossFunction) -> Capture:
        """Return the gradients by block of ``loss_fn(params, (batch, number))``."""
        axes = (self._watched.batch_axes, None)
        return capture(loss_fn, batch_axes=axes, names=self._watched.names, projection={})

    def size_of(self, batch: Any) -> int:
        """Return the number of examples in a batch."""
        return examples_of(batch, self.axes_of(batch))

    def axes_of(self, batch: Any) -> list[int | None]:
        """Return where each leaf of a batch has its examples."""
        return batch_axes_of(batch, self._watched.batch_axes)

    def check_size(self, batch: Any, size: int) -> None:
        """Raise an ArgumentError if there is not one id for each example of a batch."""
        found = self.size_of(batch)
        if found != size:
            raise ArgumentError(f"The batch has {found} examples, and {size} ids were given.")

    def losses_of(self, loss_fn: LossFunction, params: Any, batch: Any) -> Any:
        """Return what a loss function returns, without its auxiliary output."""
        out = loss_fn(params, batch)
        return out[0] if self._watched.has_aux else out

    def reduction_of(self, loss_fn: LossFunction, reduction: str, batch: Any) -> str:
        """Return how the losses of a batch are joined: ``"none"``, ``"sum"`` or ``"mean"``."""
        return self._reduction(loss_fn, reduction, self.params, batch)

    def _capture(
        self,
        loss_fn: LossFunction,
        how: str,
        what: tuple[str, ...],
        projection: Mapping[str, Any] | int,
        prove: bool = False,
    ) -> Capture:
        """Return a capture; the same one for the same arguments, so that it compiles once."""
        held = projection if isinstance(projection, int) else id(projection)
        key = (loss_fn, how, what, held, prove)
        if key not in self._captures:
            self._captures[key] = capture(
                loss_fn,
                reduction=how,
                has_aux=self._watched.has_aux,
                batch_axes=self._watched.batch_axes,
                names=self._watched.names,
                what=what,
                projection=projection,
                prove=prove,
            )
            self._kept.append(projection)  # so that its id stays unique
        return self._captures[key]

    def _reduction(self, loss_fn: LossFunction, reduction: str, params: Any, batch: Any) -> str:
        """Return how the losses of a batch are joined.

        Raises:
            ArgumentError: the function returns one number, and nothing says what it is.
        """
        out = jax.eval_shape(lambda batch: self.losses_of(loss_fn, params, batch), batch)
        if getattr(out, "shape", None) != ():
            return "none"
        if reduction in ("sum", "mean"):
            return reduction
        raise ArgumentError(
            f"The loss function returns one number for a batch, and reduction={reduction!r} does "
            "not say how it joins the examples. Hint: return one loss for each example, "
            '[examples], or run.setup(reduction="mean") or "sum".'
        )

    def _check_blocks(self, loss_fn: LossFunction, how: str, params: Any, batch: Any) -> None:
        if loss_fn is self.loss_fn:
            return
        blocks = self._capture(loss_fn, how, ("grad",), {}).plan(params, batch).blocks
        if blocks != self._blocks:
            mine, theirs = ({b.name: b.shape for b in each} for each in (self._blocks, blocks))
            odd = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
            raise ArgumentError(
                "This loss function uses the parameters in another way than the watched one: "
                f"{', '.join(odd[:3])}. Hint: run.watch a loss function that uses all of the "
                "model, and compute other quantities from the same outputs."
            )


def as_arrays(batch: Any) -> Any:
    """Return a batch with the tensors of PyTorch as numpy arrays; other leaves are unchanged."""
    return jax.tree.map(lambda x: to_numpy(x) if is_torch_array(x) else x, batch)


def _signature(tree: Any) -> Any:
    """Return what is static of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    types = tuple((np.shape(x), str(getattr(x, "dtype", type(x)))) for x in leaves)
    return structure, types
