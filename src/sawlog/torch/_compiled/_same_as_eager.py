"""Compare a compiled region with the same module as it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._compiled._probes import tensors_in

_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
_COARSE = 0.1  # of types with less precision


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The tensors that one way to run a module computes, by kind."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    probes: list[Tensor | None]
    parameters: list[Tensor | None]


def measured(
    run: Callable[[Any, Any], Any], args: Any, kwargs: Any, parameters: Sequence[Tensor]
) -> Measurement | None:
    """Run a module forward and backward, with random gradients of its outputs.

    Args:
        run: returns the output, and the arguments and the probe of each layer call; None if it
            failed.
        args, kwargs: the arguments of the module.
        parameters: its parameters.
    """
    args, kwargs = torch.utils._pytree.tree_map(_leaf, (args, kwargs))
    with torch.enable_grad():
        found = run(args, kwargs)
    if found is None:
        return None
    output, calls = found
    several = list(tensors_in(output))
    starts = [each for each in several if each.requires_grad]
    generator = torch.Generator().manual_seed(0)
    grads = [
        torch.randn(each.shape, generator=generator, dtype=torch.float32).to(each)
        for each in starts
    ]
    probes = [probe for _, _, probe in calls if probe is not None]
    every = torch.autograd.grad(starts, [*probes, *parameters], grads, allow_unused=True)
    return Measurement(
        [each.detach() for each in several],
        [each for own_args, own_kwargs, _ in calls for each in tensors_in((own_args, own_kwargs))],
        list(every[: len(probes)]),
        list(every[len(probes) :]),
    )


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def difference(found: Measurement | None, expected: Measurement | None) -> str | None:
    """Return what differs between two measurements, as a reason; None if they agree."""
    if found is None or expected is None:
        return "compiled code called other layers than the module as written"
    for field, text in (
        ("outputs", "outputs"),
        ("inputs", "inputs of layers"),
        ("probes", "gradients of outputs of layers"),
        ("parameters", "gradients of parameters"),
    ):
        ours, theirs = getattr(found, field), getattr(expected, field)
        largest = max((float(e.double().norm()) for e in theirs if e is not None), default=0.0)
        same = len(ours) == len(theirs) and all(
            _alike(one, other, largest) for one, other in zip(ours, theirs, strict=True)
        )
        if not same:
            return f"compiled code computes other {text} than the module as written"
    return None


def _alike(one: Tensor | None, other: Tensor | None, largest: float) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    limit = _TOLERANCE.get(one.dtype, _COARSE)
    finite = torch.isfinite(other)
    if not torch.equal(finite, torch.isfinite(one)):
        return False
    apart = float(torch.where(finite, one - other, 0).double().norm())
    return apart <= limit * (float(torch.where(finite, other, 0).double().norm()) + 1e-3 * largest)
