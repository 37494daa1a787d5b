"""A fingerprint of parameters, which costs nothing while the arrays are the same objects."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from sawlog.jax._capture.parameters import is_array, leaf_names
from sawlog.run_files._provenance import Provenance, fingerprint_of


@dataclasses.dataclass(frozen=True)
class _Hashed:
    """An array as it was when it was hashed. An array of JAX cannot change; others can."""

    find: Callable[[], Any]
    digest: str

    @classmethod
    def of(cls, leaf: Any) -> _Hashed:
        return cls(
            weakref.ref(leaf) if isinstance(leaf, jax.Array) else lambda: None, _digest(leaf)
        )


class ParameterFingerprint:
    """The fingerprint of all arrays in a pytree of parameters."""

    def __init__(self) -> None:
        self._hashed: dict[str, _Hashed] = {}
        self._names: tuple[Any, list[str]] = (None, [])

    def now(self, params: Any, projection: str) -> Provenance:
        """Return what is computed with these parameters."""
        self._hashed = self._hash(params)
        tensors = {name: each.digest for name, each in self._hashed.items()}
        return Provenance(fingerprint_of(tensors.items()), tensors, projection)

    def changed(self, params: Any) -> list[str]:
        """Return the names of arrays that differ from those at the last :meth:`now`."""
        found, before = self._hash(params), self._hashed
        names = dict.fromkeys((*before, *found))
        changed = [
            name
            for name in names
            if name not in found or name not in before or found[name].digest != before[name].digest
        ]
        if not changed:  # remember arrays that are equal, and new objects
            self._hashed = found
        return changed

    def _hash(self, params: Any) -> dict[str, _Hashed]:
        found = {}
        leaves, tree = jax.tree.flatten(params)
        if self._names[0] is None or self._names[0] != tree:
            self._names = (tree, leaf_names(params))
        for name, leaf in zip(self._names[1], leaves, strict=True):
            if is_array(leaf):
                known = self._hashed.get(name)
                same = known is not None and known.find() is leaf
                found[name] = known if known is not None and same else _Hashed.of(leaf)
        return found


def _digest(leaf: Any) -> str:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.ascontiguousarray(leaf)
    head = f"{array.dtype}{np.shape(leaf)}"
    return head + xxhash.xxh3_128_hexdigest(array.reshape(-1).view(np.uint8).data)
