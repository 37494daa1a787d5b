"""Every public exception of sawlog.

Each message says what happened, where (a name, a path, the user's source line), why it probably
happened, and what to do next. All of them derive from :class:`SawlogError`, and each also from the
built-in exception that fits, so ``except ValueError`` works as it does elsewhere.
"""

from __future__ import annotations


class SawlogError(Exception):
    """Base class of every exception that sawlog raises on purpose."""


class MissingPackageError(SawlogError, ImportError):
    """An optional package is needed and not installed."""


class LogValueError(SawlogError, TypeError):
    """``log`` was given something that cannot be logged."""


class ArgumentError(SawlogError, TypeError):
    """An option or argument of a transformation is of the wrong kind."""


class LogMismatchError(SawlogError, ValueError):
    """One name was logged with differing shapes, dtypes, structures or steps."""


class UnsupportedPrimitiveError(SawlogError, NotImplementedError):
    """A log sits inside a JAX primitive that has no rule."""


class UnsupportedLoopError(SawlogError, NotImplementedError):
    """A log sits inside a loop whose length is not known when the program is compiled."""


class LogPlacementError(SawlogError, RuntimeError):
    """``log`` ran where no transformation could ever see it."""


class CallbackError(SawlogError, RuntimeError):
    """The callback of ``tap`` raised inside a compiled program."""
