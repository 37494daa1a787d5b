"""The plan of a capture: which parameters form a block, and how a block is a matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.views import Atoms, ParameterView, canonical, in_order, size_of
from sawlog.run_files._blocks import Block


@dataclasses.dataclass(frozen=True)
class Layout:
    """A block of parameters as a matrix.

    Args:
        block: The block.
        groups, lefts, rights: The atoms of its weight that are groups, rows and columns.
        factored: Whether all uses have factors that fit the matrix.
    """

    block: Block
    groups: Atoms
    lefts: Atoms
    rights: Atoms
    factored: bool

    @property
    def bias(self) -> str | None:
        """The name of the bias; None without one."""
        return self.block.parameters[1] if len(self.block.parameters) > 1 else None

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The sizes of the groups."""
        return tuple(atom.size for atom in self.groups)

    def swapped(self, record: Recorded) -> bool | None:
        """Return whether the outputs of a use are columns; None if the use does not fit."""
        if record.sides is None or record.sides[0] != self.groups:
            return None
        outs, ins = canonical(record.sides[1]), canonical(record.sides[2])
        if (outs, ins) == (canonical(self.lefts), canonical(self.rights)):
            return False
        if (outs, ins) == (canonical(self.rights), canonical(self.lefts)):
            return True
        return None


@dataclasses.dataclass(frozen=True)
class CapturePlan:
    """What a capture does with each parameter.

    Attributes:
        blocks: The blocks, in the order of the parameters.
        uses: For each parameter, the equations that use it, with their source lines.
        slow: The parameters that are differentiated one example at a time, and where.
        unused: The parameters that no loss depends on.
    """

    layouts: tuple[Layout, ...]
    uses: Mapping[str, tuple[str, ...]]
    slow: Mapping[str, str]
    unused: tuple[str, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, in the order of the parameters."""
        return tuple(layout.block for layout in self.layouts)


def make_plan(records: Sequence[Recorded], params: Mapping[str, Any]) -> CapturePlan:
    """Return the plan for recorded uses of parameters, given by name with their shapes."""
    uses: dict[str, list[Recorded]] = {name: [] for name in params}
    for record in records:
        for name in record.names:
            uses[name].append(record)
    alone = {name: _layout(name, param.shape, uses[name]) for name, param in params.items()}
    biases = _biases(records, uses, params, alone)
    taken = set(biases.values())
    layouts = tuple(
        _with_bias(layout, biases.get(name)) for name, layout in alone.items() if name not in taken
    )
    slow = {name: record.where for name, found in uses.items() for record in found if record.slow}
    return CapturePlan(
        layouts,
        {name: tuple(record.where for record in found) for name, found in uses.items()},
        slow,
        tuple(name for name, found in uses.items() if not found),
    )


def _biases(
    records: Sequence[Recorded],
    uses: Mapping[str, Sequence[Recorded]],
    params: Mapping[str, Any],
    layouts: Mapping[str, Layout],
) -> dict[str, str]:
    """Return the bias of each weight that has one: it is added to the output of every use."""
    by_key = {record.key: record for record in records}
    added: dict[int, list[str]] = {}
    for record in records:
        if record.bias is not None and len(record.names) == 1:
            added.setdefault(record.bias, []).append(record.names[0])
    found: dict[str, str] = {}
    for name, own in uses.items():
        names = {tuple(added.get(record.key, ())) for record in own}
        if len(names) != 1 or len(next(iter(names))) != 1 or not layouts[name].factored:
            continue
        bias = next(iter(names))[0]
        keys = {record.key for record in own}
        alone = all(record.bias in keys and len(record.names) == 1 for record in uses[bias])
        sides = by_key[own[0].key].sides
        assert sides is not None
        size = size_of(sides[0]) * size_of(sides[1])
        if (
            alone
            and size_of(
                ParameterView.of(bias, params[bias].shape).atoms(range(len(params[bias].shape)))
            )
            == size
        ):
            found[name] = bias
    return found


def _layout(name: str, shape: Sequence[int], uses: Sequence[Recorded]) -> Layout:
    whole = ParameterView.of(name, shape)
    everything = whole.atoms(range(len(shape)))
    first = next((record for record in uses if _is_matrix(record, everything)), None)
    by_elements = bool(uses) and not any(r.matrix or r.sides is not None for r in uses)
    if first is None or first.sides is None:
        return _plain_layout(name, whole, everything, by_elements)
    groups, outs, ins = first.sides
    lefts, rights = (ins, outs) if first.lookup else (outs, ins)
    inputs = "left" if first.lookup else "right"
    sides = (size_of(lefts), size_of(rights))
    block = Block(name, (name,), (size_of(groups), *sides) if groups else sides, inputs)
    layout = Layout(block, groups, in_order(lefts), in_order(rights), True)
    if all(layout.swapped(r) is not None and len(r.names) == 1 for r in uses):
        return layout
    return _plain_layout(name, whole, everything, by_elements)


def _with_bias(layout: Layout, bias: str | None) -> Layout:
    """Return a layout with its bias as one more feature of the inputs."""
    if bias is None:
        return layout
    block = layout.block
    *groups, rows, cols = block.shape
    sides = (rows + 1, cols) if block.inputs == "left" else (rows, cols + 1)
    block = dataclasses.replace(block, parameters=(block.name, bias), shape=(*groups, *sides))
    return dataclasses.replace(layout, block=block)


def _plain_layout(name: str, whole: ParameterView, everything: Atoms, by_elements: bool) -> Layout:
    """Return a parameter whose uses do not divide it: one dimension are rows.

    It is the first one if elements meet elements, as those of a table of positions. Of a weight it
    is the last one, where outputs are; of a kernel ``[outputs, inputs, height, width]``, whose last
    dimension is smaller than the first, the first one. Dimensions of one element do not count.
    """
    dims = [dim for dim in whole.dims if dim] or [()]
    first, last = dims[0], dims[-1]
    is_kernel = len(dims) > 2 and size_of(first) > size_of(last)
    lefts = first if by_elements or is_kernel else last
    rights = tuple(atom for atom in everything if atom not in lefts)
    block = Block(name, (name,), (size_of(lefts), size_of(rights)), "right")
    return Layout(block, (), lefts, rights, False)


def _is_matrix(record: Recorded, everything: Atoms) -> bool:
    """Return whether a use sees the whole parameter as a matrix."""
    if record.sides is None or len(record.names) != 1:
        return False
    return canonical([atom for side in record.sides for atom in side]) == canonical(everything)
