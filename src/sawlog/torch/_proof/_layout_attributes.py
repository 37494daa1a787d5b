"""Attributes of operations that decide where examples are, and that may differ between batches.

Graphs of the same structure have the same operations, but may select other indices, roll by another
shift, or sum over another axis: ``h.sum(0)`` and ``h.sum(1)`` are the same node of autograd, with
another ``_saved_dim``. A plan holds for graphs whose attributes are those of its proof.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    BUILT_IN,
    Graph,
    Node,
    operation,
    shape_of,
    signed,
)
from sawlog.torch._graph._weight_uses import WeightUses

LayoutAttribute = tuple[int, tuple[str, ...]]
"""The number of a node, and the names of its attributes."""

_LOOKUPS = {"Embedding", "EmbeddingBag"}
_PRODUCTS = {"Mm", "Addmm", "Bmm", "Baddbmm"}
_MASKS = {"Mul", "Div", "Where", "MaskedFill"}

_AXES = ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "source_dim", "axis", "sumdim")
"""Attributes that are numbers of axes; they matter whatever the shapes are."""

_MORE = {"Roll": ("shifts",), "Rot90": ("k",), "AsStrided": ("size", "stride", "storage_offset")}
"""Further ones that always matter, by operation."""

_NUMBERS = {
    "alpha", "beta", "correction", "delta", "dropout", "dropout_p", "eps", "epsilon", "exponent",
    "grad_factor", "initial", "input_scale", "lambd", "lower", "margin", "max", "max_val",
    "maxnorm", "min", "min_val", "n", "negative_slope", "ord", "other", "p", "scalar", "scalars",
    "scale", "scales", "scales_d", "scales_h", "scales_w", "self", "threshold", "upper", "value",
    "weight",
}  # fmt: skip
"""Attributes that are numbers to compute with: whatever they are, examples stay where they are."""

_LENGTHS = {
    "C", "H", "HxW", "N", "W", "batch_sizes", "input_lengths", "keepdim", "max_k", "max_q",
    "max_seqlen_batch_k", "max_seqlen_batch_q", "normalized_shape", "output_size",
    "target_lengths",
}  # fmt: skip
"""Those that follow from shapes, as does what has ``_sym_`` in its name; lengths may differ.

All others that are not tensors matter where the axis could have the examples.
"""


def layout_attributes(
    graph: Graph, is_weight: Callable[[Node], bool], batch: int
) -> tuple[LayoutAttribute, ...]:
    """Return the attributes of a graph that decide where the examples are.

    Args:
        graph: the graph.
        is_weight: whether a node depends on parameters alone, which have no examples.
        batch: the number of examples.
    """
    found = []
    for number, node in enumerate(graph.nodes):
        if node.name() == ACCUMULATE:
            continue
        axes, ranges = _names(node.__class__)
        if ranges and not _may_have_examples(node, batch):
            ranges = ()
        if (axes or ranges) and not is_weight(node):
            found.append((number, axes + ranges))
    return tuple(found)


def values_at(graph: Graph, attributes: Sequence[LayoutAttribute]) -> Hashable:
    """Return the values of attributes in a graph of the same structure."""
    nodes = graph.nodes
    return tuple([getattr(nodes[number], name) for number, names in attributes for name in names])


@functools.cache
def _names(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the attributes of a kind of node: of axes, and of ranges."""
    if kind not in BUILT_IN:
        return (), ()
    name = kind.__name__.partition("Backward")[0]
    always = (*_AXES, *_MORE.get(name, ()))
    every = [
        each
        for each in dir(kind)
        if each.startswith("_saved_") and not hasattr(kind, f"_raw{each}")
    ]
    axes = tuple(each for each in every if each.removeprefix("_saved_") in always)
    ranges = tuple(each for each in every if each not in axes and not _is_free(each))
    return axes, ranges


def _is_free(attribute: str) -> bool:
    """Return whether an attribute may differ between batches without moving examples."""
    name = attribute.removeprefix("_saved_")
    return name in _NUMBERS or name in _LENGTHS or "_sym_" in name


def _may_have_examples(node: Node, batch: int) -> bool:
    """Return whether a node works along an axis as long as the batch, or a multiple of it."""
    child = node.next_functions[0]
    dim = getattr(node, "_saved_dim", None)
    if child[0] is None or dim is None:
        return True
    shape, dims = shape_of(child), dim if isinstance(dim, tuple) else (dim,)  # several in an FFT
    if not shape or not dims:
        return True
    return any(shape[signed(each) % len(shape)] % batch == 0 for each in dims)


def may_join_examples(node: Node, finder: WeightUses, batch: int) -> bool:
    """Return whether the values of a constant may decide which examples a node picks or joins.

    Rows of a tensor are looked up, a product or a convolution sums over the examples, attention is
    over them, pairs of them are masked, or a part of a tensor is written: in another batch, other
    examples may be meant.
    """
    name = operation(node)
    if name in _LOOKUPS:
        return not finder.is_weight(node.next_functions[0][0])
    if name in _PRODUCTS:
        return _contracts_examples(node, finder, batch)
    if name.startswith(("ScaledDotProduct", "Convolution")):  # over what follows the first axis
        return shape_of((node, 0))[0] % batch != 0
    if name.startswith("Sparse"):
        return True
    if name in _MASKS:
        return _masks_pairs(node, finder, batch)
    if name == "torch::autograd::CopySlices":
        return any(size % batch == 0 for size in shape_of((node, 0))) and not finder.is_weight(node)
    return False


def _contracts_examples(node: Node, finder: WeightUses, batch: int) -> bool:
    """Return whether a product without weights may be a sum over the examples."""
    one, two = node.next_functions[-2:]
    if any(edge[0] is not None and finder.is_weight(edge[0]) for edge in (one, two)):
        return False
    if finder.is_with_buffer(node):
        return False
    shape = shape_of((node, 0))
    if len(shape) == 3 and shape[0] % batch == 0:
        return False  # one product for each example
    if one[0] is None:
        return shape_of(two)[-2] % batch == 0
    return two[0] is not None or shape_of(one)[-1] == batch


def _masks_pairs(node: Node, finder: WeightUses, batch: int) -> bool:
    """Return whether a tensor of the examples is repeated for each example, and then masked."""
    shape = shape_of((node, 0))
    axes = [axis - len(shape) for axis, size in enumerate(shape) if size == batch]
    if len(axes) < 2:
        return False
    return any(
        not finder.is_weight(edge[0])
        and any(-axis > len(shape_of(edge)) or shape_of(edge)[axis] == 1 for axis in axes)
        for edge in node.next_functions
        if edge[0] is not None
    )
