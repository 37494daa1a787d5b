"""Registration of ``logdict`` as a pytree: the values first, then steps, masks and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from sawlog.jax import _compat
from sawlog.jax._logdict.layout import LogdictLayout
from sawlog.jax._logdict.settling import all_concrete, join, lost_masks, settle

if TYPE_CHECKING:
    from sawlog.jax._logdict.logdict import logdict

#: Functions of sawlog that flatten the arguments of a program.
_ARGUMENTS_OF = frozenset({"_inspect_and_call", "_prepared"})


def _flatten(logs: logdict) -> tuple[tuple[Any, ...], LogdictLayout]:
    if logs._pieces:
        join(logs)
    # JAX also flattens what it has just unflattened, and requires the same leaves.
    if logs._pending and _compat.flattened_for(_ARGUMENTS_OF):
        settle(logs)
    return (*dict.values(logs), *logs._rest), logs._layout


def _flatten_with_keys(logs: logdict) -> tuple[tuple[Any, ...], LogdictLayout]:
    children, layout = _flatten(logs)
    names: list[str] = list(layout.keys)
    for slot in layout.slots:
        names.extend(f"{slot.key}@{step}" for step in slot.steps)
        names.extend([f"{slot.key}@mask"] * slot.masked)
        names.extend([f"{slot.key}@dropped"] * slot.counted)
    keys = map(jax.tree_util.DictKey, names)
    return tuple(zip(keys, children, strict=True)), layout


def register(kind: type[logdict]) -> None:
    """Register the class with ``jax.tree_util`` and ``jax.export``."""
    new, update = dict.__new__, dict.update

    def _unflatten(layout: LogdictLayout, children: Any) -> logdict:
        # Kept short: JAX calls this at the end of every call of a program that returns logs.
        keys = layout.keys
        logs: logdict = new(kind)
        update(logs, zip(keys, children))  # noqa: B905 (steps and masks follow the values)
        logs._layout = layout
        logs._rest = tuple(children[len(keys) :])
        logs._pieces = ()
        logs._pending = layout.masked and (
            all_concrete(children[: len(keys)], logs._rest) or lost_masks(logs) != []
        )
        return logs

    jax.tree_util.register_pytree_with_keys(kind, _flatten_with_keys, _unflatten, _flatten)
    jax.export.register_pytree_node_serialization(
        kind,
        serialized_name="sawlog.logdict",
        serialize_auxdata=lambda layout: layout.to_bytes(),
        deserialize_auxdata=LogdictLayout.from_bytes,
    )
