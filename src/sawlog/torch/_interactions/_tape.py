"""A tape: the operations of a batch in order, so that they can be replayed.

It does not hold the tensors that operations computed. Each tensor has a number, and is recognised
by its memory, offset, shape and dtype. ``y = x.exp(); z = y.sum()`` becomes two operations::

    Operation(aten.exp, args=(Ref(0),), outputs=(1,))
    Operation(aten.sum, args=(Ref(1),), outputs=(2,))

Tensor 0 existed before, so it is an :class:`External`, which is kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sawlog.torch._interactions._frames import Held

_STATISTICS = {"running_mean", "running_var"}  # changed by operations that do not say so

Key = tuple[Any, ...]
"""The place of a tensor in its memory, with its shape and dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A tensor among the arguments of an operation.

    Args:
        number: the number of its value.
        grad: whether it required a gradient.
    """

    number: int
    grad: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A Python number among the arguments that was computed from the value of a tensor.

    Args:
        operation: the index of the operation that read the value.
        of: what the program computed from that value, and further ones.
        others: further ones that gave the same number; it is not known which of them it was.
        more: the indices of the operations that read the further values.
    """

    operation: int
    of: Callable[..., float]
    others: tuple[Scalar, ...] = ()
    more: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class Operation:
    """One operation.

    Args:
        call: the operation of PyTorch.
        args, kwargs: its arguments; tensors are :class:`Ref`.
        grad: whether gradients were enabled.
        seeds: the state of the generators that it draws from, before it.
        line: the file and the line of the program that called it.
        outputs: the numbers of the tensors that it returned.
        decides: whether it turned real numbers into whole ones.
    """

    call: Any
    args: Any
    kwargs: Any
    grad: bool
    seeds: tuple[tuple[torch.Generator, Tensor], ...]
    line: tuple[str, int]
    outputs: tuple[int, ...] = ()
    decides: bool = False

    def reads(self) -> Iterator[int]:
        """Yield the numbers of the values among the arguments."""
        for each in leaves((self.args, self.kwargs)):
            if isinstance(each, Ref):
                yield each.number

    def numbers(self) -> Iterator[int]:
        """Yield the indices of the operations that read the Python numbers of this one."""
        for each in leaves((self.args, self.kwargs)):
            if isinstance(each, Scalar):
                for one in (each, *each.others):
                    yield from (one.operation, *one.more)

    def writes(self) -> Iterator[int]:
        """Yield the numbers of the values among the arguments that the operation changes."""
        for place, name in written(self.call):
            value = self.args[place] if place < len(self.args) else self.kwargs.get(name)
            for each in leaves(value):
                if isinstance(each, Ref):
                    yield each.number


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """The output of a call of a layer.

    Args:
        number: its value.
        position: how many operations were before.
        kind: the layer and the shape; calls of one kind have their examples in the same places.
    """

    number: int
    position: int
    kind: Any


@dataclasses.dataclass(slots=True)
class External:
    """A tensor that existed before, or that nothing on the tape computed."""

    tensor: Tensor
    memory: Memory


@dataclasses.dataclass(slots=True)
class Memory:
    """The memory of tensors.

    Args:
        alive: keeps its address from being used again, but not its data.
        external: whether it existed before.
        numbers: the values in it, by their places; the latest of each.
        before: its content before the first operation that changed it, if it is external.
    """

    alive: StorageWeakRef
    external: bool
    numbers: dict[Key, int] = dataclasses.field(default_factory=dict)
    before: torch.UntypedStorage | None = None


class Tape:
    """The operations of a batch, and the numbers of their values."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.externals: dict[int, External] = {}
        self.marks: dict[int, Mark] = {}
        """The outputs of the calls of layers."""
        self.before: list[Mark] = []
        """The inputs of the model, and outputs of layers that are not watched."""
        self.read: dict[int, float] = {}
        """The Python numbers that were read, by the index of the operation."""
        self.held: list[tuple[int, Held]] = []
        """What the program held before values were read, and how many operations were before."""
        self.sized: set[int] = set()
        """The indices of operations whose results have sizes that depend on values."""
        self.arrays: list[tuple[int, int]] = []
        """The values that became numpy arrays, and how many operations were before."""
        self.edges: dict[tuple[int, int, str], tuple[int, int]] = {}
        """The values of the edges of the graph, and the positions where they were first used."""
        self.model_calls: list[range] = []
        """The operations during each call of the model."""
        self.arguments: set[int | None] = set()
        """The memory of the tensors that the model was called with."""
        self.shapes: list[tuple[int, ...]] = []
        """The shapes of all values; empty where ``compute`` made one without a tensor."""
        self._memory_of_value: list[Memory | None] = []
        self._memories: dict[int, Memory] = {}
        self._shared: set[int] = set()

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor, which is an external one if it is not known."""
        memory = self.memory_of(tensor, True)
        key = key_of(tensor)
        number = memory.numbers.get(key)
        if number is not None:
            return number
        if memory.external:
            number = self._new(memory, key)
            self.externals[number] = External(tensor.detach(), memory)
            return number
        return self._view_of(memory, key, tensor)

    def known(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor whose memory is of this batch."""
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        return None if memory is None or memory.external else memory.numbers.get(key_of(tensor))

    def add_output(self, tensor: Tensor) -> int:
        """Return a new number for a tensor that an operation returned."""
        return self._new(self.memory_of(tensor, False), key_of(tensor))

    def compute(self, call: Any, args: Any, kwargs: Any, tensor: Tensor | None = None) -> Ref:
        """Add an operation that only replays run; ``tensor`` is what it returns, if that exists."""
        if tensor is None:
            number = len(self._memory_of_value)
            self._memory_of_value.append(None)
            self.shapes.append(())
        else:
            number = self.add_output(tensor)
        self.operations.append(Operation(call, args, kwargs, False, (), ("", 0), (number,)))
        return Ref(number, False)

    def has_memory_of(self, tensor: Tensor) -> bool:
        """Return whether the memory of a tensor is known."""
        return tensor.untyped_storage()._cdata in self._memories

    def memory_of(self, tensor: Tensor, external: bool) -> Memory:
        """Return the memory of a tensor; ``external`` says what it is if it is new."""
        storage = tensor.untyped_storage()
        found = self._memories.get(storage._cdata)
        if found is None:
            found = Memory(StorageWeakRef(storage), external)
            self._memories[storage._cdata] = found
        return found

    def is_external(self, number: int) -> bool:
        """Return whether a value lies in memory that existed before."""
        return number in self._shared

    def is_of_model(self, place: int) -> bool:
        """Return whether an operation ran during a call of the model."""
        return any(place in each for each in self.model_calls)

    def memory_id(self, number: int) -> int:
        """Return what identifies the memory of a value; tensors that share it have the same."""
        memory = self._memory_of_value[number]
        return -1 - number if memory is None else id(memory)

    def _new(self, memory: Memory, key: Key) -> int:
        number = memory.numbers[key] = len(self._memory_of_value)
        self._memory_of_value.append(memory)
        self.shapes.append(key[1])
        if memory.external:
            self._shared.add(number)
        return number

    def _view_of(self, memory: Memory, key: Key, tensor: Tensor) -> int:
        """Return the number of a view that no operation returned, such as one made in C++."""
        for other, number in memory.numbers.items():
            if other[3:] == key[3:]:
                where = (key[1], key[2], key[0])
                new = self._new(memory, key)
                view = torch.ops.aten.as_strided.default
                ref = Ref(number, tensor.requires_grad)
                self.operations.append(
                    Operation(view, (ref, *where), {}, False, (), ("", 0), (new,))
                )
                return new
        raise NotRepeatable("a view of another dtype that no operation returned")


class NotRepeatable(Exception):
    """The operations of a batch cannot be replayed; says why."""


def key_of(tensor: Tensor) -> Key:
    """Return the place of a tensor in its memory, with its shape and dtype."""
    size, stride = tuple(tensor.size()), tensor.stride()
    return tensor.storage_offset(), size, stride, tensor.dtype, tensor.is_conj(), tensor.is_neg()


@functools.cache
def written(call: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an operation changes."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(call._schema.arguments)
        if argument.name in _STATISTICS
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is in nested lists, tuples and dicts."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from leaves(each)
    else:
        yield value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples and dicts with every leaf changed."""
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(each, change) for each in value])
    if isinstance(value, Mapping):
        return {key: mapped(each, change) for key, each in value.items()}
    return change(value)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in the output of an operation, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [each for each in leaves(value) if isinstance(each, Tensor)]
