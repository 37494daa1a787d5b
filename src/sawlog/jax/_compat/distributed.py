"""The coordinator of a job of several processes."""

from __future__ import annotations

from typing import Any

from sawlog.jax._compat import private

_TIMEOUT_MS = 24 * 60 * 60 * 1000


def is_distributed() -> bool:
    """Return whether ``jax.distributed.initialize`` was called."""
    return _client() is not None


def claim_key(key: str) -> bool:
    """Return whether this process is the first of the job to set a key."""
    try:
        _client().key_value_set(key, "claimed")
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
        return False
    return True


def wait_at_barrier(name: str) -> None:
    """Wait until all processes of the job have reached the barrier of this name."""
    _client().wait_at_barrier(name, _TIMEOUT_MS)


def _client() -> Any:
    return private.distributed.global_state.client
