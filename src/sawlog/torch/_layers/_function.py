"""Rules that are functions of the user; each parameter is a separate matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, Pair, rows, vector
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import widened

Function = Callable[[Any, Use], Mapping[str, Any]]


def separate_parts(module: nn.Module, whole: bool) -> tuple[Part, ...]:
    """Return each parameter as a part: ``[n, 1]`` or ``[first axis, all others]``."""
    named = module.named_parameters(recurse=whole)
    return tuple(Part(name, matrix_shape(tuple(value.shape))) for name, value in named)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a parameter as that of a matrix."""
    return (math.prod(shape), 1) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def whole_gradients(gradients: Tensor, matrix: tuple[int, int] | None = None) -> Pair:
    """Return gradients ``[batch, *parameter.shape]`` as a pair, shaped as ``separate_parts``.

    Args:
        gradients: the gradients.
        matrix: the parameter as a matrix, if it is another one.
    """
    batch, *shape = gradients.shape
    found = gradients.reshape(batch, *(matrix or matrix_shape(tuple(shape))))
    return vector(found[..., 0]) if found.shape[-1] == 1 else rows(found)


class FunctionRule(Rule):
    """The rule that :func:`register_layer` creates from a function."""

    def __init__(self, function: Function, whole: bool = False) -> None:
        self.function = function
        self.whole = whole

    def parts(self, module: nn.Module) -> Sequence[Part]:
        """Return each parameter as a separate part."""
        return separate_parts(module, self.whole)

    def pairs(self, module: nn.Module, use: Use) -> Mapping[str, Pair]:
        """Call the function, and check what it returns."""
        parts = {part.name: part for part in self.parts(module)}
        found = self.function(module, use)
        if not isinstance(found, Mapping) or set(found) != set(parts):
            got = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise self._error(module, f"should return a dict with {sorted(parts)}, not {got}")
        values = dict(module.named_parameters())
        return {
            name: self._pair(module, part, found[name], values[name].shape, use)
            for name, part in parts.items()
        }

    def _pair(
        self, module: nn.Module, part: Part, found: Any, shape: Sequence[int], use: Use
    ) -> Pair:
        if isinstance(found, Tensor):
            if tuple(found.shape) != (use.batch, *shape):
                raise self._error(
                    module,
                    f"returned gradients of shape {tuple(found.shape)} for {part.name!r}, which "
                    f"should be {(use.batch, *shape)}: [batch, *parameter.shape]",
                )
            return whole_gradients(widened(found, use))
        if isinstance(found, tuple) and len(found) == 2:
            found = Pair(*(Dense(_with_positions(widened(side, use))) for side in found))
        if not isinstance(found, Pair):
            raise self._error(
                module,
                f"returned {type(found).__name__} for {part.name!r}; it should be a tensor, "
                "(left, right), or a Pair",
            )
        if (found.batch, *found.shape) != (use.batch, *part.shape):
            raise self._error(
                module,
                f"returned factors of {found.batch} gradients of shape {found.shape} for "
                f"{part.name!r}; it should be {use.batch} of shape {part.shape}",
            )
        return found

    def _error(self, module: nn.Module, what: str) -> ArgumentError:
        name = getattr(self.function, "__name__", repr(self.function))
        return ArgumentError(f"The layer rule {name} for {type(module).__name__} {what}.")


def _with_positions(side: Tensor) -> Tensor:
    """Return a factor with an axis of positions; ``[batch, n]`` is one position."""
    return side[:, None] if side.dim() == 2 else side
