"""Errors of sinks that hold several exceptions or refused records."""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.errors import SawlogError
from sawlog.records import Records


class FanoutError(SawlogError, ExceptionGroup[Exception]):
    """Some of the sinks of a ``Fanout`` failed; ``exceptions`` has the exception of each.

    It is an ``ExceptionGroup``, so ``except* OSError`` matches the exceptions inside.
    """

    def derive(self, excs: Sequence[Exception]) -> FanoutError:  # type: ignore[override]
        """Return the same error with some of the exceptions, for ``except*``."""
        return FanoutError(self.message, excs)


class AsyncError(SawlogError, RuntimeError):
    """A sink failed in the background; ``refused`` has the records it did not take, in order.

    The last ones are those of the ``write`` that raised this error.
    """

    def __init__(self, message: str, refused: Sequence[Records] = ()) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
