"""Where checkpoints of a run are kept: in memory, or in a folder."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax._training.states import Arrays


class Checkpoints(Protocol):
    """States by the number of their segment."""

    def put(self, segment: int, arrays: Arrays) -> None: ...

    def get(self, segment: int) -> Arrays: ...

    def drop(self, segment: int) -> None: ...

    def close(self) -> None: ...


class InMemory:
    """Checkpoints on the device of the run."""

    def __init__(self) -> None:
        self._kept: dict[int, Arrays] = {}

    def put(self, segment: int, arrays: Arrays) -> None:
        self._kept[segment] = arrays

    def get(self, segment: int) -> Arrays:
        return self._kept[segment]

    def drop(self, segment: int) -> None:
        self._kept.pop(segment, None)

    def close(self) -> None:
        self._kept.clear()


class InFolder:
    """Checkpoints in a folder of their own below ``path``, one file each; removed at the end."""

    def __init__(self, path: Path) -> None:
        self._folder = path / f"checkpoints-{uuid.uuid4().hex[:12]}"
        self._folder.mkdir(parents=True)

    def _file(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.npz"

    def put(self, segment: int, arrays: Arrays) -> None:
        leaves = [*arrays[0], *arrays[1]]
        named: dict[str, Any] = {
            f"{i:06d}": np.asarray(_plain(leaf)) for i, leaf in enumerate(leaves)
        }
        np.savez(self._file(segment), **named)
        self._likes = arrays

    def get(self, segment: int) -> Arrays:
        with np.load(self._file(segment)) as found:
            leaves = [found[name] for name in sorted(found.files)]
        likes = [*self._likes[0], *self._likes[1]]
        back = [_like(leaf, like) for leaf, like in zip(leaves, likes, strict=True)]
        count = len(self._likes[0])
        return back[:count], back[count:]

    def drop(self, segment: int) -> None:
        self._file(segment).unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(array: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array)
