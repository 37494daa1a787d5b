"""Rows of a store as a map-style dataset, for torch's ``DataLoader`` and similar loaders."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog._array_device import as_tensor
from sawlog._optional import require

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader


class RowDataset:
    """``dataset[i]`` is a dict with the id and the values of row ``i``, in the order written.

    Loaders that fetch many rows at once call ``__getitems__``, which reads them together. The
    dataset can be sent to worker processes: each opens the store itself.
    """

    def __init__(self, reader: Reader, table: str, names: tuple[str, ...], torch: bool) -> None:
        self._reader, self._table, self._names, self._torch = reader, table, names, torch
        self._ids: Any = None
        if torch:
            require("torch", "torch", "dataset(torch=True)")

    @property
    def ids(self) -> Any:
        """The example id of every row."""
        if self._ids is None:
            self._ids = self._reader.ids(self._table)
        return self._ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([operator.index(number)])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows, read together."""
        size = len(self)
        for number in numbers:
            if not -size <= number < size:
                raise IndexError(f"row {number} of {size}")
        ids = [self.ids[number] for number in numbers]
        wanted = ids if isinstance(self.ids, list) else np.array(ids, dtype=np.int64)
        values = self._reader.gather(wanted, self._names)
        if self._torch:
            values = {name: as_tensor(array) for name, array in values.items()}
        plain = [x if isinstance(x, str) else int(x) for x in ids]
        return [
            {"id": plain[i], **{name: array[i] for name, array in values.items()}}
            for i in range(len(ids))
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": None}
