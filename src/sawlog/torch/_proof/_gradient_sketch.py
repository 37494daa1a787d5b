"""Compare the gradients of two backward passes by one random product for each example."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._example_layout import Codes, ExampleLayout
from sawlog.torch._hooks._hooks import LayerCall

_ROUNDING = 8


@dataclasses.dataclass(frozen=True)
class CallSketch:
    """The sketch of the gradient of one layer call.

    Args:
        name: the name of the layer.
        shape: the shape of the gradient.
        sums: for each example, the sum of its elements with random signs; None without a layout.
        norms: for each example, the norm of its elements; None without a layout.
    """

    name: str
    shape: tuple[int, ...]
    sums: Tensor | None = None
    norms: Tensor | None = None


def sketch(
    call: LayerCall, grad: Tensor, layout: ExampleLayout | None, batch: int, seed: int
) -> CallSketch:
    """Return the sketch of a gradient, with signs that depend on ``seed``."""
    name, shape = call.unit.name, tuple(grad.shape)
    if layout is None:
        return CallSketch(name, shape)
    flat = layout.split(grad, batch).reshape(batch, -1)
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (flat.shape[1],), generator=generator) * 2 - 1
    sums = (flat @ signs.to(flat)).double().cpu()
    return CallSketch(name, shape, sums, flat.norm(dim=1).double().cpu())


class GradientSketch:
    """Checks that gradients of layer outputs change by the factor of each example.

    The elements of each example are multiplied by random signs and summed. If a layout is wrong,
    or examples are mixed, the sums of two passes do not differ by the factor of the example.

    Args:
        batch: the number of examples.
        every: the factors of the examples in each coded pass.
        coded: the sketches of each coded pass, in the order in which gradients arrived.
    """

    def __init__(self, batch: int, every: Codes, coded: Sequence[Sequence[CallSketch]]) -> None:
        self._batch, self._every, self._coded = batch, every, coded
        self._number = 0

    def compare(self, call: LayerCall, grad: Tensor, layout: ExampleLayout | None) -> None:
        """Compare a gradient of the plain pass with those of all coded passes.

        Raises:
            CaptureError: it does not change by the factor of each example.
        """
        plain = sketch(call, grad, layout, self._batch, self._number)
        for rows, factors in zip(self._coded, self._every.factors, strict=True):
            coded = rows[self._number] if self._number < len(rows) else None
            if coded is None or (coded.name, coded.shape) != (plain.name, plain.shape):
                raise CaptureError(
                    f"The layer {call.unit.name!r} does not run in the same order every time, so "
                    "its gradients cannot be proven. Hint: checkpoint(..., use_reentrant=False)."
                )
            if not self._is_scaled(plain, coded, factors):
                raise CaptureError(
                    f"The gradient of the layer {call.unit.name!r}, of shape {plain.shape}, does "
                    f"not have the {self._batch} examples of the loss in order along one axis, or "
                    "they are mixed; reentrant checkpointing hides the graph that would show where "
                    "they are. Hint: checkpoint(..., use_reentrant=False)."
                )
        self._number += 1

    def _is_scaled(self, plain: CallSketch, coded: CallSketch, factors: Tensor) -> bool:
        if plain.sums is None or coded.sums is None or plain.norms is None:
            return plain.sums is coded.sums
        apart = (coded.sums / factors - plain.sums).abs()
        floor = self._every.floor * float(plain.norms.max()) if len(plain.norms) else 0.0
        return bool((apart <= _ROUNDING * self._every.tolerance * plain.norms + floor).all())
