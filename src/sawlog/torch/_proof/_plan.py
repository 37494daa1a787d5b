"""How the gradients of a batch are taken, and the proof that they are right.

For a graph of a structure that was not seen before, the loss is walked back several times: as it
is, and with a power of two for each example. That tells in which order the examples lie in every
gradient. The resulting rows, multiplied by the same powers and summed, must be the gradient
of the parameters in that pass. Where a layer rule does not give that, the operations that use
the parameter are differentiated example by example; where that does not either, or where examples
are mixed, it is an error. A structure whose examples always lie in the same way is proven once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.errors import ArgumentError, CaptureError
from sawlog.factored import Dense, OneHot, Pair, gradient, rows, vector
from sawlog.run_files._blocks import Block
from sawlog.torch._graph._autograd_graph import Graph, Node, operation, shape_of
from sawlog.torch._graph._example_layout import (
    Codes,
    ExampleLayout,
    candidates,
    codes,
    fits,
    labels_of,
    layout_of,
)
from sawlog.torch._graph._example_sums import ExampleSums
from sawlog.torch._graph._operations import WeightUse, Where, is_of_inputs, labels_along
from sawlog.torch._graph._weight_uses import WeightUses
from sawlog.torch._hooks._hooks import Hooks, LayerCall, last_edges
from sawlog.torch._layers import GeneralRule, Use
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._passes import Passes
from sawlog.torch._rows._nonfinite import check_finite
from sawlog.torch._rows._row_builder import RowBuilder

_PICKS = {
    "Index", "IndexSelect", "Gather", "IndexPut", "IndexPutImpl", "IndexAdd", "IndexCopy",
    "Scatter", "ScatterAdd", "ScatterReduce", "MaskedSelect", "MaskedScatter", "Take", "Sort",
    "Topk", "IndexFill", "Put", "TakeAlongDim", "GroupedMm", "Unique",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PlannedUse:
    """A use of weights that is differentiated example by example.

    Args:
        number, place: of the node in the graph, and of its input.
        where: how the examples lie in each of its outputs.
        parameters: the names of those whose gradients are taken there.
    """

    number: int
    place: int
    where: tuple[Where | None, ...]
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the gradients of batches of one structure are taken.

    Args:
        layouts: how the examples lie in the outputs of calls, by their numbers.
        by_rule: the names of the blocks that layer rules give.
        uses: for the other blocks.
        picks: numbers of nodes that pick by values, so that they could pick otherwise.
        ends: which of the edges that are watched a backward pass need only walk to.
        even: the loss is one tensor with a row for each example, joined by one operation.
    """

    layouts: Mapping[int, ExampleLayout]
    by_rule: frozenset[str]
    uses: tuple[PlannedUse, ...]
    picks: tuple[int, ...]
    ends: tuple[int, ...] = ()
    even: bool = False

    def holds_for(self, graph: Graph, batch: int, axis: int) -> bool:
        """Whether a graph of the structure picks as the one that was proven."""
        return all(_picks_inside(graph.nodes[each], batch, axis) for each in self.picks)


def _picks_inside(node: Node, batch: int, axis: int) -> bool:
    """Whether what a node picks for an example is of that example, whatever the values."""
    name = operation(node)
    if name in ("IndexSelect", "Gather"):
        dim = int(node._saved_dim)
        dim = dim - 2**64 if dim >= 2**63 else dim
        return dim % max(1, len(shape_of((node, 0)))) != axis
    if name == "Index" and axis == 0:
        first = node._saved_indices[0]
        if first is None:
            return True
        if first.dtype == torch.bool or first.numel() != batch:
            return False
        return torch.equal(first.flatten(), torch.arange(batch, device=first.device))
    return False


_REMEDY = (
    "Probably the loss compares examples (contrastive losses do), something is normalised over the "
    "batch, or the axis of the examples is another one. Hint: watch(model, batch_axis=1) where the "
    "sequence comes first; another batch size, where the positions of the model are a multiple of "
    "it; leave the parameter out by names=; batches of one example."
)


class MixedError(CaptureError):
    """Examples are mixed, or look like it because of rounding."""


class MeasuredGradients:
    """The gradients of calls and of operations in all passes over one graph.

    Args:
        every: the factors of the examples.
        parameters: those whose gradients are compared.
    """

    def __init__(self, every: Codes, parameters: Mapping[str, Tensor]) -> None:
        self.codes, self._parameters = every, parameters
        self.calls: dict[int, LayerCall] = {}
        self.of_calls: dict[int, list[Tensor]] = {}
        self.of_nodes: dict[int, list[tuple[Tensor | None, ...]]] = {}
        self.totals: list[dict[str, Tensor | None]] = []

    def run(
        self,
        passes: Passes,
        hooks: Hooks,
        graph: Graph,
        uses: Sequence[WeightUse],
        more: Mapping[int, Node],
    ) -> None:
        """Walk back once as it is, and once for each code; ``more`` are other nodes to record."""
        nodes = {use.number: use.node for use in uses} | dict(more)
        handles = [node.register_prehook(self._recorder(number)) for number, node in nodes.items()]
        edges = [*hooks.edges, *(GradientEdge(*use.weight) for use in uses)]
        try:
            with hooks.listening(self._record):
                passes.plain(last_edges(graph.nodes[: graph.roots], edges) or edges)
                for factors in self.codes.factors:
                    found = passes.weighted(list(self._parameters.values()), factors)
                    self.totals.append(dict(zip(self._parameters, found, strict=True)))
                    check_finite(self.totals[-1])
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, call: LayerCall, grad: Tensor) -> None:
        self.calls[call.number] = call
        self.of_calls.setdefault(call.number, []).append(grad)

    def _recorder(self, number: int) -> Any:
        def record(grads: tuple[Tensor | None, ...]) -> None:
            there = tuple(None if grad is None else grad.detach() for grad in grads)
            self.of_nodes.setdefault(number, []).append(there)

        return record


@dataclasses.dataclass(frozen=True)
class Proof:
    """What a batch of a new structure gave: rows for all blocks, and the plan for others like it.

    Args:
        pairs: the factors of each use of each block, by the name of the block.
        layouts: of the calls.
        plan: None where it is good for this batch alone.
    """

    pairs: dict[str, list[Pair]]
    layouts: dict[int, ExampleLayout]
    calls: dict[int, tuple[LayerCall, Tensor]]
    plan: Plan | None


class Prover:
    """Takes the gradients of one batch, and proves them.

    Args:
        watched: what is watched.
        rows: what projects pairs.
        graph: of the loss.
        batch, axis: how many examples there are, and their axis where nothing else tells.
    """

    def __init__(
        self, watched: Watched, rows: RowBuilder, graph: Graph, batch: int, axis: int
    ) -> None:
        self._watched, self._rows, self._graph = watched, rows, graph
        self._batch, self._axis = batch, axis
        self._measured = MeasuredGradients(codes(1, set()), {})
        self._uses: dict[str, list[WeightUse]] = {}
        self._lasting = True

    def prove(self, passes: Passes, hooks: Hooks) -> Proof:
        """Take the gradients of all blocks.

        Args:
            passes: walks back from the loss.
            hooks: on the modules.

        Raises:
            CaptureError: the gradients of a parameter cannot be told apart, or are mixed.
        """
        structure, rounded = self._graph.structure, self._watched.rounded
        if structure not in rounded:
            try:
                return self._proven(passes, hooks)
            except MixedError:
                rounded.add(structure)
        return self._proven(passes, hooks)

    def _proven(self, passes: Passes, hooks: Hooks) -> Proof:
        self._lasting = True
        layouts, found, size = self._measure(passes, hooks)
        measured, by_rule = self._measured, set(found)
        planned = self._by_operations(found, by_rule, size)
        plan = Plan(layouts, frozenset(by_rule), planned, self._picks())
        lasting = self._lasting and plan.holds_for(self._graph, self._batch, self._axis)
        calls = {n: (call, measured.of_calls[n][0]) for n, call in measured.calls.items()}
        return Proof(found, layouts, calls, plan if lasting else None)

    def _measure(
        self, passes: Passes, hooks: Hooks
    ) -> tuple[dict[int, ExampleLayout], dict[str, list[Pair]], float]:
        """Walk back, find the uses of all parameters, and what the rules give.

        Blocks that no rule covers are inspected further: two passes with different factors tell for
        sure where examples lie in no order, and whether an operation with a constant is of one
        example or of all.
        """
        structure, watched = self._graph.structure, self._watched
        of_examples: set[Node] = set()
        dtypes = {meta.dtype for node in self._graph.nodes for meta in node._input_metadata}
        while True:
            finder = WeightUses(self._graph, self._batch, of_examples, watched.buffers)
            uses = {name: finder.of(each) for name, each in watched.parameters.items()}
            count = 2 if structure in watched.scattered else 1
            every = codes(self._batch, dtypes, count, powers=structure in watched.rounded)
            self._uses = {
                name: [use for use in each if use.node not in finder.unsure]
                for name, each in uses.items()
            }
            self._measured = MeasuredGradients(every, watched.parameters)
            self._measured.run(
                passes,
                hooks,
                self._graph,
                [use for each in uses.values() for use in each],
                finder.numbers(finder.unsure),
            )
            layouts = self._layouts()
            self._check_axis(layouts)
            found, size = self._given(layouts)
            rest = [block for block in watched.blocks if block.name not in found]
            if not rest:
                return layouts, found, size
            left = [use for block in rest for name in block.parameters for use in uses[name]]
            numbers = finder.numbers(finder.unsure)
            more = {node for number, node in numbers.items() if self._is_of_examples(number)}
            if structure not in watched.scattered and (
                more or self._is_scattered(left, finder.unsure)
            ):
                watched.scattered.add(structure)
            elif more:
                of_examples |= more
            else:
                self._check_terms(passes, finder, rest)
                return layouts, found, size

    def _check_terms(self, passes: Passes, finder: WeightUses, rest: Sequence[Block]) -> None:
        """A tensor of the loss that has its examples apart is not computed of parameters alone."""
        if self._batch > 1 and any(finder.is_weight(edge[0]) for edge in passes.edges):
            raise MixedError(
                f"The parameter {rest[0].name!r} is joined with something of the examples by an "
                "operation whose output mixes examples: what one example does there changes the "
                f"loss of others, so that they have no gradients of their own. {_REMEDY}"
            )

    def _given(self, layouts: Mapping[int, ExampleLayout]) -> tuple[dict[str, list[Pair]], float]:
        """The factors of those blocks for which the rules are right, and the size of gradients."""
        size = self._size()
        pairs = self._by_rules(layouts)
        found = {}
        for block in self._watched.blocks:
            each = pairs[block.name]
            if each is not None and self._holds(block, each, size):
                found[block.name] = each
        return found, size

    def _is_scattered(self, uses: Sequence[WeightUse], unsure: Set[Node]) -> bool:
        """Whether examples lie in no order at a use of a parameter."""
        if self._batch == 1:
            return False
        for number in {use.number for use in uses if use.node not in unsure}:
            plain, *coded = self._measured.of_nodes.get(number, [()])
            for place, grad in enumerate(plain):
                there = [each[place] for each in coded]
                if grad is not None and all(each is not None for each in there):
                    known = [each for each in there if each is not None]
                    every = self._measured.codes
                    if layout_of(grad, known, every, self._axis, self._batch) is None:
                        return True
        return False

    def _is_of_examples(self, number: int) -> bool:
        """Whether it is told of each element of an output to which example it belongs."""
        if number not in self._measured.of_nodes or self._batch == 1:
            return False
        plain, *coded = self._measured.of_nodes[number]
        for place, grad in enumerate(plain):
            if grad is None or not bool(grad.any()):
                continue
            there = [each[place] for each in coded]
            if any(each is None for each in there):
                return False
            known = [each for each in there if each is not None]
            if labels_of(grad, known, self._measured.codes) is None:
                return False
        return any(grad is not None and bool(grad.any()) for grad in plain)

    def _picks(self) -> tuple[int, ...]:
        nodes = enumerate(self._graph.nodes)
        return tuple(number for number, node in nodes if operation(node) in _PICKS)

    # -- by the rules of layers -------------------------------------------------------------------

    def _layouts(self) -> dict[int, ExampleLayout]:
        found = {}
        for number, (plain, *coded) in self._measured.of_calls.items():
            axis = self._axis
            layout = layout_of(plain, coded, self._measured.codes, axis, self._batch)
            if layout is not None:
                found[number] = layout
                others = [
                    each
                    for each in candidates(plain.shape, axis, self._batch)
                    if each != layout and fits(each, plain, coded, self._measured.codes)
                ]
                self._lasting = self._lasting and (not others or self._batch == 1)
        return found

    def _check_axis(self, layouts: Mapping[int, ExampleLayout]) -> None:
        """Where the inputs of the model have examples, the loss must have the same ones.

        The examples of the loss are known by the size of an axis, and another axis may have
        the same size: with as many positions as examples, positions look like examples.
        """
        if self._batch == 1:
            return
        told: set[int] = set()
        for number, (plain, *coded) in self._measured.of_calls.items():
            call = self._measured.calls[number]
            if not call.of_inputs or not self._has_examples(plain):
                continue
            name, layout = call.unit.name or type(call.unit.module).__name__, layouts.get(number)
            if layout is not None and layout.axis != self._axis:
                raise self._unclear_axis(name, plain)
            if layout is None:
                others = self._others(plain, labels_of(plain, coded, self._measured.codes))
                if len(others) > 1:
                    raise self._other_order(repr(name))
                told |= others
            if len(told) > 1:
                raise self._unclear_axis(name, plain)

    def _has_examples(self, grad: Tensor) -> bool:
        """Whether a gradient at the inputs has an axis of the examples, where it is expected."""
        inside = grad.dim() > self._axis + 1  # the last axis has features
        return inside and grad.shape[self._axis] == self._batch

    def _others(self, grad: Tensor, labels: Tensor | None) -> set[int]:
        """The examples of a gradient, if they are not along the axis of the examples."""
        order = None if labels is None else labels_along(labels, grad, (self._axis,), self._batch)
        if order is None:
            return set()
        there = order >= 0
        right = torch.arange(self._batch, device=order.device)
        wrong = bool((there & (order != right)).any())
        return set(order[there].tolist()) if wrong else set()

    def _unclear_axis(self, name: str, grad: Tensor) -> CaptureError:
        return CaptureError(
            f"The layer {name!r} has the inputs of the model, and {self._batch} examples along "
            f"axis {self._axis} of its output {tuple(grad.shape)}; in the loss, the examples seem "
            "to be along another axis, which is as long. Probably there are as many positions as "
            "examples, and the loss has positions first. Hint: another batch size, or another "
            "length; or put the axis of the examples first in the loss; watch(model, batch_axis=1) "
            "where inputs have positions first."
        )

    def _by_rules(self, layouts: Mapping[int, ExampleLayout]) -> dict[str, list[Pair] | None]:
        """The factors of each block, None where a call of it has no layout."""
        found: dict[str, list[Pair] | None] = {block.name: [] for block in self._watched.blocks}
        for number, (grad, *_) in self._measured.of_calls.items():
            call = self._measured.calls[number]
            pairs = self._pairs(call, grad, layouts.get(number))
            for share in call.unit.shares:
                there = found[share.block.name]
                if pairs is None or there is None:
                    found[share.block.name] = None
                else:
                    there.append(share.of(pairs[share.part.name]))
        return found

    def _pairs(
        self, call: LayerCall, grad: Tensor, layout: ExampleLayout | None
    ) -> Mapping[str, Pair] | None:
        if layout is None or isinstance(call.unit.rule, GeneralRule):
            return None
        try:
            with torch.no_grad():
                return pairs_of(call, grad, self._batch, layout)
        except ArgumentError:
            return None

    def _size(self) -> float:
        """How great gradients are in this batch: that of the greatest parameter."""
        every = [grad for grads in self._measured.totals for grad in grads.values()]
        return max((float(grad.double().norm()) for grad in every if grad is not None), default=0.0)

    def _holds(self, block: Block, pairs: Sequence[Pair], size: float) -> bool:
        """Whether rows, weighted and summed, are the gradients of all passes."""
        tolerance = self._precision(block)
        small = [self._rows.projected(block, pair) for pair in pairs]
        rounding = 32 * sum(_rounding(pair) for pair in small)
        for factors, grads in zip(self._measured.codes.factors, self._measured.totals, strict=True):
            want = self._whole(block, grads)
            got = torch.zeros_like(want)
            for pair in small:
                got += weighted_sum(pair, factors).double().cpu()
            apart = float((got - want).norm())
            if not apart <= tolerance * (float(want.norm()) + 0.01 * size) + rounding:
                return False
        return True

    def _precision(self, block: Block) -> float:
        """How far rows may be off, by the least precise gradient they are made of."""
        dtypes = [self._watched.parameters[name].dtype for name in block.parameters]
        for number, (grad, *_) in self._measured.of_calls.items():
            if any(s.block.name == block.name for s in self._measured.calls[number].unit.shares):
                dtypes.append(grad.dtype)
        for use in (use for name in block.parameters for use in self._uses[name]):
            grads = self._measured.of_nodes.get(use.number, [()])[0]
            dtypes += [grad.dtype for grad in grads if grad is not None]
        return max(map(precision_of, dtypes))

    def _whole(self, block: Block, grads: Mapping[str, Tensor | None]) -> Tensor:
        """The gradient of a block in a pass, projected."""
        return projected_gradient(self._rows, block, grads, self._watched.parameters)

    # -- by operations ----------------------------------------------------------------------------

    def _by_operations(
        self, found: dict[str, list[Pair]], by_rule: set[str], size: float
    ) -> tuple[PlannedUse, ...]:
        """Add the gradients of all blocks that no rule gave."""
        rest = [block for block in self._watched.blocks if block.name not in by_rule]
        if self._batch == 1:
            found.update((block.name, self._of_one(block)) for block in rest)
            return ()
        wanted: dict[tuple[int, int], tuple[WeightUse, list[str]]] = {}
        for block in rest:
            for name in block.parameters:
                for use in self._uses[name]:
                    wanted.setdefault((use.number, use.place), (use, []))[1].append(name)
        planned, sums = [], ExampleSums(self._watched.parameters, self._batch)
        for use, names in wanted.values():
            if use.number not in self._measured.of_nodes:
                continue  # the loss does not reach it
            where = self._where(use, names)
            planned.append(PlannedUse(use.number, use.place, where, tuple(names)))
            sums.add(use, self._measured.of_nodes[use.number][0], where, names)
        for block in rest:
            matrix = summed_matrix(block, sums, self._watched.parameters)
            found[block.name] = [] if matrix is None else [pair_of(matrix)]
            if not self._holds(block, found[block.name], size):
                raise CaptureError(
                    f"The gradients of the examples for {block.name!r} do not add up to that of "
                    "the batch, so they are not logged. Probably a hook changes gradients, or the "
                    "backward pass draws random numbers. Hint: leave it out by names=."
                )
        return tuple(planned)

    def _of_one(self, block: Block) -> list[Pair]:
        """The gradient of the only example, which is that of the batch."""
        factor = float(self._measured.codes.factors[0][0])
        totals = self._measured.totals[0]
        sums = ExampleSums(self._watched.parameters, 1)
        for name in block.parameters:
            grad = totals[name]
            if grad is not None:
                sums.give(name, (grad / factor)[None])
        matrix = summed_matrix(block, sums, self._watched.parameters)
        if matrix is None:
            return []
        self._lasting = False  # a plan would not know where to take it
        return [pair_of(matrix)]

    def _where(self, use: WeightUse, names: Sequence[str]) -> tuple[Where | None, ...]:
        """How the examples lie in the outputs of an operation.

        Raises:
            CaptureError: they are mixed.
        """
        plain, *coded = self._measured.of_nodes[use.number]
        found: list[Where | None] = []
        for place, grad in enumerate(plain):
            if grad is None:
                found.append(None)
                continue
            other = [each[place] for each in coded]
            if any(each is None for each in other):
                raise self._mixed(use, names)
            there = [each for each in other if each is not None]
            layout = layout_of(grad, there, self._measured.codes, self._axis, self._batch)
            if layout is None:
                labels = labels_of(grad, there, self._measured.codes)
                if labels is None:
                    raise self._mixed(use, names)
                self._check_order(use, grad, labels, names)
                found.append(labels)
                self._lasting = False
            else:
                inputs = layout.axis != self._axis and is_of_inputs(use)
                if inputs and self._has_examples(grad) and self._batch > 1:
                    raise self._unclear_axis(names[0], grad)
                found.append(layout)
        return tuple(found)

    def _check_order(
        self, use: WeightUse, grad: Tensor, labels: Tensor, names: Sequence[str]
    ) -> None:
        """Ids are in the order of the inputs, so the inputs must be in the order of the loss."""
        if not is_of_inputs(use) or not self._has_examples(grad):
            return
        if len(self._others(grad, labels)) > 1:  # one alone: it is a table for all of them
            raise self._other_order(f"{names[0]!r}, {use.node.name()}")

    def _other_order(self, where: str) -> CaptureError:
        return CaptureError(
            f"At the inputs of the model ({where}) the examples are in "
            "another order than in the loss, so it is not clear which gradient belongs to which "
            "id. Probably they are sorted inside of the model, and labels too, or packed. Hint: "
            "put inputs, labels and ids into that order before the batch; or let the outputs of "
            "the model have the order of its inputs."
        )

    def _mixed(self, use: WeightUse, names: Sequence[str]) -> MixedError:
        return MixedError(
            f"The parameter {names[0]!r} is used by an operation ({use.node.name()}) whose output "
            "mixes examples: what one example does there changes the loss of others, so that they "
            f"have no gradients of their own. {_REMEDY}"
        )


def pairs_of(
    call: LayerCall, grad: Tensor, batch: int, layout: ExampleLayout
) -> Mapping[str, Pair]:
    """What the rule of a module says of one call."""
    use = Use(call.args, call.kwargs, grad, batch, layout.axis, layout.minor)
    return call.unit.rule.pairs(call.unit.module, use)


def matrix_of(block: Block, parts: Mapping[str, Tensor]) -> Tensor:
    """The gradients of the parameters of a block, as ``[batch, *block.shape]``."""
    weight, *bias = (parts[name] for name in block.parameters)
    if not bias:
        return weight.reshape(len(weight), *block.shape)
    *groups, rows_, cols = block.shape
    if block.inputs == "left":
        shapes, axis = ((rows_ - 1, cols), (1, cols)), -2
    else:
        shapes, axis = ((rows_, cols - 1), (rows_, 1)), -1
    both = zip((weight, bias[0]), shapes, strict=True)
    return torch.cat([part.reshape(len(part), *groups, *shape) for part, shape in both], axis)


def pair_of(matrix: Tensor) -> Pair:
    """Whole gradients ``[batch, rows, cols]``, or with groups before the rows, as a pair."""
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    if matrix.dim() == 3:
        return vector(matrix[..., 0]) if matrix.shape[2] == 1 else rows(matrix)
    batch, groups, size, _ = matrix.shape
    one = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    left = one[None, :, None].expand(batch, size, groups, size)
    return Pair(Dense(left), Dense(matrix.transpose(1, 2)))


def weighted_sum(pair: Pair, factors: Tensor) -> Tensor:
    """The sum over examples of their gradients times factors, which needs no gradients."""
    dense = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(dense, Dense)
    pair = pair.scaled(factors.to(dense.array))
    total: Tensor = gradient(Pair(_as_one(pair.left), _as_one(pair.right)))[0]
    return total


def _as_one(factor: Dense | OneHot) -> Dense | OneHot:
    """All positions of all examples as those of one."""
    if isinstance(factor, Dense):
        return Dense(factor.array.reshape(1, -1, *factor.array.shape[2:]), factor.one)
    weights = None if factor.weights is None else factor.weights.reshape(1, -1)
    return OneHot(factor.ids.reshape(1, -1), factor.size, weights)


def _rounding(pair: Pair) -> float:
    """How far a sum of products may be off by rounding alone."""
    sides = [each.array for each in (pair.left, pair.right) if isinstance(each, Dense)]
    size = 1.0
    for array in sides:
        size *= float(array.double().norm())
    return size * float(torch.finfo(sides[0].dtype).eps)


def projected_gradient(
    rows: RowBuilder,
    block: Block,
    grads: Mapping[str, Tensor | None],
    parameters: Mapping[str, Tensor],
) -> Tensor:
    """The gradient of a block, given those of its parameters, projected as its rows are."""
    parts = {}
    for name in block.parameters:
        grad = grads[name]
        parts[name] = (torch.zeros_like(parameters[name]) if grad is None else grad)[None].detach()
    pair = pair_of(matrix_of(block, parts))
    return gradient(rows.projected(block, pair))[0].double().cpu()


def summed_matrix(
    block: Block, sums: ExampleSums, parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """The gradients of a block, ``[batch, *block.shape]``; None where it has none."""
    every = {name: sums.rows(name) for name in block.parameters}
    there = next((rows for rows in every.values() if rows is not None), None)
    if there is None:
        return None
    parts = {
        name: there.new_zeros(len(there), *parameters[name].shape) if rows is None else rows
        for name, rows in every.items()
    }
    return matrix_of(block, parts)


def precision_of(dtype: torch.dtype) -> float:
    """How far sums of gradients of a dtype may be off, relative to what is summed."""
    return {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 5e-2)
