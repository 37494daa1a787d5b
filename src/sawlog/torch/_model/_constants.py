"""Tensors of a model that do not belong to any example: parameters, and buffers that stay."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from sawlog.torch._graph._memory import memory_of


class ModelTensors:
    """The parameters and buffers of a model.

    A buffer that is changed after the model was watched may hold something of examples.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._buffers = [(each, _version_of(each)) for each in model.buffers()]

    def memories(self) -> set[int]:
        """Return where the memory of each of them starts."""
        return {memory for each in self._all() if (memory := memory_of(each))}

    def _all(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from (each for each, version in self._buffers if _version_of(each) == version)


def _version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
