"""The gradients of a weight for each example through one operation, for all examples at once.

Each kind of operation has a function here. It is given the gradient of the output of the operation,
with how the examples lie in it, and reads the other inputs from the graph. Where it cannot say
anything, it returns None, and the operation is differentiated once for each example.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, call, operation, shape_of, sum_to
from sawlog.torch._graph._example_layout import ExampleLayout

Where = ExampleLayout | Tensor
"""How the examples lie in a tensor: in order, or a label for each element, -1 for nothing."""


@dataclasses.dataclass(frozen=True)
class WeightUse:
    """An operation that joins a weight with something of the examples.

    Args:
        node: the operation.
        place: which of its inputs the weight is.
        number: of the node, in the order of the graph.
    """

    node: Node
    place: int
    number: int

    @property
    def weight(self) -> Edge:
        """The weight."""
        edge: Edge = self.node.next_functions[self.place]
        return edge

    @property
    def name(self) -> str:
        """The name of the operation."""
        return operation(self.node)


@dataclasses.dataclass(frozen=True)
class Came:
    """What came back to an operation.

    Args:
        use: the operation, and the weight.
        grad: the gradient of its only output that has one.
        where: how the examples lie in it.
        batch: how many examples there are.
    """

    use: WeightUse
    grad: Tensor
    where: Where
    batch: int

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        return shape_of(self.use.weight)

    def labels(self, axis: int) -> Tensor | None:
        """The example of each place of an axis of the gradient; None where others matter too."""
        return labels_along(self.where, self.grad, (axis,), self.batch)


@dataclasses.dataclass(frozen=True)
class Factors:
    """Gradients that are products ``left.mT @ right``, not multiplied yet.

    Args:
        left, right: ``[batch, positions, rows]`` and ``[batch, positions, cols]``.
    """

    left: Tensor
    right: Tensor

    @property
    def turned(self) -> Factors:
        """Those of the transposed weight."""
        return Factors(self.right, self.left)


Found = Factors | Tensor | None
"""Gradients ``[batch, *shape of the weight]``, or factors of them."""


def all_at_once(
    use: WeightUse,
    grads: Sequence[Tensor | None],
    where: Sequence[Where | None],
    batch: int,
    shared: dict[Any, Any],
) -> Found:
    """The gradients of a weight for each example; None where it has to be done one by one.

    Args:
        use: the operation, and the weight.
        grads: the gradients of its outputs.
        where: how the examples lie in each of them.
        batch: how many examples there are.
        shared: what the weights of one operation share.
    """
    if use.name == "MkldnnRnnLayer":
        return _recurrent(use, grads, where, batch, shared)
    function = _FUNCTIONS.get(use.name)
    grad, *more = grads
    lies = where[0]
    if function is None or grad is None or lies is None or any(g is not None for g in more):
        return None
    if grad.is_complex() or grad.layout != torch.strided:
        return None
    return function(Came(use, grad, lies, batch))


def is_of_inputs(use: WeightUse) -> bool:
    """Whether a weight is joined with something that has no gradient: the inputs of the model."""
    if use.name in ("Mm", "Addmm"):
        is_first = use.place == int(use.name == "Addmm")
        other = _other_factor(use.node, is_first)
        edge = use.node.next_functions[use.place + (1 if is_first else -1)]
        return edge[0] is None and other is not None and bool(other.any())
    if use.name == "Convolution":
        return use.node.next_functions[0][0] is None
    return use.name == "Embedding"


# -- element by element ---------------------------------------------------------------------------


def _elementwise(came: Came) -> Found:
    """The weight was broadcast to the output, or is a part of it."""
    found = call(came.use.node, came.grad)[came.use.place]
    if found is None or found.shape != came.grad.shape or found.is_sparse:
        return None
    return summed(found, came.where, came.batch, came.shape)


def _concatenated(came: Came) -> Found:
    """Each element of the weight is one of the output: labels go where gradients go."""
    found = call(came.use.node, came.grad)[came.use.place]
    labels = _spread(came.where, came.grad.shape, came.batch, came.grad.device)
    own = call(came.use.node, labels.to(torch.float64))[came.use.place]
    if found is None or own is None:
        return None
    return summed(found, own.round().long(), came.batch, came.shape)


def summed(found: Tensor, where: Where, batch: int, shape: Sequence[int]) -> Tensor:
    """``[batch, *shape]``: the sums over the elements of each example.

    Args:
        found: elements, in a shape that ``shape`` broadcasts to.
        where: the example of each.
        batch: how many examples there are.
        shape: of a tensor that was broadcast.
    """
    found = _wide(found)
    if isinstance(where, ExampleLayout):
        own = where.axis - (found.dim() - len(shape))
        if own < 0 or (shape[own] == 1 and found.shape[where.axis] != 1):
            return sum_to(where.split(found, batch), shape, first=1)
    labels = _spread(where, found.shape, batch, found.device)
    size = math.prod(shape)
    places = torch.arange(size, device=found.device).reshape(tuple(shape)).expand(found.shape)
    there = torch.where(labels < 0, torch.zeros_like(found), found)
    rows = there.new_zeros(batch * size)
    rows.index_add_(0, (labels.clamp(min=0) * size + places).flatten(), there.flatten())
    return rows.reshape(batch, *shape)


# -- products -------------------------------------------------------------------------------------


def _product(came: Came) -> Found:
    """``first @ second``, or that times ``alpha`` and added to something times ``beta``."""
    node, added = came.use.node, came.use.name in ("Addmm", "Baddbmm", "Addbmm")
    if added and came.use.place == 0:
        found = came.grad if node._saved_beta == 1 else came.grad * node._saved_beta
        return summed(found, came.where, came.batch, came.shape)
    is_first = came.use.place == int(added)
    other = _other_factor(node, is_first)
    if other is None:
        return None
    grad = came.grad * node._saved_alpha if added and node._saved_alpha != 1 else came.grad
    if grad.dim() == 2:
        return _of_matrices(came, grad, other, is_first)
    return _of_stacks(came, grad, other, is_first)


def _other_factor(node: Node, is_first: bool) -> Tensor | None:
    names = ("mat2", "batch2") if is_first else ("mat1", "batch1", "self")
    every = (getattr(node, f"_saved_{name}", None) for name in names)
    other = next((each for each in every if each is not None), None)
    return other if other is not None and other.layout == torch.strided else None


def _of_matrices(came: Came, grad: Tensor, other: Tensor, is_first: bool) -> Found:
    """The weight ``[rows, cols]``; what is summed over are places of the examples."""
    left, right = (grad.mT, other.mT) if is_first else (other, grad)
    axis = int(is_first)
    if isinstance(came.where, ExampleLayout):
        if came.where.axis != axis:
            return None
        lies = ExampleLayout(0, came.where.minor)
        return Factors(lies.split(_wide(left), came.batch), lies.split(_wide(right), came.batch))
    labels = came.labels(axis)
    return None if labels is None else outer_sums(left, right, labels, came.batch)


def _of_stacks(came: Came, grad: Tensor, other: Tensor, is_first: bool) -> Found:
    """Weights ``[n, rows, cols]``: one for each example, or places of examples in each."""
    if not isinstance(came.where, ExampleLayout):
        return None
    axis = 2 if is_first else 1
    if came.where.axis == 0:  # the weight was given to each example
        found = call(came.use.node, came.grad)[came.use.place]
        return None if found is None else summed(found, came.where, came.batch, came.shape)
    if came.where.axis != axis:
        return None
    grad, other = (
        came.where.split(grad, came.batch),
        ExampleLayout(axis, came.where.minor).split(other, came.batch),
    )
    grad, other = _wide(grad), _wide(other)
    return grad @ other.mT if is_first else other.mT @ grad


def _grouped(came: Came) -> Found:
    """Rows ``[n, cols]`` that are in groups, and a weight ``[groups, cols, rows]`` for each."""
    node = came.use.node
    inputs, ends = node._saved_self, node._saved_offs
    if came.use.place != 1 or inputs is None or ends is None or inputs.dim() != 2:
        return None
    labels = came.labels(0)
    if labels is None:
        return None
    places = torch.arange(len(inputs), device=ends.device)
    group = torch.searchsorted(ends.long(), places, right=True)
    count = len(ends)
    labels = torch.where(group < count, labels, -1)
    number = torch.where(labels < 0, labels, labels * count + group)
    rows = outer_sums(inputs, came.grad, number, came.batch * count)
    return rows.reshape(came.batch, count, *rows.shape[1:])


def outer_sums(left: Tensor, right: Tensor, labels: Tensor, count: int) -> Tensor:
    """``[count, rows, cols]``: sums of outer products over the places with the same label.

    Places are sorted by their label, so that nothing is padded.

    Args:
        left, right: ``[places, rows]`` and ``[places, cols]``.
        labels: ``[places]``, -1 for those that are left out.
        count: how many labels there are.
    """
    left, right = _wide(left), _wide(right)
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels + 1, minlength=count + 1).tolist()
    left, right = left[order], right[order]
    rows = left.new_zeros(count, left.shape[1], right.shape[1])
    start = sizes[0]
    for number, size in enumerate(sizes[1:]):
        if size:
            part = slice(start, start + size)
            torch.mm(left[part].mT, right[part], out=rows[number])
            start += size
    return rows


def _times_vector(came: Came) -> Found:
    """``matrix @ vector``, the vector being the weight."""
    matrix = came.use.node._saved_self
    if came.use.place != 1 or matrix is None:
        return None
    return summed(came.grad[:, None] * matrix, _widened(came.where, 2), came.batch, came.shape)


# -- lookups --------------------------------------------------------------------------------------


def _looked_up(came: Came) -> Found:
    """Rows of a table."""
    numbers = _row_numbers(came)
    if numbers is None or came.grad.shape[numbers.dim() :] != came.shape[1:]:
        return None
    axes = tuple(range(numbers.dim()))
    labels = labels_along(came.where, came.grad, axes, came.batch)
    if labels is None:
        return None
    labels, numbers = labels.flatten(), numbers.flatten().to(labels.device)
    kept = labels >= 0
    if came.use.name == "Embedding":
        kept &= numbers != came.use.node._saved_padding_idx
    grad = _wide(came.grad).reshape(len(numbers), -1)
    grad = torch.where(kept[:, None], grad, torch.zeros_like(grad))
    rows = grad.new_zeros(came.batch * came.shape[0], grad.shape[1])
    numbers = numbers % came.shape[0]
    rows.index_add_(0, labels.clamp(min=0) * came.shape[0] + numbers, grad)
    return rows.reshape(came.batch, *came.shape)


def _row_numbers(came: Came) -> Tensor | None:
    """The numbers of the rows that were looked up; None where it was something else."""
    node, name = came.use.node, came.use.name
    if name == "Embedding":
        return None if node._saved_scale_grad_by_freq else node._saved_indices
    if name == "IndexSelect":
        return node._saved_index if _signed(node._saved_dim) % len(came.shape) == 0 else None
    first, *more = node._saved_indices
    if first is None or first.dtype == torch.bool or any(each is not None for each in more):
        return None
    return first


# -- layers ---------------------------------------------------------------------------------------


def _convolved(came: Came) -> Found:
    """The examples become groups of one convolution."""
    node, batch = came.use.node, came.batch
    if not isinstance(came.where, ExampleLayout) or came.where.axis != 0 or came.use.place == 0:
        return None
    if came.use.place == 2:
        return summed(came.grad.flatten(2).sum(2), came.where, batch, came.shape)
    if node._saved_transposed:
        return None
    inputs, grad = (_as_channels(each, came) for each in (node._saved_input, came.grad))
    weight = node._saved_weight.repeat(batch, *(1,) * (node._saved_weight.dim() - 1))
    every = [
        [_signed(each) for each in getattr(node, f"_saved_{name}")]
        for name in ("stride", "padding", "dilation")
    ]
    extra = [_signed(each) for each in node._saved_output_padding]
    groups = int(node._saved_groups) * batch
    _, found, _ = torch.ops.aten.convolution_backward(
        grad, inputs, weight, None, *every, False, extra, groups, [False, True, False]
    )
    return found.reshape(batch, *came.shape)


def _as_channels(tensor: Tensor, came: Came) -> Tensor:
    """``[places, batch * channels, ...]``."""
    assert isinstance(came.where, ExampleLayout)
    return came.where.split(tensor, came.batch).movedim(0, 1).flatten(1, 2)


def _normalised(came: Came) -> Found:
    """``normalised * weight + bias`` over the last axes."""
    node = came.use.node
    found = came.grad
    if came.use.place == 1:
        found = found * (node._saved_input - node._saved_result1) * node._saved_result2
    return None if came.use.place == 0 else summed(found, came.where, came.batch, came.shape)


_LSTM = 2
"""What ``mkldnn_rnn_layer`` calls it."""


def _recurrent(
    use: WeightUse,
    grads: Sequence[Tensor | None],
    where: Sequence[Where | None],
    batch: int,
    shared: dict[Any, Any],
) -> Found:
    """An LSTM in one operation: its steps are walked over again, for the gradients of its gates."""
    node = use.node
    if node._saved_mode != _LSTM or node._saved_batch_sizes or use.place not in (1, 2, 3, 4):
        return None
    inputs = node._saved_input.detach()
    known = zip(grads, where, (ExampleLayout(1), ExampleLayout(0), ExampleLayout(0)), strict=False)
    if any(grad is not None and lies != own for grad, lies, own in known):
        return None
    if inputs.shape[1] != batch:
        return None
    if use.number not in shared:
        shared[use.number] = _gates_of(node, inputs, grads)
    gates, before = shared[use.number]
    if use.place > 2:
        return gates.sum(0)
    other = inputs if use.place == 1 else before
    return Factors(gates.movedim(1, 0), other.movedim(1, 0))


def _gates_of(node: Node, inputs: Tensor, grads: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The gradients of the gates before their activation, and the states before each step."""
    own, recurrent, *biases = (getattr(node, f"_saved_weight{n}").detach() for n in range(4))
    state, cell = (
        each.detach().reshape(inputs.shape[1], -1) for each in (node._saved_hx_, node._saved_cx_)
    )
    with torch.enable_grad():
        gates = torch.nn.functional.linear(inputs, own).requires_grad_()
        shift = biases[0] + biases[1] if node._saved_has_biases else None
        outputs, states = [], []
        steps = range(len(inputs))
        for step in reversed(steps) if node._saved_reverse else steps:
            states.append(state.detach())
            each = gates[step] + torch.nn.functional.linear(state, recurrent, shift)
            into, forget, new, out = each.chunk(4, 1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            outputs.append(state)
        if node._saved_reverse:
            outputs.reverse()
            states.reverse()
        every = [torch.stack(outputs), state, cell]
        both = zip(every, grads[:3], strict=True)
        there = [(each, grad.reshape(each.shape)) for each, grad in both if grad is not None]
        (found,) = torch.autograd.grad([o for o, _ in there], gates, [g for _, g in there])
    return found, torch.stack(states)


# -- labels ---------------------------------------------------------------------------------------


def labels_along(where: Where, grad: Tensor, axes: Sequence[int], batch: int) -> Tensor | None:
    """The example of each place of some axes; None where it depends on other axes as well."""
    shape = [grad.shape[axis] for axis in axes]
    if isinstance(where, ExampleLayout):
        if where.axis not in axes:
            return None
        own = axes.index(where.axis)
        numbers = torch.arange(batch, device=grad.device)
        return ExampleLayout(own, where.minor).spread(numbers, shape).expand(shape)
    others = [axis for axis in range(grad.dim()) if axis not in axes]
    if not others:
        return where
    if not where.numel():
        return where.new_full(shape, -1)
    most = where.amax(others, keepdim=True)
    if bool(((where != most) & (where >= 0)).any()):
        return None
    return most.reshape(shape)


def _spread(where: Where, shape: Sequence[int], batch: int, device: Any) -> Tensor:
    """The example of each element."""
    if isinstance(where, ExampleLayout):
        numbers = torch.arange(batch, device=device)
        return where.spread(numbers, shape).expand(tuple(shape))
    return where


def _widened(where: Where, axes: int) -> Where:
    """The same for a tensor with more axes at the end."""
    if isinstance(where, ExampleLayout):
        return where
    return where.reshape(*where.shape, *(1,) * (axes - where.dim()))


def _wide(tensor: Tensor) -> Tensor:
    """In float32, at least."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def _signed(number: int) -> int:
    return int(number) - 2**64 if int(number) >= 2**63 else int(number)


_FUNCTIONS: dict[str, Callable[[Came], Found]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Where", "MaskedFill"), _elementwise),
    **dict.fromkeys(("Cat", "Stack"), _concatenated),
    **dict.fromkeys(("Mm", "Addmm", "Bmm", "Baddbmm"), _product),
    "GroupedMm": _grouped,
    "Mv": _times_vector,
    **dict.fromkeys(("Embedding", "Index", "IndexSelect"), _looked_up),
    "Convolution": _convolved,
    "NativeLayerNorm": _normalised,
}
