"""The structure of a pytree as JSON, and back.

A leaf is its number, in the order of ``jax.tree.leaves``; ``None`` is null; a container is a pair
of its kind and its children: ``["list", [0, 1]]``, ``["tuple", [0]]``, ``["dict", [["a", 0]]]``.
Here all of these are tuples, which can be hashed; from JSON they come back as lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from sawlog.errors import LogValueError

Spec = Any

#: A value that is one array and no container.
LEAF: Spec = 0


def spec_of(value: Any, what: str) -> Spec:
    """The structure of ``value``.

    Raises:
        LogValueError: it has containers besides dicts, lists and tuples; ``what`` says where.
    """
    leaves, tree = jax.tree.flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        return LEAF
    numbered = jax.tree.unflatten(tree, range(len(leaves)))
    return _spec(value, numbered, what)


def _spec(value: Any, numbered: Any, what: str) -> Spec:
    if value is None:
        return None
    if type(value) is dict:
        for key in value:
            _check_key(key, what)
        pairs = ((k, _spec(v, numbered[k], f"{what}[{k!r}]")) for k, v in value.items())
        return ("dict", tuple(pairs))
    if type(value) in (list, tuple):
        both = enumerate(zip(value, numbered, strict=True))
        items = (_spec(item, number, f"{what}[{i}]") for i, (item, number) in both)
        return (type(value).__name__, tuple(items))
    if type(numbered) is int:
        return numbered
    raise LogValueError(
        f"{what} is a {type(value).__qualname__}, and only dicts, lists, tuples and arrays can be "
        "saved, since nothing else could be put together again. Hint: log it as a dict, as with "
        "value._asdict() for a namedtuple or vars(value) for an object."
    )


def _check_key(key: Any, what: str) -> None:
    if type(key) not in (str, int):
        raise LogValueError(
            f"{what} is a dict with the key {key!r}, and only strings and whole numbers can be "
            "saved as keys. Hint: log it with str(key)."
        )


def build(spec: Spec, leaves: Sequence[Any]) -> Any:
    """The value with this structure and these leaves."""
    if spec is None:
        return None
    if isinstance(spec, int):
        return leaves[spec]
    kind, items = spec
    if kind == "dict":
        return {key: build(item, leaves) for key, item in items}
    kinds: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
    return kinds[kind](build(item, leaves) for item in items)


def count(spec: Spec) -> int:
    """How many leaves there are."""
    if spec is None or isinstance(spec, int):
        return int(spec is not None)
    kind, items = spec
    return sum(count(item[1] if kind == "dict" else item) for item in items)


def structure(spec: Spec) -> Any:
    """The structure as JAX has it; the order of dicts makes no difference to it."""
    return jax.tree.structure(build(spec, range(count(spec))))
