"""Which examples are logged already: by an earlier program, by this one, or by another process."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist


class Known:
    """Ids of examples, those of an earlier program apart from those of this one."""

    def __init__(self) -> None:
        self._before: np.ndarray | None = None
        self._now: set[int | str] = set()

    def begin_with(self, ids: np.ndarray) -> None:
        """These were logged by an earlier program."""
        self._before = np.unique(ids)

    def add(self, ids: np.ndarray) -> None:
        """These were logged now."""
        self._now.update(ids.tolist())

    def seen_now(self, ids: np.ndarray) -> np.ndarray:
        """Which of them this program logged."""
        return np.array([each in self._now for each in ids.tolist()], bool)

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Which of them nobody logged."""
        there = self.seen_now(ids)
        if self._before is not None and len(self._before) and len(ids):
            if self._before.dtype.kind != ids.dtype.kind:
                return ~there
            at = np.searchsorted(self._before, ids)
            at = np.minimum(at, len(self._before) - 1)
            there |= self._before[at] == ids
        return ~there


class Claims:
    """Which process of a ``torch.distributed`` job logs an example that several of them have.

    Samplers that give every process as many examples repeat some. Each id is claimed in the
    key-value store of the job, by whoever comes first. Outside of a job everything is one's own.
    Claims are those of one pass: the processes of a job begin as many passes at a folder.
    """

    _begun: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, folder: Path) -> None:
        where = str(folder.resolve())
        Claims._begun[where] += 1
        self._name, self._store = f"{where}/{Claims._begun[where]}", _job_store()
        self._own: dict[int | str, bool] = {}

    def take(self, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Which of the wanted ids, a mask, this process logs."""
        if self._store is None:
            return wanted
        return np.array(
            [own and self._is_own(each) for each, own in zip(ids.tolist(), wanted, strict=True)],
            bool,
        )

    def _is_own(self, each: int | str) -> bool:
        if each not in self._own:
            key = f"sawlog/{self._name}/{type(each).__name__}/{each}"
            self._own[each] = self._store.add(key, 1) == 1
        return self._own[each]


def _job_store() -> Any:
    """The key-value store that the processes of a job share; None outside of one."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()
