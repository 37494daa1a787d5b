"""The two errors that only sinks have: those that are about several failures or refused logs."""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.errors import SawlogError
from sawlog.records import Records


class FanoutError(SawlogError, ExceptionGroup[Exception]):
    """Some of the sinks of a ``Fanout`` failed; ``exceptions`` has what each of them raised.

    It is an ``ExceptionGroup``, so ``except* OSError`` finds what is inside.
    """

    def derive(self, excs: Sequence[Exception]) -> FanoutError:  # type: ignore[override]
        """The same about some of the errors, for ``except*``."""
        return FanoutError(self.message, excs)


class AsyncError(SawlogError, RuntimeError):
    """A sink failed in the background; ``refused`` has all that it did not take, in order.

    What the call was given that raised this is the last of it.
    """

    def __init__(self, message: str, refused: Sequence[Records] = ()) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
