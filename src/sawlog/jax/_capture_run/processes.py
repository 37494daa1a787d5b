"""The processes of a ``jax.distributed`` job."""

from __future__ import annotations

import itertools

import jax

from sawlog.jax import _compat

_barriers = itertools.count()


class JaxProcessGroup:
    """All processes of a job, which share the key-value store of its coordinator."""

    def claim(self, key: str) -> bool:
        """Return whether this process is the first of the job to claim a key."""
        return _compat.claim_key(key)

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        _compat.wait_at_barrier(f"sawlog/{next(_barriers)}")


def process_group() -> JaxProcessGroup | None:
    """Return the processes of the running job; None outside of one, or if it has one process."""
    if not _compat.is_distributed() or jax.process_count() < 2:
        return None
    return JaxProcessGroup()
