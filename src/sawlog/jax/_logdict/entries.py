"""The entries of one key of a logdict, and the operations along them.

The arrays of a key have the shape ``[*outer, entries?, *batch, ...]``:

- ``outer`` axes are added by a ``vmap`` or ``scan`` around a whole logdict;
- the entry axis exists if the slot is ``stacked``;
- ``batch`` axes are those of a ``vmap`` or mesh inside the logged function.

The slot stores the number of dimensions without ``outer``, so that ``outer`` can be computed.
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
from sawlog.jax._core import arrays
from sawlog.jax._core.arrays import Type, host_array, inner, rows, zeros
from sawlog.jax._core.site import Operands, Site, as_written


@dataclasses.dataclass(frozen=True)
class Slot:
    """The static part of one key.

    Args:
        key: the name.
        steps: the names of the step axes.
        stacked: whether the arrays have an entry axis.
        ndim: the number of dimensions of the first leaf, without outer axes.
        batch: the number of axes of ``vmap`` or mesh inside the logged function.
        masked: whether the key has a mask.
        counted: whether the key counts entries that did not fit.
        reduction: the name of the reduction that was applied, if any.
    """

    key: str
    steps: tuple[str, ...]
    stacked: bool
    ndim: int
    batch: int = 0
    masked: bool = False
    counted: bool = False
    reduction: str | None = None


@dataclasses.dataclass(frozen=True)
class LogdictPart:
    """The entries of one key: a value (a pytree), step arrays, a mask or None, and the slot.

    If the slot is ``counted``, ``dropped`` is the number of entries that did not fit.
    """

    value: Any
    steps: tuple[Any, ...]
    mask: Any
    slot: Slot
    dropped: Any = None

    def rest(self) -> tuple[Any, ...]:
        """Return the arrays other than the value: steps, mask, dropped."""
        slot = self.slot
        return (*self.steps, *(self.mask,) * slot.masked, *(self.dropped,) * slot.counted)

    @property
    def first(self) -> Any:
        """The first array of the value."""
        return jax.tree.leaves(self.value)[0]

    @property
    def outer(self) -> int:
        """The number of axes before those of the logged function."""
        return max(0, np.ndim(self.first) - self.slot.ndim)

    @property
    def stacked(self) -> bool:
        """Whether the arrays have an entry axis (the user may have indexed it away)."""
        return self.slot.stacked and np.ndim(self.first) >= self.slot.ndim

    def entry_types(self) -> tuple[Any, ...]:
        """Return the structure, and of each leaf the dtype and the shape without the entry axis."""
        leaves, tree = jax.tree.flatten(self.value)
        axis = self.outer
        behind = axis + int(self.stacked)
        return tree, *((x.dtype, np.shape(x)[:axis], np.shape(x)[behind:]) for x in leaves)

    def map(self, fun: Callable[[Any], Any], **changes: Any) -> LogdictPart:
        """Apply ``fun`` to every array, and replace fields of the slot."""
        return LogdictPart(
            jax.tree.map(fun, self.value),
            tuple(map(fun, self.steps)),
            None if self.mask is None else fun(self.mask),
            dataclasses.replace(self.slot, **changes),
            self.dropped,
        )

    def renamed(self, key: str) -> LogdictPart:
        """Return the same entries under another name."""
        return dataclasses.replace(self, slot=dataclasses.replace(self.slot, key=key))


def parts_of_site(site: Site, named: Operands, lanes: int = 0) -> list[LogdictPart]:
    """Return the keys of one call of ``log``; ``lanes`` axes of ``vmap`` are removed already."""
    steps = as_written(site.axes, tuple(named.steps), tuple(named.steps.values()))
    masked = named.mask is not None
    parts = []
    for key, tree, leaves in zip(site.keys, site.trees, named.values, strict=True):
        slot = Slot(key, site.axes, False, np.ndim(leaves[0]), site.batch - lanes, masked)
        parts.append(LogdictPart(jax.tree.unflatten(tree, leaves), steps, named.mask, slot))
    return parts


def part_of_user(key: str, value: Any, steps: dict[str, Any]) -> LogdictPart:
    """Return a key that the user set: entries along the first axis, or a single scalar."""
    leaves = jax.tree.leaves(value)
    ndim = np.ndim(leaves[0]) if leaves else 0
    stacked = bool(leaves) and all(np.ndim(leaf) > 0 for leaf in leaves)
    slot = Slot(key, tuple(steps), stacked, ndim)
    return LogdictPart(value, tuple(steps.values()), None, slot)


def check_steps(part: LogdictPart) -> None:
    """Check that every step array has one step per entry.

    Raises:
        LogMismatchError: the message gives both lengths.
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


def check_known(parts: Iterable[LogdictPart], purpose: str) -> None:
    """Check that no array is traced; ``purpose`` completes the hint.

    Raises:
        ArgumentError: an array is traced.
    """
    if any(map(_compat.is_tracer, jax.tree.leaves([(p.value, p.steps) for p in parts]))):
        raise ArgumentError(
            f"These logs are traced, so their values do not exist yet. Hint: return them, and "
            f"{purpose} outside of jit, vmap and grad."
        )


def namespace(part: LogdictPart) -> Any:
    """Return numpy for numpy arrays, so that callbacks do not compute on a device; else jnp."""
    leaves = (*jax.tree.leaves(part.value), *part.steps)
    return np if all(isinstance(x, (np.ndarray, np.generic)) for x in leaves) else jnp


def stack(part: LogdictPart) -> LogdictPart:
    """Add an entry axis unless the arrays have one."""
    if part.stacked:
        return part
    xp, axis = namespace(part), part.outer
    grown = part.map(lambda x: xp.expand_dims(x, axis), stacked=True)
    return dataclasses.replace(
        grown, slot=dataclasses.replace(grown.slot, ndim=np.ndim(grown.first) - axis)
    )


def leading(part: LogdictPart) -> Any:
    """Return the value with a leading entry axis."""
    part = stack(part)
    if not part.outer:
        return part.value
    xp, axis = namespace(part), part.outer
    return jax.tree.map(lambda x: xp.moveaxis(x, axis, 0), part.value)


def full_mask(part: LogdictPart) -> Any:
    """Return the mask; all true if the key has none."""
    if part.mask is not None:
        return part.mask
    axes = part.outer + int(part.stacked) + part.slot.batch
    if namespace(part) is np:
        return np.ones(part.first.shape[:axes], bool)
    return arrays.ones(arrays.leading(part.first, axes))


def take(part: LogdictPart, index: slice) -> LogdictPart:
    """Return a slice of the entries, counting only those that were logged.

    Raises:
        ArgumentError: the step is below 1, and the entries have a mask.
    """
    part = stack(part)
    axis = part.outer
    if part.mask is None:
        where = (slice(None),) * axis + (index,)
        return part.map(lambda x: x[where])
    if index.step is not None and index.step < 1:
        raise ArgumentError(
            f"{part.slot.key!r} has entries that may be missing, and masked entries cannot be "
            f"reversed (slice step {index.step}). Hint: slice outside of jit and vmap."
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


def _is_host_known(part: LogdictPart) -> bool:
    return not any(map(_compat.is_tracer, (*jax.tree.leaves(part.value), part.mask)))


def settle(part: LogdictPart) -> LogdictPart | None:
    """Drop the entries that no lane logged; return None if no entry is left.

    Where lanes of a ``vmap`` differ, entries that any lane logged are kept with their mask.
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
        with jax.transfer_guard("allow"):  # a guard is meant for the transfers of the user
            part, mask = part.map(lambda x: x[keep]), mask[keep]
    if mask.all():
        slot = dataclasses.replace(part.slot, masked=False)
        return dataclasses.replace(part, mask=None, slot=slot)
    return part


@dataclasses.dataclass(frozen=True)
class EmptyKey:
    """The type of a key without entries: known to the program, but not logged in this run."""

    tree: Any
    types: tuple[Type, ...]
    batch: int = 0

    def mask(self) -> np.ndarray:
        """Return a mask with no entries, with the lane axes."""
        return np.zeros((0, *self.types[0].shape[: self.batch]), bool)

    def value(self) -> Any:
        """Return arrays with no entries, of the right shape and dtype."""
        return jax.tree.unflatten(self.tree, [zeros(rows(0, one)) for one in self.types])


def empty_key_of(part: LogdictPart) -> EmptyKey:
    """Return the type of a key whose entries were all dropped."""
    leaves, tree = jax.tree.flatten(part.value)
    at = int(part.stacked)
    return EmptyKey(tree, tuple(inner(x, at) for x in leaves), part.slot.batch)


def on_host(part: LogdictPart) -> LogdictPart:
    """Copy the arrays to numpy, except for PRNG keys."""
    moved = part.map(host_array)
    return dataclasses.replace(moved, dropped=jax.tree.map(host_array, part.dropped))
