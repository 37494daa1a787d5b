"""Take the gradients of a batch of a new structure, and prove that they are right.

For a graph of a structure that was not seen before, the backward pass runs several times: as it is,
and with a different factor for each example. The ratios tell where the examples are in every
gradient. The resulting rows, multiplied by the same factors and summed, must equal the gradient
of the parameters in that pass. Where a layer rule does not pass this test, the operations that use
the parameter are differentiated example by example. If that does not pass it either, or if examples
are mixed, it is an error. A structure in which the examples always have the same layout, and in
which the gradient of every path was seen, is proven once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sawlog.errors import ArgumentError, MixedExamplesError
from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._graph._autograd_graph import Edge, Graph, Node
from sawlog.torch._graph._example_layout import ExampleLayout, codes
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._graph._weight_uses import WeightUses
from sawlog.torch._hooks._hooks import Hooks, LayerCall
from sawlog.torch._layers import GeneralRule
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import pairs_of
from sawlog.torch._proof._example_axis import ExampleAxis
from sawlog.torch._proof._known_origins import known_origins, once_for_all
from sawlog.torch._proof._layout_attributes import LayoutAttribute, layout_attributes
from sawlog.torch._proof._measured_gradients import MeasuredGradients
from sawlog.torch._proof._mixed_examples import mixed_in_loss
from sawlog.torch._proof._operation_rows import UnequalSumsError, operation_rows, single_rows
from sawlog.torch._proof._passes import Passes
from sawlog.torch._proof._plan import Plan, PlannedUse, norms_of, picks_of
from sawlog.torch._proof._row_check import RowCheck
from sawlog.torch._proof._summands import Summands, has_every_example, is_zero
from sawlog.torch._proof._use_layouts import UseLayouts
from sawlog.torch._rows._row_builder import RowBuilder


@dataclasses.dataclass(frozen=True)
class Proof:
    """The rows of a batch of a new structure, and the plan for others like it.

    Args:
        pairs: the factors of each use of each block, by the name of the block.
        layouts: where the examples are in the outputs of calls, by number.
        calls: the layer calls by number, each with the gradient of its output.
        plan: None if it holds for this batch alone.
        attributes: those of the graph whose values the plan depends on.
        sides: the side of the inputs in each use of the blocks that layer rules cover.
        outputs: the outputs of calls, by number, and of operations, by edge, in which it is certain
            which elements belong to which example.
        alive: whether every operation had a gradient, and every example in each of ``outputs``.
    """

    pairs: dict[str, list[Pair]]
    layouts: dict[int, ExampleLayout]
    calls: dict[int, tuple[LayerCall, Tensor]]
    plan: Plan | None
    attributes: tuple[LayoutAttribute, ...]
    sides: dict[str, list[str]]
    outputs: Mapping[int | Edge, ExampleLayout]
    alive: bool

    def uses_of(self, block: Block) -> Iterator[tuple[Pair, str]]:
        """Yield the factors of each use of a block, and which side has the inputs."""
        pairs = self.pairs[block.name]
        sides = self.sides.get(block.name, [block.inputs] * len(pairs))
        return zip(pairs, sides, strict=True)


@dataclasses.dataclass(frozen=True)
class _Measurement:
    """Gradients that were measured, and what they show."""

    measured: MeasuredGradients
    finder: WeightUses
    uses: Mapping[str, Sequence[WeightUse]]
    axis: ExampleAxis
    check: RowCheck
    layouts: dict[int, ExampleLayout]
    by_rule: dict[str, list[Pair]]


class Prover:
    """Takes the gradients of one batch, and proves them.

    Args:
        watched: the layers.
        rows: projects pairs.
        graph: the graph of the loss.
        batch: the number of examples.
        axis: the axis of the examples, where gradients do not show it.
    """

    def __init__(
        self, watched: Watched, rows: RowBuilder, graph: Graph, batch: int, axis: int
    ) -> None:
        self._watched, self._rows, self._graph = watched, rows, graph
        self._batch, self._axis = batch, axis
        self._lasting = True
        """Whether the proof holds for further batches of the structure, so that a plan is made."""

    def prove(self, passes: Passes, hooks: Hooks) -> Proof:
        """Take the gradients of all blocks.

        Args:
            passes: runs backward passes from the loss.
            hooks: on the modules.

        Raises:
            CaptureError: the examples of a gradient cannot be separated, or are mixed.
        """
        structure, rounded = self._graph.structure, self._watched.rounded
        if structure not in rounded:
            try:
                return self._proven(passes, hooks)
            except (MixedExamplesError, UnequalSumsError):
                rounded.add(structure)
        return self._proven(passes, hooks)

    def _proven(self, passes: Passes, hooks: Hooks) -> Proof:
        self._lasting = True
        found = self._measure(passes, hooks)
        pairs = dict(found.by_rule)
        if self._batch == 1:  # as in other batches, so that statistics do not depend on the size
            for number in once_for_all(self._watched, hooks.recorder, self._batch):
                if number in found.measured.calls:
                    shares = found.measured.calls[number].unit.shares
                    self._watched.by_operation.update(share.block.name for share in shares)
            pairs = {n: each for n, each in pairs.items() if n not in self._watched.by_operation}
        planned: tuple[PlannedUse, ...] = ()
        rest = [block for block in self._watched.blocks if block.name not in pairs]
        if self._batch == 1:
            own = {block.name: single_rows(block, self._watched, found.measured) for block in rest}
            self._lasting = self._lasting and not any(own.values())  # a plan could not take them
        else:
            self._watched.by_operation.update(block.name for block in rest)
            layouts = UseLayouts(found.axis)
            own, planned = operation_rows(
                rest, self._watched, found.uses, layouts, found.measured, self._batch, found.check
            )
            self._lasting = self._lasting and layouts.ordered
        picks = picks_of(self._graph, found.finder, self._batch)
        plan = Plan(found.layouts, frozenset(pairs), planned, picks)
        lasting = self._lasting and plan.holds_for(self._graph, self._batch, self._axis)
        measured = found.measured
        plan = dataclasses.replace(plan, zeros=measured.zeros, norms=norms_of(self._graph))
        calls = {n: (call, measured.of_calls[n][0]) for n, call in measured.calls.items()}
        attributes = layout_attributes(self._graph, found.finder.is_weight, self._batch)
        sides = {name: self._sides(name, measured) for name in pairs}
        outputs, alive = self._outputs(found, planned)
        plan_if = plan if lasting else None
        return Proof(pairs | own, found.layouts, calls, plan_if, attributes, sides, outputs, alive)

    def _outputs(
        self, found: _Measurement, planned: Sequence[PlannedUse]
    ) -> tuple[dict[int | Edge, ExampleLayout], bool]:
        """Return the outputs in which the gradient shows for certain where the examples are.

        Also return whether nothing had a gradient of zero.
        """
        axis, measured = found.axis, found.measured
        outputs: dict[int | Edge, ExampleLayout] = {}
        alive = not measured.zeros
        for number, own in found.layouts.items():
            arrived = measured.of_calls[number][0]
            if number not in axis.unsure and not is_zero([arrived]):
                outputs[number] = own
                alive = alive and has_every_example(arrived, own, self._batch)
        for use in planned:
            plain, *coded = measured.of_nodes[use.number]
            for place, layout in enumerate(use.where):
                grad, others = plain[place], [each[place] for each in coded]
                there = [each for each in others if each is not None]
                if grad is None or not isinstance(layout, ExampleLayout) or is_zero([grad]):
                    continue
                if len(there) == len(others) and axis.is_only(layout, grad, there):
                    outputs[self._graph.nodes[use.number], place] = layout
                    alive = alive and has_every_example(grad, layout, self._batch)
        return outputs, alive

    def _measure(self, passes: Passes, hooks: Hooks) -> _Measurement:
        """Run backward passes, find the uses of all parameters, and apply the layer rules.

        Blocks that no rule covers are inspected further. A second pass with different factors
        shows for certain where examples have no layout, and whether an operation with a constant is
        of one example or of all.
        """
        structure, watched = self._graph.structure, self._watched
        of_examples: set[Node] = set()
        dtypes = {meta.dtype for node in self._graph.nodes for meta in node._input_metadata}
        known = known_origins(watched, self._graph, hooks.recorder, self._batch)
        while True:
            finder = WeightUses(
                self._graph,
                self._batch,
                of_examples,
                watched.buffers,
                hooks.computed_weights,
                known,
            )
            uses = {name: finder.of(each) for name, each in watched.parameters.items()}
            count = 2 if structure in watched.scattered else 1
            rounded = structure in watched.rounded
            every = codes(self._batch, dtypes, count, powers=rounded, size=passes.size)
            measured = MeasuredGradients(every, watched.parameters)
            summands = Summands(self._graph, finder.is_weight)
            measured.run(
                passes,
                hooks,
                self._graph,
                [use for each in uses.values() for use in each],
                finder.numbers(finder.unsure),
                summands,
            )
            seen = self._batch == 1 or summands.are_apart(every, self._axis)
            self._lasting = self._lasting and seen
            found = self._read(measured, uses, finder)
            if not seen:
                found.axis.check_each(found.layouts)
            rest = [block for block in watched.blocks if block.name not in found.by_rule]
            if not rest:
                return found
            left = [use for block in rest for name in block.parameters for use in uses[name]]
            numbers = finder.numbers(finder.unsure)
            layouts = UseLayouts(found.axis)
            more = {node for number, node in numbers.items() if layouts.is_of_examples(number)}
            if structure not in watched.scattered and (
                more or layouts.is_scattered(left, finder.unsure)
            ):
                watched.scattered.add(structure)
            elif more:
                of_examples |= more
            else:
                self._check_terms(passes, finder, rest)
                return found

    def _read(
        self,
        measured: MeasuredGradients,
        uses: Mapping[str, Sequence[WeightUse]],
        finder: WeightUses,
    ) -> _Measurement:
        """Find the layouts in measured gradients, and the blocks whose layer rules are right."""
        sure = {
            name: [use for use in each if use.node not in finder.unsure]
            for name, each in uses.items()
        }
        axis = ExampleAxis(measured, self._batch, self._axis)
        layouts = axis.layouts()
        self._lasting = self._lasting and axis.unique
        axis.check(layouts)
        check = RowCheck(self._watched, self._rows, measured, sure)
        pairs = self._by_rules(measured, layouts)
        found = {}
        for block in self._watched.blocks:
            each = pairs[block.name]
            if each is not None and check.holds(block, each, check.is_complete(block, each)):
                found[block.name] = each
        return _Measurement(measured, finder, sure, axis, check, layouts, found)

    def _check_terms(self, passes: Passes, finder: WeightUses, rest: Sequence[Block]) -> None:
        """Refuse a term of the loss that is computed from parameters alone."""
        if self._batch > 1 and any(finder.is_weight(edge[0]) for edge in passes.edges):
            raise mixed_in_loss(rest[0].name)

    def _by_rules(
        self, measured: MeasuredGradients, layouts: Mapping[int, ExampleLayout]
    ) -> dict[str, list[Pair] | None]:
        """Return the factors of each block; None if some call of it has no layout."""
        found: dict[str, list[Pair] | None] = {block.name: [] for block in self._watched.blocks}
        for number, (grad, *_) in measured.of_calls.items():
            call = measured.calls[number]
            pairs = self._pairs(call, grad, layouts.get(number))
            for share in call.unit.shares:
                there = found[share.block.name]
                if pairs is None or there is None:
                    found[share.block.name] = None
                else:
                    there.append(share.of(pairs[share.part.name]))
        return found

    def _sides(self, name: str, measured: MeasuredGradients) -> list[str]:
        """Return the side of the inputs in each use of a block, in the order of its factors."""
        calls = [measured.calls[number] for number in measured.of_calls]
        shares = [share for call in calls for share in call.unit.shares]
        return [share.inputs for share in shares if share.block.name == name]

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
