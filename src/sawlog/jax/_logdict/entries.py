"""One key of a logdict, and what can be done along its entries.

The arrays of a part have the shape ``[*outer, entries?, *batch, ...]``: ``outer`` are axes that the
user's own ``vmap`` or ``scan`` put in front of a whole logdict, then the entry axis where the slot
is ``stacked``, then the axes of a ``vmap`` or mesh inside the logged function. How many outer axes
there are is read off the number of dimensions, which the slot remembers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError, LogMismatchError
from sawlog.jax import _compat
from sawlog.jax._core import arrays as _arrays
from sawlog.jax._core.arrays import Type, inner, rows, to_numpy, zeros
from sawlog.jax._core.site import Operands, Site, as_written


@dataclasses.dataclass(frozen=True)
class Slot:
    """The static part of one key."""

    key: str
    steps: tuple[str, ...]
    stacked: bool
    ndim: int
    batch: int = 0
    masked: bool = False
    counted: bool = False
    reduction: str | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """One key: its value (a pytree), its step arrays, its mask or None, its slot.

    ``dropped`` says, where the slot is ``counted``, how many entries there was no room for.
    """

    value: Any
    steps: tuple[Any, ...]
    mask: Any
    slot: Slot
    dropped: Any = None

    def rest(self) -> tuple[Any, ...]:
        """The arrays besides the value: steps, mask, dropped."""
        slot = self.slot
        return (*self.steps, *(self.mask,) * slot.masked, *(self.dropped,) * slot.counted)

    @property
    def first(self) -> Any:
        """The first array of the value."""
        return jax.tree.leaves(self.value)[0]

    @property
    def outer(self) -> int:
        """How many axes stand in front of those the logged function made."""
        return max(0, np.ndim(self.first) - self.slot.ndim)

    @property
    def stacked(self) -> bool:
        """Whether there is an entry axis (a user may have indexed it away)."""
        return self.slot.stacked and np.ndim(self.first) >= self.slot.ndim

    def map(self, fun: Callable[[Any], Any], **changes: Any) -> Part:
        """Apply ``fun`` to every array, and change the slot."""
        return Part(
            jax.tree.map(fun, self.value),
            tuple(map(fun, self.steps)),
            None if self.mask is None else fun(self.mask),
            dataclasses.replace(self.slot, **changes),
            self.dropped,
        )

    def renamed(self, key: str) -> Part:
        """The same under another name."""
        return dataclasses.replace(self, slot=dataclasses.replace(self.slot, key=key))


def parts_of_site(site: Site, named: Operands, lanes: int = 0) -> list[Part]:
    """The entry of one call of ``log``, key by key, inside of ``lanes`` axes of ``vmap``."""
    steps = as_written(site.axes, tuple(named.steps), tuple(named.steps.values()))
    masked = named.mask is not None
    parts = []
    for key, tree, leaves in zip(site.keys, site.trees, named.values, strict=True):
        slot = Slot(key, site.axes, False, np.ndim(leaves[0]), site.batch - lanes, masked)
        parts.append(Part(jax.tree.unflatten(tree, leaves), steps, named.mask, slot))
    return parts


def part_of_user(key: str, value: Any, steps: dict[str, Any]) -> Part:
    """A key that the user set by hand: entries along the first axis, a scalar as it is."""
    leaves = jax.tree.leaves(value)
    ndim = np.ndim(leaves[0]) if leaves else 0
    stacked = bool(leaves) and all(np.ndim(leaf) > 0 for leaf in leaves)
    slot = Slot(key, tuple(steps), stacked, ndim)
    return Part(value, tuple(steps.values()), None, slot)


def check_steps(part: Part) -> None:
    """Refuse steps that do not go with the entries.

    Raises:
        LogMismatchError: naming the lengths.
    """
    if not part.slot.stacked:
        return
    size = np.shape(part.first)[0]
    for name, array in zip(part.slot.steps, part.steps, strict=True):
        if np.ndim(array) == 0 or np.shape(array)[0] != size:
            raise LogMismatchError(
                f"{part.slot.key!r} has {size} entries, but its step axis {name!r} has the shape "
                f"{np.shape(array)}. Hint: give one step for each entry."
            )


def check_known(parts: Iterable[Part], purpose: str) -> None:
    """Refuse parts that are traced.

    Raises:
        ArgumentError: naming what to do outside.
    """
    if any(map(_compat.is_tracer, jax.tree.leaves([(p.value, p.steps) for p in parts]))):
        raise ArgumentError(
            f"These logs are traced, and there are no values yet. Hint: return them, and {purpose} "
            "outside of jit, vmap and grad."
        )


def namespace(part: Part) -> Any:
    """numpy for arrays of the host, so that nothing is computed on a device in a callback."""
    arrays = (*jax.tree.leaves(part.value), *part.steps)
    return np if all(isinstance(x, (np.ndarray, np.generic)) for x in arrays) else jnp


def stack(part: Part) -> Part:
    """The same entries with an entry axis."""
    if part.stacked:
        return part
    xp, axis = namespace(part), part.outer
    grown = part.map(lambda x: xp.expand_dims(x, axis), stacked=True)
    return dataclasses.replace(
        grown, slot=dataclasses.replace(grown.slot, ndim=np.ndim(grown.first) - axis)
    )


def leading(part: Part) -> Any:
    """The value with the entry axis in front."""
    part = stack(part)
    if not part.outer:
        return part.value
    xp, axis = namespace(part), part.outer
    return jax.tree.map(lambda x: xp.moveaxis(x, axis, 0), part.value)


def full_mask(part: Part) -> Any:
    """The mask, made if there is none."""
    if part.mask is not None:
        return part.mask
    axes = part.outer + int(part.stacked) + part.slot.batch
    if namespace(part) is np:
        return np.ones(part.first.shape[:axes], bool)
    return _arrays.ones(_arrays.leading(part.first, axes))


def take(part: Part, index: slice) -> Part:
    """A slice of the entries, counting only those that were logged."""
    part = stack(part)
    axis = part.outer
    if part.mask is None:
        where = (slice(None),) * axis + (index,)
        return part.map(lambda x: x[where])
    if index.step is not None and index.step < 1:
        raise ArgumentError(
            f"{part.slot.key!r} has entries that may be missing, and those cannot be reversed "
            f"(slice step {index.step}). Hint: slice outside of jit and vmap."
        )
    xp = namespace(part)
    mask = part.mask
    rank = xp.cumsum(mask, axis=axis) - 1
    count = xp.sum(mask, axis=axis, keepdims=True)
    start, stop = (_bound(edge, count, xp) for edge in (index.start or 0, index.stop))
    chosen = (rank >= start) & (rank < stop) & ((rank - start) % (index.step or 1) == 0)
    narrowed = dataclasses.replace(part, mask=mask & chosen)
    settled = settle(narrowed) if _is_host_known(narrowed) else narrowed
    return narrowed if settled is None else settled


def _bound(edge: int | None, count: Any, xp: Any) -> Any:
    if edge is None:
        return count
    return xp.clip(edge if edge >= 0 else count + edge, 0, count)


def _is_host_known(part: Part) -> bool:
    return not any(map(_compat.is_tracer, (*jax.tree.leaves(part.value), part.mask)))


def settle(part: Part) -> Part | None:
    """Drop the entries that nobody logged; None when there are none left.

    Where lanes of a ``vmap`` differ, the entries that any lane logged stay, with their mask.
    """
    if part.mask is None or part.outer:
        return part
    mask = np.asarray(jax.device_get(part.mask))
    lanes = tuple(range(int(part.stacked), mask.ndim))
    rows = mask.any(axis=lanes)
    if not rows.any():
        return None
    if part.stacked and not rows.all():
        keep = np.flatnonzero(rows)
        with jax.transfer_guard("allow"):  # a guard is for what the user's program transfers
            part, mask = part.map(lambda x: x[keep]), mask[keep]
    if mask.all():
        slot = dataclasses.replace(part.slot, masked=False)
        return dataclasses.replace(part, mask=None, slot=slot)
    return part


@dataclasses.dataclass(frozen=True)
class Nothing:
    """The type of a key of which no entry was logged."""

    tree: Any
    types: tuple[Type, ...]
    batch: int = 0

    def mask(self) -> np.ndarray:
        """That of no entries, for all lanes."""
        return np.zeros((0, *self.types[0].shape[: self.batch]), bool)

    def value(self) -> Any:
        """No entries, of the right type."""
        return jax.tree.unflatten(self.tree, [zeros(rows(0, one)) for one in self.types])


def nothing_of(part: Part) -> Nothing:
    """What is left of a key none of whose entries was logged."""
    leaves, tree = jax.tree.flatten(part.value)
    at = int(part.stacked)
    return Nothing(tree, tuple(inner(x, at) for x in leaves), part.slot.batch)


def on_host(part: Part) -> Part:
    """The same with numpy arrays, but for PRNG keys."""
    moved = part.map(to_numpy)
    return dataclasses.replace(moved, dropped=jax.tree.map(to_numpy, part.dropped))
