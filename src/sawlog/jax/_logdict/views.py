"""The objects that ``logs.slice``, ``logs.mask`` and ``logs.steps`` return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax

from sawlog._names import did_you_mean, nearest
from sawlog.errors import ArgumentError, UnknownLogError
from sawlog.jax._logdict import entries as entries_of

if TYPE_CHECKING:
    from sawlog.jax._logdict.logdict import logdict


class EntrySlicer:
    """``logs.slice``: indexing it with a slice returns a logdict."""

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, index: slice) -> logdict:
        if not isinstance(index, slice):
            raise ArgumentError(
                f"logs.slice takes a slice of entries, as in logs.slice[10:20], not {index!r}. "
                'Hint: one entry of one key is logs.entries()["key"][i].'
            )
        return self._logs._map(lambda part: entries_of.take(part, index))


class MaskView(Mapping[str, Any]):
    """``logs.mask``: the mask of each key, computed on access."""

    def __init__(self, logs: logdict) -> None:
        self._parts = {part.slot.key: part for part in logs._parts()}
        self._empty = logs._layout.empty

    def __getitem__(self, key: str) -> Any:
        if key in self._parts:
            return entries_of.full_mask(self._parts[key])
        if key in self._empty:
            return self._empty[key].mask()
        raise unknown_log(key, self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return repr(dict(self))


class StepView(dict):
    """``logs.steps`` and ``logs.steps[axis]``: a dict whose missing keys raise with a suggestion.

    ``relation`` completes the message "Nothing {relation} {key}".
    """

    def __init__(self, relation: str) -> None:
        super().__init__()
        self._relation = relation

    def __missing__(self, key: Any) -> Any:
        raise UnknownLogError(f"Nothing {self._relation} {key!r}. {did_you_mean(str(key), self)}")

    def _flatten(self) -> tuple[tuple[Any, ...], tuple[str, tuple[str, ...]]]:
        return tuple(self.values()), (self._relation, tuple(self))

    @classmethod
    def _unflatten(cls, static: tuple[str, tuple[str, ...]], values: Iterable[Any]) -> StepView:
        steps = cls(static[0])
        steps.update(zip(static[1], values, strict=True))
        return steps


jax.tree_util.register_pytree_node(StepView, StepView._flatten, StepView._unflatten)


def unknown_log(key: Any, known: Iterable[str]) -> UnknownLogError:
    """Return the error for a key that was not logged."""
    return UnknownLogError(f"Nothing was logged under {key!r}. {did_you_mean(str(key), known)}")


def no_attribute(
    name: str, methods: Iterable[str], steps: Iterable[str], keys: Iterable[str]
) -> str:
    """Return the message for ``logs.name``, which is neither a method nor a step axis."""
    keys, steps = list(keys), list(steps)
    if name in keys:
        return f"logs have no attribute {name!r}, but a key of that name. Hint: logs[{name!r}]"
    close = nearest(name, [*methods, *steps, *keys])
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    axes = ", ".join(sorted(steps)) or "none"
    return (
        f"logs have no attribute {name!r}, and no step axis of that name (step axes here: {axes}). "
        f"Hint: {meant}A step axis comes from log({{...}}, {name}=...), values from logs['key']."
    )
