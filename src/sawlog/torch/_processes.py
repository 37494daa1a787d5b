"""The processes of a ``torch.distributed`` job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from sawlog.errors import ProcessLostError


class TorchProcessGroup:
    """The default process group, and the key-value store that its processes share."""

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self._store: Any = dist.distributed_c10d._get_default_store()

    def claim(self, key: str) -> bool:
        """Return whether this process is the first of the job to claim a key."""
        with _store_errors():
            return bool(self._store.add(key, 1) == 1)

    def put(self, key: str, value: str) -> None:
        """Set the value of a key for all processes."""
        with _store_errors():
            self._store.set(key, value)

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if no process has set it yet."""
        with _store_errors():
            if not self._store.check([key]):
                return None
            value: bytes = self._store.get(key)
            return value.decode()


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch.distributed.DistError is one
        raise ProcessLostError(
            "The key-value store of this torch.distributed job does not answer: the process that "
            f"keeps it, usually rank 0, ended ({str(error).splitlines()[0]}). Everything that was "
            "flushed is on disk. Hint: start the job again, with any number of processes: it "
            "continues with the examples that are missing."
        ) from error


def process_group() -> TorchProcessGroup | None:
    """Return the processes of the running job; None outside of one, or if it has one process."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    return TorchProcessGroup()
