"""The coordinator of a job of several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sawlog.errors import ProcessLostError
from sawlog.jax._compat import private


def is_distributed() -> bool:
    """Return whether ``jax.distributed.initialize`` was called."""
    return _client() is not None


def claim_key(key: str) -> bool:
    """Return whether this process is the first of the job to set a key."""
    with _lost():
        try:
            _client().key_value_set(key, "claimed")
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            return False
    return True


def put_key(key: str, value: str) -> None:
    """Set the value of a key for all processes of the job."""
    with _lost():
        _client().key_value_set(key, value, allow_overwrite=True)


def get_key(key: str) -> str | None:
    """Return the value of a key; None if no process has set it."""
    with _lost():
        try:
            value: str = _client().key_value_try_get(key)
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None
    return value


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ProcessLostError(
            "The coordinator of this jax.distributed job does not answer: the process that keeps "
            f"it, usually process 0, ended ({str(error).splitlines()[0]}). Everything that was "
            "flushed is on disk. Hint: start the job again, with any number of processes: it "
            "continues with the examples that are missing."
        ) from error


def _client() -> Any:
    return private.distributed.global_state.client
