"""``LogLoader``: stored logs in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sawlog._validate import positive_integer
from sawlog.influence._logs import Logs
from sawlog.influence._rows import Ids


class LogLoader:
    """Iterate over stored logs in batches ``(ids, {layer: rows})``, any number of times.

    >>> loader = LogLoader(Logs({"w": np.eye(3)}), batch_size=2)
    >>> [ids.tolist() for ids, rows in loader]
    [[0, 1], [2]]
    """

    def __init__(self, logs: Logs, batch_size: int = 64) -> None:
        self._size = positive_integer("batch_size", batch_size)
        self.logs = logs

    def __len__(self) -> int:
        return -(-len(self.logs) // self._size)

    def __iter__(self) -> Iterator[tuple[Ids, dict[str, np.ndarray]]]:
        ids: list[Any] = []
        waiting: dict[str, list[np.ndarray]] = {name: [] for name in self.logs.layers}
        for part in self.logs.parts():
            for name, rows in part.rows().items():
                waiting[name].append(rows)
            ids.extend(np.asarray(part.ids).tolist())
            joined = {name: np.concatenate(rows) for name, rows in waiting.items()}
            while len(ids) >= self._size:
                yield np.asarray(ids[: self._size]), {n: r[: self._size] for n, r in joined.items()}
                ids = ids[self._size :]
                joined = {n: r[self._size :] for n, r in joined.items()}
            waiting = {name: [rows] for name, rows in joined.items()}
        if ids:
            yield np.asarray(ids), {name: np.concatenate(rows) for name, rows in waiting.items()}
