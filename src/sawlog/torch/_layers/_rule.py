"""What a layer rule says: the parameters of a module as matrices, and their factor pairs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.factored import Pair


@dataclasses.dataclass(frozen=True)
class Part:
    """A matrix of parameters of a module, as one of its uses sees it.

    Args:
        name: the name of the parameter, as ``"weight"`` or ``"out_proj.weight"``.
        shape: ``(rows, cols)``, or ``(groups, rows, cols)``; the elements are those of the
            parameter in order, so that ``parameter.reshape(shape)`` is the matrix.
        bias: the parameter that is one more row or column of the matrix, if there is one.
        inputs: the side on which the inputs of the layer are: the other has the gradients of its
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
        args, kwargs: what the module was called with.
        grad: the gradient of its output, or of the first tensor of its output.
        batch: how many examples there are.
        axis: which axis of inputs and outputs is that of the examples: 0, or 1.
        minor: whether an example has its places along that axis ``batch`` apart, where it has
            several; None is so where the axis is 1.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: Tensor
    batch: int
    axis: int = 0
    minor: bool | None = None


class Rule(abc.ABC):
    """How the gradients of one type of module come from what flows through it.

    A rule has no state of its own; one object serves all modules of the type.
    """

    #: Whether the rule speaks for the parameters of the modules inside as well.
    whole = False

    @abc.abstractmethod
    def parts(self, module: nn.Module) -> Sequence[Part]:
        """The parameters of the module as matrices; those it does not have are left out.

        Raises:
            ArgumentError: this module is used in a way that the rule does not cover; says why.
        """

    @abc.abstractmethod
    def pairs(self, module: nn.Module, use: Use) -> Mapping[str, Pair]:
        """For the name of each part, the factors of its gradient in this use, without the bias.

        The gradient of example ``b`` is that of the sum over examples of their losses, as the
        backward pass has it: nothing is scaled here.
        """
