"""Some of the examples at a time: one step of a loop over examples, or one device of a mesh.

The number of an example has digits. A loop or a mesh runs over one of them, and the program inside
sees the examples of the other digits. Zeros ``[examples, ...]`` are passed to it part by part, so
that every part receives the gradients of its own examples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sawlog.errors import CaptureError
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.axes import Axis, CutBatch, Mixed, Place, Split, digits_of, joined
from sawlog.jax._capture.constants import Constant
from sawlog.jax._capture.views import in_order


@dataclasses.dataclass(frozen=True)
class Digit:
    """One digit of the numbers of examples.

    Args:
        sizes: The number of values of all digits.
        index: Which of them it is.
    """

    sizes: tuple[int, ...]
    index: int

    @property
    def count(self) -> int:
        """The number of values of the digit."""
        return self.sizes[self.index]

    @property
    def rest(self) -> int:
        """The number of examples that share a value of the digit."""
        return math.prod(self.sizes) // self.count

    def front(self, array: Any, axis: int = 0) -> Any:
        """Return ``[count, ..., rest, ...]`` of an array with the examples along ``axis``."""
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        array = jnp.reshape(array, (*before, *self.sizes, *after))
        array = jnp.moveaxis(array, axis + self.index, 0)
        return jnp.reshape(array, (self.count, *before, self.rest, *after))

    def inserted(self, place: Axis | Split, own: Axis) -> Place:
        """Return a place with this digit too.

        Args:
            place: Where the other digits are.
            own: Where this digit is.
        """
        larger = math.prod(self.sizes[: self.index])
        found: list[tuple[Axis, int]] = []
        missing: int | None = larger
        for part, size in digits_of(place, self.rest):
            if missing is not None and missing < size:
                if size % missing:
                    return Mixed("splits the examples in different ways")
                lower = size // missing
                if missing > 1:
                    found.append((dataclasses.replace(part, inner=part.inner * lower), missing))
                found.append((own, self.count))
                part = dataclasses.replace(part, outer=part.outer * missing)
                size, missing = lower, None
            elif missing is not None:
                if missing % size:
                    return Mixed("splits the examples in different ways")
                missing //= size
            found.append((part, size))
        if missing is not None:
            found.append((own, self.count))
        return joined(found)


def shifted(place: Place, examples: int, by: int) -> Place:
    """Return a place where every dimension has another number."""
    if isinstance(place, Axis):
        return place.at(place.dim + by)
    if isinstance(place, Split):
        parts = tuple(part.at(part.dim + by) for part in place.parts)
        return Split(parts, place.sizes)
    if isinstance(place, CutBatch):
        inner = shifted(place.place, len(place.chosen), by)
        assert isinstance(inner, (Axis, Split))
        return CutBatch(inner, place.chosen)
    return place


def step_digit(places: Sequence[Place], examples: int) -> Digit | None:
    """Return the digit over which the steps of a loop run; None if none of the values has one."""
    for place in places:
        if isinstance(place, (Axis, Split)):
            digits = digits_of(place, examples)
            for i, (part, _) in enumerate(digits):
                if part.dim == 0 and part.width == 1 and part.order is None:
                    return Digit(tuple(size for _, size in digits), i)
    return None


def in_step(place: Place, examples: int, at: str) -> Place:
    """Return the place of one step of a value, in a loop that does not run over examples."""
    if isinstance(place, (Axis, Split)) and any(
        part.dim == 0 for part, _ in digits_of(place, examples)
    ):
        return Mixed("loops over the examples of the batch together with something else", at)
    return shifted(place, examples, -1)


def passed(constant: Constant) -> Any:
    """Return zeros ``[examples, ...]`` that receive what a constant receives."""
    slot = constant.slot
    return slot.zeros if slot is not None and not slot.bias else constant.make_zeros()


def rebuilt(constant: Constant, core: Any, zeros: Any) -> Constant:
    """Return a constant in an inner program, with its own part of :func:`passed`."""
    slot = constant.slot
    if slot is None or slot.bias:
        return dataclasses.replace(constant, core=core, make_zeros=lambda: zeros, slot=None)
    own = dataclasses.replace(slot, zeros=zeros)
    view = constant.view

    def whole() -> Any:
        atoms = view.atoms(range(len(view.dims))) if view is not None else None
        if atoms is None or atoms != in_order(atoms):
            raise CaptureError(
                f"There is no rule for this use of {', '.join(constant.names)} in a loop over "
                "examples. Hint: capture it without a projection."
            )
        return own.whole(tuple(core.shape), core.dtype)

    return dataclasses.replace(constant, core=core, make_zeros=whole, slot=own)


def of_all_steps(record: Recorded) -> Recorded:
    """Return a use in a step; which examples have it depends on the step if some of them do."""
    return record if record.cut is None else dataclasses.replace(record, cut=())
