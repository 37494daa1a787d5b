"""The processes of a ``jax.distributed`` job."""

from __future__ import annotations

import jax

from sawlog.jax import _compat


class JaxProcessGroup:
    """All processes of a job, which share the key-value store of its coordinator."""

    def __init__(self) -> None:
        self.rank: int = jax.process_index()
        self.size: int = jax.process_count()

    def claim(self, key: str) -> bool:
        """Return whether this process is the first of the job to claim a key."""
        return _compat.claim_key(key)

    def put(self, key: str, value: str) -> None:
        """Set the value of a key for all processes."""
        _compat.put_key(key, value)

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if no process has set it yet."""
        return _compat.get_key(key)


def process_group() -> JaxProcessGroup | None:
    """Return the processes of the running job; None outside of one, or if it has one process."""
    if not _compat.is_distributed() or jax.process_count() < 2:
        return None
    return JaxProcessGroup()
