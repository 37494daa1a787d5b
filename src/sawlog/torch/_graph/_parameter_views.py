"""Views of parameters, applied to per-example gradients of those parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sawlog.torch._graph._autograd_graph import Node, operation, shape_of, signed

SAME_VALUES = {"Alias", "Clone", "ToCopy", "Contiguous"}


def is_view(node: Node) -> bool:
    """Return whether a node computes a view of its input, or a copy with the same values."""
    return operation(node) in _VIEWS or operation(node) in SAME_VALUES


def view_of(views: Sequence[tuple[Node, int]], sums: Tensor) -> Tensor:
    """Apply the views of a weight to its gradients, which have the examples on axis 0."""
    for node, output in reversed(views):
        if operation(node) in _VIEWS:
            sums = _VIEWS[operation(node)](sums, node, output)
    return sums


def _axis(number: Any, tensor: Tensor) -> int:
    """Return the axis of per-example gradients that an axis of the weight corresponds to."""
    return signed(number) % (tensor.dim() - 1) + 1


def _viewed(sums: Tensor, node: Node, output: int) -> Tensor:
    return sums.view(len(sums), *shape_of((node, output)))


def _transposed(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    return sums.transpose(_axis(node._saved_dim0, sums), _axis(node._saved_dim1, sums))


def _turned(sums: Tensor, node: Node, output: int) -> Tensor:
    del node, output
    return sums.transpose(1, 2) if sums.dim() == 3 else sums


def _permuted(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    return sums.permute(0, *(_axis(each, sums) for each in node._saved_dims))


def _selected(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    axis = _axis(node._saved_dim, sums)
    return sums.select(axis, signed(node._saved_index))


def _sliced(sums: Tensor, node: Node, output: int) -> Tensor:
    size = shape_of((node, output))
    axis = _axis(node._saved_dim, sums)
    start = signed(node._saved_start)
    length = sums.shape[axis]
    start = max(0, start + length) if start < 0 else min(start, length)
    step = int(node._saved_step)
    stop = start + max(0, size[axis - 1] - 1) * step + (1 if size[axis - 1] else 0)
    place = [slice(None)] * sums.dim()
    place[axis] = slice(start, stop, step)
    return sums[tuple(place)]


def _unbound(sums: Tensor, node: Node, output: int) -> Tensor:
    return sums.select(_axis(node._saved_dim, sums), output)


def _split(sums: Tensor, node: Node, output: int) -> Tensor:
    axis, size = _axis(node._saved_dim, sums), int(node._saved_split_size)
    return sums.narrow(axis, output * size, shape_of((node, output))[axis - 1])


_VIEWS: dict[str, Callable[[Tensor, Node, int], Tensor]] = {
    "T": _turned,
    "Transpose": _transposed,
    "Permute": _permuted,
    "View": _viewed,
    "ReshapeAlias": _viewed,
    "UnsafeView": _viewed,
    "Unsqueeze": _viewed,
    "Squeeze": _viewed,
    "Select": _selected,
    "Slice": _sliced,
    "Unbind": _unbound,
    "Split": _split,
    "UnsafeSplit": _split,
}
