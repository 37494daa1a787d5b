"""The processes of a ``torch.distributed`` job."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class TorchProcessGroup:
    """The default process group, and the key-value store that its processes share."""

    def __init__(self) -> None:
        find = getattr(dist.distributed_c10d, "_get_default_store", None)
        self._store: Any = None if find is None else find()

    def claim(self, key: str) -> bool:
        """Return whether this process is the first of the job to claim a key."""
        return self._store is None or self._store.add(key, 1) == 1

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        dist.barrier()


def process_group() -> TorchProcessGroup | None:
    """Return the processes of the running job; None outside of one, or if it has one process."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    return TorchProcessGroup()
