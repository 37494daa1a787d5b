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


class UnsupportedJaxError(SawlogError, ImportError):
    """The installed JAX is of a version that sawlog does not work with."""


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


class SinkWarning(UserWarning):
    """A sink failed, and its logs go elsewhere; the message says where. The program goes on."""


class UnmatchedNameWarning(UserWarning):
    """A name, tag or pattern was asked for that no log has; the message names the nearest ones."""


class UnknownLogError(SawlogError, KeyError):
    """A name under which nothing was logged."""

    __str__ = Exception.__str__  # KeyError shows its message in quotes


class AppendWarning(UserWarning):
    """A logger goes on with runs that were there before the program, and appends to them."""


class SinkTimeoutError(SawlogError, TimeoutError):
    """A sink did not return in time, and is not called any more."""


class UncoveredError(SawlogError, NotImplementedError):
    """Parameters of a model that no layer rule covers."""


class CaptureError(SawlogError, RuntimeError):
    """What a model did for a batch cannot be logged as it was asked for."""


class WeightsMismatchError(SawlogError, ValueError):
    """Logs or statistics were computed with different weights of the model."""


class StoreError(SawlogError):
    """Base class of everything that can go wrong with a store on disk."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at this path."""


class StoreExistsError(StoreError, FileExistsError):
    """There is a store at this path already, and nobody said what to do with it."""


class ForeignStoreError(StoreError, ValueError):
    """The folder holds something that is not a sawlog store."""


class NewerStoreError(StoreError, ValueError):
    """The store was written in a newer version of the format."""


class StorePermissionError(StoreError, PermissionError):
    """The store, or the folder it should be in, cannot be written to."""


class SchemaError(StoreError, ValueError):
    """A write does not fit the names, dtypes, shapes or steps that were fixed before."""


class UnknownNameError(StoreError, KeyError):
    """A name that the store does not have."""

    __str__ = Exception.__str__  # KeyError shows its message in quotes


class UnknownIdError(StoreError, KeyError):
    """An example id that the store does not have."""

    __str__ = Exception.__str__


class DuplicateIdError(StoreError, ValueError):
    """An example id was written twice, and the store's policy is to refuse that."""


class NanError(StoreError, ValueError):
    """A value is not a number, and the store's policy is to refuse that."""


class StoreWriteError(StoreError, OSError):
    """Logs could not be put on disk; what was published before is safe."""


class StoreFullError(StoreWriteError):
    """The disk, or the quota, is full; what was published before is safe."""


class StoreClosedError(StoreError, ValueError):
    """The writer or reader is closed."""


class DamagedStoreError(StoreError, ValueError):
    """Files of the store are missing, cut or changed; ``what`` says it in a few words."""

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what or message.partition(". Hint:")[0]
