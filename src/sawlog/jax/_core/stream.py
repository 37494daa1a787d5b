"""What ``spool`` carries through a program: the entries of one name, as a pytree.

A stream is either one entry as it was logged, or entries stacked along a leading axis. Every array
of a stream has the shape ``[entries?, *batch, ...]``: the entry axis if ``info.stacked``, then
``info.batch`` axes of ``vmap`` or of a mesh, then the axes of the value.

Four operations cover all control flow. With ``S[n]`` for a stream of n entries:

- :func:`~sawlog.jax._core.gather.gather`: ``S[m], S[n] -> S[m + n]``, one after the other
- :func:`over_loop`: ``S[n]`` in each of k iterations ``-> S[k * n]``
- :func:`~sawlog.jax._core.branch_slots.over_branches`: ``S[m] or S[n] -> S[max(m, n)]``, masked
- :func:`over_mesh`: ``S[n]`` in each shard ``-> S[n]`` with the axes of the mesh in front of others
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef

from sawlog.errors import LogMismatchError, UnsupportedLoopError
from sawlog.jax._core import arrays
from sawlog.jax._core.site import Site, as_written


@dataclasses.dataclass(frozen=True)
class StreamInfo:
    """The static part of a stream.

    Attributes:
        key: The name of the entries.
        tree: The pytree structure of one entry.
        steps: The names of the step axes, sorted.
        reduction: The ``reduction=`` of the log, or None.
        where: The source line of the first log.
        axes: The names of ``steps`` in the order in which the first log has them.
        batch: The number of axes of ``vmap`` and of a mesh.
        stacked: Whether the arrays have an entry axis.
        branches: The branches around the log, see ``Site.branches``.
        mesh: The number of leading ``batch`` axes that are axes of a mesh.
        unbounded: In a survey, the source line of a loop of unknown length around one of the logs.
    """

    key: str
    tree: PyTreeDef
    steps: tuple[str, ...]
    reduction: Any
    where: str
    axes: tuple[str, ...] = ()
    batch: int = 0
    stacked: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    mesh: int = 0
    unbounded: str = ""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["leaves", "steps", "mask"],
    meta_fields=["info"],
)
@dataclasses.dataclass(frozen=True)
class Stream:
    """The entries logged under one name: leaves, one array for each step axis, a mask or None."""

    leaves: tuple[Any, ...]
    steps: tuple[Any, ...]
    mask: Any
    info: StreamInfo

    @property
    def symbolic(self) -> bool:
        """Whether the number of entries is a symbolic dimension of ``jax.export``."""
        return self.info.stacked and not isinstance(self.leaves[0].shape[0], int)

    @property
    def size(self) -> int:
        """The number of entries, masked ones included."""
        if self.symbolic:
            raise UnsupportedLoopError(
                f"The log at {self.info.where} is in a loop whose length is a symbolic dimension "
                "of jax.export, and its number of entries must be known here. Hint: export a "
                "program in which that length is known, or leave the log out by argnames=."
            )
        return int(self.leaves[0].shape[0]) if self.info.stacked else 1

    def written(self, steps: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Return the step arrays, or ``steps`` instead of them, in the order of the log."""
        return as_written(self.info.axes, self.info.steps, self.steps if steps is None else steps)

    @property
    def lanes(self) -> tuple[int, ...]:
        """The sizes of the axes of ``vmap``."""
        start = int(self.info.stacked)
        return tuple(self.leaves[0].shape[start : start + self.info.batch])

    def map(self, fun: Callable[[Any], Any], **changes: Any) -> Stream:
        """Apply ``fun`` to every array, the mask included, and change fields of ``info``."""
        return Stream(
            tuple(map(fun, self.leaves)),
            tuple(map(fun, self.steps)),
            None if self.mask is None else fun(self.mask),
            dataclasses.replace(self.info, **changes),
        )

    def stacked(self) -> Stream:
        """Return the same entries with an entry axis."""
        return self if self.info.stacked else self.map(lambda x: x[None], stacked=True)

    def full_mask(self) -> Any:
        """Return the mask; all true if the stream has no mask."""
        if self.mask is not None:
            return self.mask
        return arrays.ones(self.mask_type())

    def mask_type(self) -> arrays.Type:
        """Return the type of a mask: the entry axis, and those of ``vmap`` or of a mesh."""
        return arrays.leading(self.leaves[0], int(self.info.stacked) + self.info.batch)


Streams = tuple[Stream, ...]


def from_site(site: Site, operands: Sequence[Any], keys: Sequence[str]) -> Streams:
    """Return the streams of one call of ``log``, for the chosen keys."""
    named = site.split(operands).blanked(arrays.select)
    return tuple(
        Stream(
            leaves,
            tuple(named.steps.values()),
            named.mask,
            StreamInfo(
                key,
                tree,
                site.steps,
                site.reduction,
                site.where,
                site.axes,
                site.batch,
                branches=site.branches,
            ),
        )
        for key, tree, leaves in zip(site.keys, site.trees, named.values, strict=True)
        if key in keys
    )


# -- loops and meshes ------------------------------------------------------------------------------


def over_loop(stream: Stream, *, reverse: bool) -> Stream:
    """Flatten a stream that a scan stacked, one slice an iteration, into execution order."""
    if reverse:
        stream = stream.map(lambda x: lax.rev(x, (0,)) if arrays.is_plain(x) else jnp.flip(x, 0))
    if not stream.info.stacked:
        return stream.map(lambda x: x, stacked=True)
    return stream.map(lambda x: x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])))


def over_mesh(stream: Stream, axes: int) -> Stream:
    """Add ``axes`` axes of length one for the mesh to a stream inside a shard."""
    at = int(stream.info.stacked)
    where = tuple(range(at, at + axes))
    return stream.map(
        lambda x: jnp.expand_dims(x, where),
        batch=stream.info.batch + axes,
        mesh=stream.info.mesh + axes,
    )


# -- lanes -----------------------------------------------------------------------------------------


def widened(stream: Stream, lanes: tuple[int, ...]) -> Stream:
    """Pad a stream to these numbers of lanes along the axes of ``vmap``; new lanes are masked."""
    if stream.lanes == lanes:
        return stream
    stream = dataclasses.replace(stream, mask=stream.full_mask())
    return stream.map(lambda x: _padded(x, lanes, int(stream.info.stacked)))


def widened_site(site: Site, operands: Sequence[Any], like: Stream) -> tuple[Site, Sequence[Any]]:
    """Pad the operands of a log to the lanes of ``like``; new lanes are masked.

    A log inside a shard has no axes of the mesh.
    """
    lanes, wanted = tuple(operands[0].shape[: site.batch]), like.lanes[like.info.mesh :]
    if lanes == wanted or len(lanes) != len(wanted):
        return site, operands
    if not site.masked:
        site = dataclasses.replace(site, masked=True)
        operands = [*operands, arrays.ones(arrays.leading(operands[0], site.batch))]
    return site, [_padded(x, wanted, 0) for x in operands]


def _padded(x: Any, lanes: tuple[int, ...], start: int) -> Any:
    for axis, size in enumerate(lanes, start):
        missing = size - x.shape[axis]
        if missing:
            x = arrays.concatenate([x, arrays.zeros(arrays.resized(x, axis, missing))], axis)
    return x


# -- types -----------------------------------------------------------------------------------------


def entry_type(stream: Stream) -> Stream:
    """Return a stream of one entry, with types instead of values."""
    at = int(stream.info.stacked)
    return stream.map(lambda x: arrays.inner(x, at), stacked=False)


def entry_types(streams: Sequence[Stream]) -> list[Stream]:
    """Return the entry type of each stream; those without a mesh get the mesh of the others."""
    leaves, tree = jax.tree.flatten([entry_type(stream) for stream in streams])
    return list(jax.tree.unflatten(tree, arrays.on_one_mesh(leaves)))


def first_unbounded(group: Sequence[Stream]) -> str:
    """Return the first source line of a loop of unknown length; an empty string without one."""
    return next((stream.info.unbounded for stream in group if stream.info.unbounded), "")


def check_alike(first: Stream, other: Stream) -> None:
    """Check that entries of two streams can share one name.

    Raises:
        LogMismatchError: the structure, shapes, dtypes, steps or mapped axes differ. The message
            names both source lines.
    """
    checks = (
        ("pytree structure", str(first.info.tree), str(other.info.tree)),
        ("step axes", _steps_text(first), _steps_text(other)),
        ("shape and dtype", _types_text(first), _types_text(other)),
        ("reduction", repr(first.info.reduction), repr(other.info.reduction)),
    )
    for what, one, two in checks:
        if one != two:
            raise LogMismatchError(
                f"{first.info.key!r} is logged in two ways that cannot share one name: the {what} "
                f"is {one} at {first.info.where} and {two} at {other.info.where}. "
                "Hint: give one of them another name, or log both alike."
            )


def _steps_text(stream: Stream) -> str:
    return "(" + ", ".join(sorted(stream.info.steps)) + ")" if stream.info.steps else "none"


def _types_text(stream: Stream) -> str:
    start = int(stream.info.stacked)
    texts = [f"{x.dtype}[{','.join(map(str, x.shape[start:]))}]" for x in stream.leaves]
    steps = [f"{x.dtype}[{','.join(map(str, x.shape[start:]))}]" for x in stream.steps]
    return ", ".join(texts) + (f" with steps {', '.join(steps)}" if steps else "")
