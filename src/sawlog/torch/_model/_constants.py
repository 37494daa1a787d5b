"""Tensors of a model that do not belong to any example: parameters, and buffers that stay."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from sawlog.torch._graph._memory import memory_of


class ModelTensors:
    """The parameters and buffers of a model, and indices that its modules keep.

    One that is changed after the model was watched may hold something of examples.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        others = (*model.buffers(), *_indices_of(model))
        self._others = [(each, _version_of(each)) for each in others]

    def memories(self) -> set[int]:
        """Return where the memory of each of them starts."""
        return {memory for each in self._all() if (memory := memory_of(each))}

    def _all(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from (each for each, version in self._others if _version_of(each) == version)


def _indices_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield integers that modules keep as attributes, or in dicts and lists."""
    for module in model.modules():
        for value in vars(module).values():
            several = value.values() if isinstance(value, dict) else value
            for each in several if isinstance(value, (dict, list, tuple)) else (value,):
                if isinstance(each, Tensor) and not (each.is_floating_point() or each.is_complex()):
                    yield each


def _version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
