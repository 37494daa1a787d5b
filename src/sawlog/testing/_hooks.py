"""The hooks of the contract: how stores are created, opened and compacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


class StoreHooks:
    """The hooks of :class:`~sawlog.testing.StoreContract`; each has a default, :mod:`sawlog.store`.

    Writers and readers need not be sawlog's own classes: all that counts is what they do.
    """

    def make_path(self, tmp_path: Path) -> Path:
        """Return the path for the store of one test, which does not exist yet."""
        return tmp_path / "store"

    def create(self, path: Path, **options: Any) -> Any:
        """Create a store and return its writer, like :func:`sawlog.store.create`."""
        from sawlog import store

        return store.create(path, **options)

    def open(self, path: Path, mode: str = "read", **options: Any) -> Any:
        """Open a store for ``"read"`` or ``"append"``, like :func:`sawlog.store.open`."""
        from sawlog import store

        return store.open(path, mode, **options)  # type: ignore[call-overload]

    def compact(self, path: Path) -> None:
        """Merge all small segments, like :func:`sawlog.store.compact`."""
        from sawlog import store

        store.compact(path)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Return the path that :meth:`make_path` chose."""
        return self.make_path(tmp_path)


def rows(count: int, start: int = 0) -> dict[str, np.ndarray]:
    """Values of ``count`` rows of a table with the names ``grad`` and ``label``."""
    numbers = np.arange(start, start + count)
    grad = (numbers[:, None] * 3 + np.arange(3)).astype(np.float32) / 7
    return {"grad": grad, "label": numbers.astype(np.int16)}


def names_of(numbers: Any, kind: str) -> Any:
    """Return example ids of either kind: the numbers, or strings."""
    numbers = np.asarray(numbers, np.int64)
    return numbers if kind == "int" else [f"example {number}" for number in numbers.tolist()]


def as_list(ids: Any) -> list[Any]:
    """Return ids of either kind as a list of Python values."""
    return [id.item() if isinstance(id, np.generic) else id for id in ids]
