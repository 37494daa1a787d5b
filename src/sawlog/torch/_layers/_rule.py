"""The interface of layer rules: parameters of a module as matrices, and their factor pairs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.factored import Pair


@dataclasses.dataclass(frozen=True)
class Part:
    """A parameter of a module as a matrix.

    Args:
        name: the name of the parameter, such as ``"weight"`` or ``"out_proj.weight"``.
        shape: ``(rows, cols)``, or ``(groups, rows, cols)``; ``parameter.reshape(shape)`` is the
            matrix.
        bias: the name of the parameter that is one more row or column of the matrix, if any.
        inputs: the side of the inputs of the layer; the other side has the gradients of its
            outputs. A bias is one more feature of the inputs, which is always 1.
    """

    name: str
    shape: tuple[int, ...]
    bias: str | None = None
    inputs: str = "right"


@dataclasses.dataclass(frozen=True)
class Use:
    """One call of a module, seen from the backward pass; all tensors are detached.

    Args:
        args, kwargs: the arguments of the module.
        grad: the gradient of its output, or of the first tensor of its output.
        batch: the number of examples.
        axis: the axis of the examples in inputs and outputs, 0 or 1.
        minor: whether the positions of an example along that axis are ``batch`` apart; None means
            they are if the axis is 1.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: Tensor
    batch: int
    axis: int = 0
    minor: bool | None = None


class Rule(abc.ABC):
    """Computes per-example gradients of one type of module from its inputs and output gradient.

    A rule has no state; one object serves all modules of the type.
    """

    #: Whether the rule covers the parameters of submodules too.
    whole = False

    @abc.abstractmethod
    def parts(self, module: nn.Module) -> Sequence[Part]:
        """Return the parameters of the module as matrices, without those that it lacks.

        Raises:
            ArgumentError: the rule does not cover this module; the message says why.
        """

    @abc.abstractmethod
    def pairs(self, module: nn.Module, use: Use) -> Mapping[str, Pair]:
        """Return the factors of the gradient of each part in this use, by name, without the bias.

        Gradients are those of the backward pass; they are not scaled here.
        """
