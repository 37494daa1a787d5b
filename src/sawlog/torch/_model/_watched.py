"""The watched parameters of a model, by module and as blocks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.factored import Dense, Factor, OneHot, Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._compiled._regions import CompiledRegions
from sawlog.torch._graph._autograd_graph import GraphLeaves
from sawlog.torch._interactions._policy import InteractionChecks
from sawlog.torch._layers import Part, Rule
from sawlog.torch._model._constants import ModelTensors
from sawlog.torch._model._sharded import LiveParameters


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of a module that belongs to a block: the weight, the bias, or both as one matrix."""

    part: Part
    block: Block
    weight: bool
    bias: bool

    @property
    def inputs(self) -> str:
        """The side of the inputs in the factors of the block, ``"left"`` or ``"right"``."""
        return self.part.inputs if self.weight else "right"

    def of(self, pair: Pair) -> Pair:
        """Return the factors of the block, given those of the weight."""
        if self.weight and not self.bias:
            return pair
        inputs = pair.left if self.part.inputs == "left" else pair.right
        outputs = pair.right if self.part.inputs == "left" else pair.left
        assert isinstance(outputs, Dense)
        if not self.weight:
            return Pair(outputs, Dense(outputs.array[..., :1] * 0 + 1))
        widened = _with_one(inputs)
        return Pair(widened, outputs) if self.part.inputs == "left" else Pair(outputs, widened)


def _with_one(factor: Factor) -> Dense:
    assert not isinstance(factor, OneHot)
    return dataclasses.replace(factor, one=True)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A watched module, and the blocks that its parts belong to."""

    name: str
    module: nn.Module
    rule: Rule
    shares: tuple[Share, ...]


@dataclasses.dataclass(frozen=True)
class Watched:
    """The watched layers of a model, and what was learned about its graphs.

    Args:
        units: the modules that layer rules cover.
        blocks: the matrices that are logged.
        skipped: names of parameters that are not watched, and why.
        parameters: the parameters of the blocks, by name.
        norms: modules that mix the examples of a batch in train mode, watched or not.
        layout_attributes: those that decide where the examples are, by structure of the graph.
        plans: how gradients are taken, by structure of the graph and the values of these
            attributes; see ``_proof``.
        batches: how many batches of a structure were logged.
        scattered: structures without a layout of the examples, such as routed tokens.
        rounded: structures in which rounding makes examples appear mixed, or sums unequal.
        by_operation: blocks that no layer rule covered, in batches of several examples.
        buffers: tensors of the model, which do not belong to any example.
        tensors: those whose values stay.
        origins: what is known of where the values of graphs come from, by structure.
        regions: the modules that stay compiled; None if ``torch.compile`` was not called.
        confirmed: signatures of compiled regions whose structure was proven.
        nested: structures in which a function runs a backward pass inside of its own one.
        interactions: which graphs were checked for interactions that leave no gradient.
        light_plans: the plans of structures whose regions compute no gradients of parameters, by
            their layer calls.
    """

    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[tuple[str, str], ...]
    parameters: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    norms: tuple[tuple[str, nn.Module], ...] = ()
    layout_attributes: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)
    plans: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)
    batches: dict[Any, int] = dataclasses.field(default_factory=dict, compare=False)
    scattered: set[Any] = dataclasses.field(default_factory=set, compare=False)
    rounded: set[Any] = dataclasses.field(default_factory=set, compare=False)
    by_operation: set[str] = dataclasses.field(default_factory=set, compare=False)
    buffers: Sequence[Tensor] = ()
    tensors: ModelTensors | None = dataclasses.field(default=None, compare=False)
    origins: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)
    regions: CompiledRegions | None = dataclasses.field(default=None, compare=False)
    confirmed: set[Any] = dataclasses.field(default_factory=set, compare=False)
    light_plans: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)
    nested: set[Any] = dataclasses.field(default_factory=set, compare=False)
    interactions: InteractionChecks = dataclasses.field(
        default_factory=InteractionChecks, compare=False
    )

    @property
    def model(self) -> nn.Module | None:
        """The model."""
        return None if self.tensors is None else self.tensors.model

    @property
    def leaves(self) -> GraphLeaves:
        """The watched parameters as leaves of a graph."""
        is_live = isinstance(self.parameters, LiveParameters)  # other tensors in every batch
        return self._find_leaves() if is_live else self._leaves

    @functools.cached_property
    def _leaves(self) -> GraphLeaves:
        return self._find_leaves()

    def _find_leaves(self) -> GraphLeaves:
        numbers = {id(each): number for number, each in enumerate(self.parameters.values())}
        return GraphLeaves(numbers, {id(each) for each in self.buffers})

    def with_blocks(self, blocks: Sequence[Block]) -> Watched:
        """Return a copy with other blocks, without what was learned about graphs."""
        new = {block.name: block for block in blocks}
        units = tuple(
            dataclasses.replace(
                unit,
                shares=tuple(
                    dataclasses.replace(share, block=new[share.block.name]) for share in unit.shares
                ),
            )
            for unit in self.units
        )
        return dataclasses.replace(
            self,
            units=units,
            blocks=tuple(blocks),
            layout_attributes={},
            plans={},
            batches={},
            scattered=set(),
            rounded=set(),
            by_operation=set(),
            origins={},
            confirmed=set(),
            light_plans={},
            nested=set(),
            interactions=InteractionChecks(),
        )
