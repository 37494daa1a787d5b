"""Numbers and tensors that a program had before it read values of the examples.

A temperature or a step of a schedule lies in a variable or an attribute then, and was not computed
from the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._memory import memory_of

_MOST = 5000
_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(each)) + os.sep
    for each in (torch.__file__, sys.modules["sawlog"].__file__ or "")
)


@dataclasses.dataclass(frozen=True)
class Held:
    """What variables of a program, and attributes of its objects, held at some time.

    Args:
        numbers: the real numbers.
        memories: where the memory of its tensors starts.
    """

    numbers: frozenset[float]
    memories: frozenset[int | None]


def held_in_frames() -> Held:
    """Return what the program that is being run holds."""
    numbers, memories = set[float](), set[int | None]()
    frame: FrameType | None = sys._getframe(1)
    left = _MOST
    while frame is not None and left > 0:
        code = frame.f_code
        if not os.path.abspath(code.co_filename).startswith(_LIBRARIES):
            names = (each for each in code.co_names if each in frame.f_globals)
            values = [*frame.f_locals.values(), *(frame.f_globals[each] for each in names)]
            for value in itertools.islice(_with_parts(values), left):
                left -= 1
                if type(value) is float:
                    numbers.add(value)
                elif isinstance(value, Tensor) and value.layout is torch.strided:
                    memories.add(memory_of(value))
        frame = frame.f_back
    return Held(frozenset(numbers), frozenset(memories))


def _with_parts(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, and what their attributes, items or elements are."""
    for value in values:
        yield value
        if isinstance(value, ModuleType | type):
            continue
        if type(value) in (dict, list, tuple):
            yield from list(value.values() if isinstance(value, dict) else value)
            continue
        own = getattr(type(value), "__dict__", None) and _attributes(value)
        if isinstance(own, Mapping):
            yield from list(own.values())


def _attributes(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
