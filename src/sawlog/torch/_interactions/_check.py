"""Check that no example changes what is logged of others without a gradient that shows it.

The operations of the batch are replayed: once as recorded, and twice with half of the examples
replaced. The loss of the other half must not change, nor its gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from sawlog.errors import MixedExamplesError
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._interactions._compare import (
    ChangeLimits,
    affected,
    changed,
    differs,
    factors,
    sizes,
)
from sawlog.torch._interactions._differentiable import has_decisions
from sawlog.torch._interactions._first_mixture import Mixture, first_mixture
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor, Replacement, further, halves
from sawlog.torch._interactions._replay import replaying
from sawlog.torch._interactions._replayed_loss import (
    ReplayedLayers,
    ReplayedLoss,
    replay_layers,
    replay_loss,
)
from sawlog.torch._interactions._tape import NotRepeatable

_MORE = 9
"""Further replays, where values are compared or sorted, and one replay may keep all ranks."""

_FAILURES = (Exception,)  # a replay may fail in any way, which shows nothing about the program


def check_interactions(
    loss: TapedLoss, tensors: Sequence[ExampleTensor], batch: int, dtypes: Set[torch.dtype]
) -> None:
    """Check one loss.

    Args:
        loss: the loss and the operations that computed it.
        tensors: those of which it is known which elements belong to which example.
        batch: the number of examples.
        dtypes: the dtypes of the program.

    Raises:
        MixedExamplesError: examples depend on each other.
        NotRepeatable: nothing can be concluded.
    """
    try:
        with replaying(loss.tape):
            examples, mixture = _Checker(loss, tensors, batch, dtypes).find()
    except _FAILURES as error:
        raise NotRepeatable(f"{type(error).__name__}: {error}") from error
    if examples:
        raise _error(examples, mixture)


def _error(examples: Sequence[int], mixture: Mixture | None) -> MixedExamplesError:
    """Return the error for examples that depend on others."""
    where = "" if mixture is None else f" The first operation that joins them is {mixture}."
    which = f"example {examples[0]}" if len(examples) == 1 else f"{len(examples)} examples"
    return MixedExamplesError(
        f"Examples depend on each other in a way that leaves no gradient: if others of the batch "
        f"are replaced, the loss or the gradient of {which} changes.{where} Probably a detached "
        "statistic of the batch, such as a mean, a maximum or a rank, or inputs that are mixed, so "
        "examples have no gradients of their own. Hint: compute it for each example by itself, or "
        "once before the batches, as a number; leave it out inside of `with run(...)`; or log "
        "batches of one example. run.check(step, batch) shows which rows differ."
    )


class _Checker:
    """Compares replays of one loss."""

    def __init__(
        self,
        loss: TapedLoss,
        tensors: Sequence[ExampleTensor],
        batch: int,
        dtypes: Set[torch.dtype],
    ) -> None:
        self.loss, self.tensors, self.batch = loss, tensors, batch
        self.dtypes, self.limits = dtypes, ChangeLimits.of(dtypes)

    def find(self) -> tuple[list[int], Mixture | None]:
        """Return the examples that others change, and how.

        Raises:
            NotRepeatable: nothing can be concluded.
        """
        loss, tensors = self.loss, self.tensors
        base = replay_loss(loss, tensors, None)
        for own, again in zip(loss.losses, base.roots, strict=True):
            if not torch.allclose(own, again.to(own.dtype), rtol=self.limits.rounding):
                raise NotRepeatable("random or outside of what was recorded")
        first = halves(self._size(base))
        replacements = [
            *first,
            *(further(self.batch, _MORE) if has_decisions(loss, tensors) else ()),
        ]
        concluded = False
        for replacement in replacements:
            for variant in (replacement, Replacement(replacement.chosen, None)):
                examples = self._affected(base, variant)
                if examples is None:
                    continue
                concluded = True
                if examples:
                    confirmed = self._confirmed(variant)
                    if confirmed or confirmed is None:
                        return confirmed or examples, self._mixture(variant, first)
                break
        if not concluded:
            raise NotRepeatable("other examples cannot be put in")
        return [], None

    def _size(self, base: ReplayedLoss) -> Tensor:
        """Return a number for each example that its loss depends on."""
        found = torch.zeros(self.batch, dtype=torch.float64)
        for value, term in zip(base.terms, self.loss.terms, strict=True):
            found += sizes(value, term.labels, self.batch)
        return found

    def _affected(self, base: ReplayedLoss, replacement: Replacement) -> list[int] | None:
        """Return the examples whose loss others change; None if a replay fails."""
        try:
            other = replay_loss(self.loss, self.tensors, replacement)
        except _FAILURES:
            return None
        if not _alike(base, other):
            return None
        self.limits = ChangeLimits.of(self.dtypes, base.shapes == other.shapes)
        found: set[int] = set()
        for n, term in enumerate(self.loss.terms):
            one, two = base.terms[n], other.terms[n]
            found.update(affected(one, two, term.labels, replacement.chosen, self.limits))
            if base.grads is None or other.grads is None:
                continue
            before, after = base.grads[n], other.grads[n]
            if not differs(before, after, term.labels, replacement.chosen):
                continue
            if not _is_gradient(before, term.grad, self.limits):
                continue
            rest = ~replacement.chosen[term.labels]
            by: float | Tensor = 1.0
            if term.own:
                by = factors([before], [after], [term.labels], self.batch)[0]
            elif term.counts:
                by = _factor(before[rest], after[rest])
            found.update(changed(before * by, after, term.labels, replacement.chosen, self.limits))
        return sorted(found)

    def _confirmed(self, replacement: Replacement) -> list[int] | None:
        """Return the examples whose inputs or gradients of layers change; None if unknown."""
        try:
            one = replay_layers(self.loss, self.tensors, None)
            two = replay_layers(self.loss, self.tensors, replacement)
        except _FAILURES:
            return None
        if not any(each is not None for each in one.grads):
            return None
        chosen, found = replacement.chosen, set[int]()
        labels = [self._labels(tensor, one.values[n]) for n, tensor in enumerate(self.tensors)]
        by: Sequence[float | Tensor] = [1.0] * len(labels)
        if any(term.own for term in self.loss.terms):
            by = factors(one.grads, two.grads, labels, self.batch)
        elif any(term.counts for term in self.loss.terms):
            by = [self._common_factor(one, two, labels, chosen)] * len(labels)
        for n, own in enumerate(labels):
            found.update(affected(one.values[n], two.values[n], own, chosen, self.limits))
            before, after = one.grads[n], two.grads[n]
            if before is not None and after is not None:
                found.update(changed(before * by[n], after, own, chosen, self.limits))
        return sorted(found)

    def _common_factor(
        self, one: ReplayedLayers, two: ReplayedLayers, labels: Sequence[Tensor], chosen: Tensor
    ) -> float:
        """Return by what all gradients of the other examples changed."""
        pairs = [
            (before[~chosen[own]].flatten().double(), after[~chosen[own]].flatten().double())
            for before, after, own in zip(one.grads, two.grads, labels, strict=True)
            if before is not None and after is not None
        ]
        return _factor(torch.cat([each for each, _ in pairs]), torch.cat([a for _, a in pairs]))

    def _labels(self, tensor: ExampleTensor, value: Tensor) -> Tensor:
        return labels_along(tensor.layout, value.shape, self.batch)

    def _mixture(self, replacement: Replacement, both: Sequence[Replacement]) -> Mixture | None:
        """Return the operation that mixes examples, if two replays show it."""
        other = Replacement(~replacement.chosen, None)
        small = [Replacement(each.chosen, None) for each in both]
        for pair in (both, (replacement, other), small):
            with contextlib.suppress(*_FAILURES):
                found = first_mixture(self.loss, self.tensors, pair, self.limits)
                if found is not None:
                    return found
        return None


def labels_along(layout: ExampleLayout, shape: Sequence[int], batch: int) -> Tensor:
    """Return the example of each row of a tensor, in the shape of its first axes."""
    each = layout.spread(torch.arange(batch), shape).flatten()
    return each.expand(*shape[: layout.axis], -1)


def _alike(base: ReplayedLoss, other: ReplayedLoss) -> bool:
    """Return whether two replays can be compared: shapes, random states and finite values agree."""
    for one, two in zip(base.terms, other.terms, strict=True):
        if one.shape != two.shape:
            return False
        if bool(torch.isfinite(two.sum())):  # then all of them are
            continue
        if bool((torch.isfinite(one) & ~torch.isfinite(two)).any()):
            return False
    return all(torch.equal(a, b) for a, b in zip(base.states, other.states, strict=True))


def _is_gradient(found: Tensor, known: Tensor, limits: ChangeLimits) -> bool:
    """Return whether a replay was differentiated like the program."""
    apart = (found.double() - known.double()).norm()
    return found.shape == known.shape and bool(apart <= 10 * limits.share * known.double().norm())


def _factor(one: Tensor, two: Tensor) -> float:
    size = float((one.double() ** 2).sum())
    return float((one.double() * two.double()).sum()) / size if size else 1.0
