"""Record the operations of a batch, without holding what they compute."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Hashable, Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sawlog.torch._interactions._frames import held_in_frames
from sawlog.torch._interactions._lists import elements
from sawlog.torch._interactions._scalars import Integers, Scalars
from sawlog.torch._interactions._tape import (
    Mark,
    NotRepeatable,
    Operation,
    Ref,
    Scalar,
    Tape,
    mapped,
    tensors_in,
    written,
)

_COLLECTIVES = {"c10d", "_c10d_functional", "c10d_functional", "_dtensor", "fsdp", "symm_mem"}
_DETACH = torch.ops.aten.detach.default
_READ = torch.ops.aten._local_scalar_dense.default
_NUMBER = torch.ops.aten.scalar_tensor.default
_SLICE = torch.ops.aten.slice.Tensor
_SPLIT = torch.ops.aten.split_with_sizes.default
_SEEDED = torch.Tag.nondeterministic_seeded
_PLAIN = torch.Tensor.__torch_dispatch__
_NUMBERS = {bool, int, float, complex}
_SIZED = {"bincount", "masked_select", "nonzero", "unique_consecutive", "unique_dim", "_unique2"}
_READS = 32
"""Before how many reads it is noted what the program holds."""
_LARGE = 2**20
"""How many numbers an array has at most, of which statistics are read."""
_SHORT = 256
"""How many numbers are followed at most from a tensor to a list, or from a list to a tensor."""
_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(each)) + os.sep
    for each in (torch.__file__, sys.modules["sawlog"].__file__ or "")
)


class Recorder(TorchDispatchMode):
    """Records operations on a tape while it is active; it never changes what they do.

    ``problem`` says why the tape cannot be replayed, if it cannot.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.tape: Tape | None = Tape()
        self.problem = ""
        self._scalars = Scalars()
        self._sizes: dict[tuple[int, ...], list[Scalar]] = {}
        self._integers = Integers()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.cond`` and the like compile, which they do not inside of other modes.

        As written they would lose gradients. They are operations that take functions.
        """
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and type(args[0]) in _NUMBERS:
            args = _with_tensor(func, args)
        if self.tape is None:
            return func(*args, **kwargs)
        operation: Operation | None = None
        if func is _READ:
            self._note_held(self.tape)
        try:
            if func is not _DETACH:  # the same memory; arguments say whether they need gradients
                operation = self._begun(self.tape, func, args, kwargs)
        except Exception as error:
            self.give_up(str(error))
        found = func(*args, **kwargs)
        if self.tape is not None and operation is not None:
            try:
                self._end(self.tape, operation, found, tensors_in((args, kwargs)))
            except Exception as error:
                self.give_up(str(error))
        return found

    def give_up(self, problem: str) -> None:
        """Stop to record, and forget what was recorded."""
        self.tape, self.problem = None, problem

    def read_list(self, tensor: Tensor) -> None:
        """Read the elements of a tensor one by one, since ``tolist`` is not an operation."""
        stack = torch._C._len_torch_dispatch_stack()
        if self.tape is None or not stack or tensor.numel() > _SHORT:
            return
        if torch._C._get_dispatch_stack_at(stack - 1) is not self:
            return
        found, read, before = [], [], self._integers.copy()
        for each in tensor.detach().flatten().unbind():
            found.append(each.item())
            if self.tape is None:
                return
            read.append(Scalar(len(self.tape.operations) - 1, lambda x: x))
        if len(found) > 1 and all(type(each) is int for each in found):
            self._sizes[tuple(found)] = read
            self._integers = before
            for each in tensor.detach().flatten().cumsum(0).unbind():  # where parts end
                each.item()

    def mark(self, call: int, layer: Hashable, output: Tensor) -> None:
        """Remember which value is the output of a call of a layer."""
        if self.tape is None:
            return
        try:
            number = self.tape.known(output)
        except Exception as error:
            self.give_up(str(error))
            return
        if number is not None:
            kind = (layer, tuple(output.shape), output.dtype)
            self.tape.marks[call] = Mark(number, len(self.tape.operations), kind)

    def mark_before(self, tensor: Tensor) -> None:
        """Remember an input of the model, or the output of a layer that is not watched."""
        if self.tape is None or not tensor.is_floating_point():
            return
        try:
            kind = (None, tuple(tensor.shape), tensor.dtype)
            number = self.tape.number_of(tensor)
        except Exception as error:
            self.give_up(str(error))
            return
        self.tape.before.append(Mark(number, len(self.tape.operations), kind))

    def read_array(self, tensor: Tensor) -> None:
        """Remember that a tensor became an array, whose values the program may use."""
        if self.tape is None:
            return
        number = self.tape.known(tensor)
        if number is not None:
            self._note_held(self.tape)
            self.tape.arrays.append((len(self.tape.operations), number))
            self._read_statistics(tensor)

    def _read_statistics(self, tensor: Tensor) -> None:
        """Read what a program most often computes from an array, which no operation shows."""
        stack = torch._C._len_torch_dispatch_stack()
        if not stack or torch._C._get_dispatch_stack_at(stack - 1) is not self:
            return
        if tensor.is_floating_point() and 1 < tensor.numel() <= _LARGE:
            own = tensor.detach()
            for each in (own.mean(), own.var(correction=0), own.amax(), own.amin(), own.norm()):
                each.item()

    def _note_held(self, tape: Tape) -> None:
        """Note what the program holds before it reads values."""
        if len(tape.held) < _READS:
            tape.held.append((len(tape.operations), held_in_frames()))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside the ``with``."""
        stack = torch._C._len_torch_dispatch_stack()
        if stack and torch._C._get_dispatch_stack_at(stack - 1) is self:
            self.__exit__(None, None, None)
            try:
                yield
            finally:
                self.__enter__()
            return
        tape, self.tape = self.tape, None
        try:
            yield
        finally:
            self.tape = tape

    def _begun(self, tape: Tape, func: Any, args: Any, kwargs: Any) -> Operation:
        """Return an operation that is about to run."""
        if not isinstance(func, torch._ops.OpOverload):
            raise NotRepeatable("an operation that takes functions")
        if func.namespace in _COLLECTIVES:
            raise NotRepeatable("a collective operation")

        def replaced(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self._ref(tape, value)
            if type(value) is float:
                return self._scalars.of(value)
            if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
                raise NotRepeatable("an operation on memory")
            return value

        given = self._with_sizes(func, args)
        own_args, own_kwargs = mapped((given, dict(kwargs)), replaced)
        _keep_externals(tape, func, args, kwargs)
        seeds = _generators(args, kwargs) if _SEEDED in func.tags else ()
        line = _line_of_program()
        return Operation(func, own_args, own_kwargs, torch.is_grad_enabled(), seeds, line)

    def _with_sizes(self, func: Any, args: Any) -> tuple[Any, ...]:
        """Return arguments with the sizes that were read from tensors."""
        if func is _SPLIT and len(args) > 1 and tuple(args[1]) in self._sizes:
            return (args[0], self._sizes[tuple(args[1])], *args[2:])
        places = _places_of_sizes(func) if self._integers else ()
        if not places:
            return tuple(args)
        shape = args[0].shape if args and isinstance(args[0], Tensor) else ()
        own = {shape[args[1]]} if func is _SLICE and len(args) > 1 else {*shape}

        def replaced(value: Any) -> Any:
            known = type(value) is int and value not in own  # perhaps a size of the tensor
            return self._integers.of(value) if known else value

        return tuple(
            mapped(each, replaced) if place in places else each for place, each in enumerate(args)
        )

    def _ref(self, tape: Tape, tensor: Tensor) -> Ref:
        if type(tensor).__torch_dispatch__ is not _PLAIN or tensor.layout is not torch.strided:
            raise NotRepeatable(f"a tensor of type {type(tensor).__name__}, {tensor.layout}")
        number = self._made_of_numbers(tape, tensor)
        if number is None:
            number = tape.number_of(tensor)
        node = tensor.grad_fn
        if node is not None:
            key = (node._sequence_nr(), tensor.output_nr, node.name())
            if key not in tape.edges:
                tape.edges[key] = (number, len(tape.operations))
        return Ref(number, tensor.requires_grad)

    def _made_of_numbers(self, tape: Tape, tensor: Tensor) -> int | None:
        """Return the number of a new tensor, such as ``torch.tensor(h.amax(0).tolist())``."""
        if not self._scalars or tensor.requires_grad or not tensor.is_floating_point():
            return None
        if not 0 < tensor.numel() <= _SHORT or tape.has_memory_of(tensor):
            return None
        found = self._scalars.of_elements(elements(tensor), tensor.dtype)
        if not any(isinstance(each, Scalar) for each in found):
            return None
        form = {"dtype": tensor.dtype, "device": tensor.device}
        parts = [tape.compute(_NUMBER, (each,), form) for each in found]
        row = tape.compute(torch.ops.aten.stack.default, (parts,), {})
        tape.compute(torch.ops.aten.view.default, (row, list(tensor.shape)), {}, tensor)
        return tape.number_of(tensor)

    def _end(self, tape: Tape, operation: Operation, found: Any, given: list[Tensor]) -> None:
        if operation.call is _READ:
            tape.read[len(tape.operations)] = found
            self._scalars.add(len(tape.operations), found)
            self._integers.add(len(tape.operations), found)
        outputs = tensors_in(found)
        if any(type(each).__torch_dispatch__ is not _PLAIN for each in outputs):
            raise NotRepeatable("an operation that returns tensors of another type")
        real = any(each.is_floating_point() for each in given)
        operation.decides = real and not all(each.is_floating_point() for each in outputs)
        if _has_size_by_values(operation.call, given):
            self._note_held(tape)
            tape.sized.add(len(tape.operations))
        operation.outputs = tuple(tape.add_output(each) for each in outputs)
        tape.operations.append(operation)


def _has_size_by_values(func: Any, given: list[Tensor]) -> bool:
    name = func.overloadpacket.__name__
    by_mask = name == "index" and any(each.dtype is torch.bool for each in given[1:])
    return by_mask or name in _SIZED


@functools.cache
def _places_of_sizes(func: Any) -> frozenset[int]:
    """Return the places of the arguments that are sizes, or numbers of rows; axes are not."""
    return frozenset(
        place for place, each in enumerate(func._schema.arguments) if _is_size(each.real_type)
    )


def _is_size(kind: Any) -> bool:
    inside = kind.getElementType() if hasattr(kind, "getElementType") else kind
    return bool(inside.kind() == "SymIntType")


def _with_tensor(func: Any, args: Any) -> Any:
    """Return arguments with a tensor in front, where the operation takes no number there.

    PyTorch passes a tensor that it made of a number as that number.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return args
    is_tensor = isinstance(func._schema.arguments[0].type, torch.TensorType)
    return (torch.tensor(args[0]), *args[1:]) if is_tensor else args


def _keep_externals(tape: Tape, func: Any, args: Any, kwargs: Any) -> None:
    """Keep the content of external memory that an operation is about to change."""
    for place, name in written(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        for tensor in tensors_in(value):
            memory = tape.memory_of(tensor, True)
            if memory.external and memory.before is None:
                memory.before = tensor.untyped_storage().clone()


def _generators(args: Any, kwargs: Any) -> tuple[tuple[torch.Generator, Tensor], ...]:
    """Return the generators that an operation draws from, with their states."""
    own = kwargs.get("generator")
    if own is None:
        tensors = tensors_in(args)
        device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
        if device.type == "cpu":
            own = torch.default_generator
        elif device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            own = torch.cuda.default_generators[index]
        else:
            raise NotRepeatable(f"random numbers of the device {device}")
    return ((own, own.get_state()),)


def _line_of_program() -> tuple[str, int]:
    """Return the file and the line outside of PyTorch and sawlog that is being run."""
    frame = sys._getframe(3)
    while frame is not None:
        if _is_of_program(frame.f_code):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return "", 0


@functools.cache
def _is_of_program(code: CodeType) -> bool:
    return not os.path.abspath(code.co_filename).startswith(_LIBRARIES)
