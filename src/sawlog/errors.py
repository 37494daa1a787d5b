"""Every public exception of sawlog.

Each message tells what happened, where (a name, a path, the user's source line), the probable
reason, and what to do next. All exceptions derive from :class:`SawlogError`, and each also from the
built-in exception that fits, so ``except ValueError`` works as usual.
"""

from __future__ import annotations


class SawlogError(Exception):
    """Base class of every exception that sawlog raises on purpose."""


class MissingPackageError(SawlogError, ImportError):
    """An optional package is required, and not installed."""


class UnsupportedJaxError(SawlogError, ImportError):
    """The installed version of JAX is not supported."""


class LogValueError(SawlogError, TypeError):
    """A value passed to ``log`` cannot be logged."""


class ArgumentError(SawlogError, TypeError):
    """An argument or option is invalid."""


class LogMismatchError(SawlogError, ValueError):
    """One name was logged with different shapes, dtypes, structures or steps."""


class UnsupportedPrimitiveError(SawlogError, NotImplementedError):
    """A log is inside a JAX primitive that has no rule."""


class UnsupportedLoopError(SawlogError, NotImplementedError):
    """A log is inside a loop whose length is not known when the program is compiled."""


class LogPlacementError(SawlogError, RuntimeError):
    """``log`` was called where no transformation can see it."""


class CallbackError(SawlogError, RuntimeError):
    """The callback of ``tap`` raised inside a compiled program."""


class SinkWarning(UserWarning):
    """A sink failed, and its logs are written elsewhere; the message names the place."""


class UnmatchedNameWarning(UserWarning):
    """A selected name, tag or pattern matches no log; the message lists similar ones."""


class UnknownLogError(SawlogError, KeyError):
    """Nothing was logged under this name."""

    __str__ = Exception.__str__  # KeyError shows its message in quotes


class AppendWarning(UserWarning):
    """A logger appends to runs of an earlier program."""


class CompiledModelWarning(UserWarning):
    """A module compiled by ``torch.compile`` runs as it is written while its batches are logged."""


class SinkTimeoutError(SawlogError, TimeoutError):
    """A sink did not return in time, and is no longer used."""


class UncoveredError(SawlogError, NotImplementedError):
    """No layer rule covers some parameters of a model."""


class CaptureError(SawlogError, RuntimeError):
    """A batch cannot be logged with these options."""


class MixedExamplesError(CaptureError):
    """Examples of a batch depend on each other, so they have no gradients of their own."""


class ProcessLostError(SawlogError, RuntimeError):
    """Another process of a distributed job ended, or did not come in time."""


class WeightsMismatchError(SawlogError, ValueError):
    """Logs or statistics were computed with different weights of the model."""


class ReplayError(SawlogError, RuntimeError):
    """A training run could not be replayed bit for bit."""


class RoughTrainingWarning(UserWarning):
    """Derivatives of one training run do not predict a small change of its data."""


class StoreError(SawlogError):
    """Base class of the errors of stores."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at this path."""


class StoreExistsError(StoreError, FileExistsError):
    """A store exists at this path, and may not be replaced or appended to."""


class ForeignStoreError(StoreError, ValueError):
    """The folder contains something that is not a sawlog store."""


class NewerStoreError(StoreError, ValueError):
    """The store was written in a newer version of the format."""


class StorePermissionError(StoreError, PermissionError):
    """The store, or the folder it should be in, cannot be read or written."""


class SchemaError(StoreError, ValueError):
    """A write does not match the names, dtypes, shapes or steps of the store."""


class UnknownNameError(StoreError, KeyError):
    """The store has no such name."""

    __str__ = Exception.__str__  # KeyError shows its message in quotes


class UnknownIdError(StoreError, KeyError):
    """The store has no such example id."""

    __str__ = Exception.__str__


class DuplicateIdError(StoreError, ValueError):
    """An example id was written twice, which the policy of the store refuses."""


class NanError(StoreError, ValueError):
    """A value is NaN, which the policy of the store refuses."""


class StoreWriteError(StoreError, OSError):
    """Logs could not be written to disk; what was published before is safe."""


class StoreReadError(StoreError, OSError):
    """The system failed to read a file, which may be intact; try again."""


class StoreFullError(StoreWriteError):
    """The disk, or the quota, is full; what was published before is safe."""


class StoreClosedError(StoreError, ValueError):
    """The writer or reader is closed."""


class DamagedStoreError(StoreError, ValueError):
    """Files of the store are missing, truncated or changed; ``what`` is a short description."""

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what or message.partition(". Hint:")[0]
