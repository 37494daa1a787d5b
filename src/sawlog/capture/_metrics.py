"""``run.log``: values of a Python loop, such as losses, written to the sinks of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog._arrays import to_numpy
from sawlog.errors import ArgumentError, LogValueError
from sawlog.records import Entries, Records
from sawlog.sinks import Fanout, Sink, StoreSink, fail

_HINT = 'Hint: run.log({"loss": loss}, step=i).'


class RunMetrics:
    """Writes logged values to sinks; without any, to a store that the first log opens.

    Args:
        path: the folder of that store.
        sinks: where to write instead; they are closed with the run.

    Raises:
        ArgumentError: one of ``sinks`` is not a sink.
    """

    def __init__(self, path: Path, sinks: Sequence[Sink] | None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._sink: Sink | None = Fanout(*sinks) if sinks else None
        self._opens_store = not sinks

    def log(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Write one entry for each value; see :meth:`CaptureRun.log`."""
        steps = dict(options)
        is_logged = bool(steps.pop("where", True))
        for name in ("prefix", "reduction", "tags"):
            if name in steps:
                raise ArgumentError(
                    f"`{name}` is an option of logs inside JAX programs. Hint: put it into the "
                    'names, such as {"train/loss": loss}.'
                )
        records = _records(_named(args), _step_arrays(steps))
        if not is_logged:
            return
        if not records:
            return
        with self._lock:
            if self._sink is None:
                if not self._opens_store:
                    raise ArgumentError(
                        "The sinks of this run are closed. Hint: log before run.close()."
                    )
                self._sink = StoreSink(self._path)
            self._sink.write(records)

    def flush(self) -> None:
        """Flush the sinks."""
        if self._sink is not None:
            self._sink.flush()

    def finalize(self) -> None:
        """Close the default store, which a later log opens again; flush other sinks."""
        if self._opens_store:
            self.close()
        else:
            self.flush()

    def close(self) -> None:
        """Close the sinks."""
        with self._lock:
            if self._sink is not None:
                self._sink.close()
                self._sink = None

    def fail(self) -> None:
        """Mark the sinks as those of a failed program."""
        if self._sink is not None:
            fail(self._sink)


def _named(args: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the values of ``log(data)`` or ``log(name, value)`` as a dict."""
    if len(args) == 1 and isinstance(args[0], Mapping):
        return args[0]
    if len(args) == 2 and isinstance(args[0], str):
        return {args[0]: args[1]}
    raise LogValueError(f"log takes a dict of values, or a name and a value. {_HINT}")


def _records(data: Mapping[str, Any], steps: Mapping[str, np.ndarray]) -> Records:
    entries = {}
    for name, value in _leaves(data, ""):
        if name in entries:
            raise LogValueError(f"{name!r} is logged twice in one call. Hint: use other names.")
        entries[name] = Entries(_array(name, value)[None], steps=steps)
    return Records(entries)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, lists and tuples, named like ``loss/policy``."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, each in value.items():
        yield from _leaves(each, f"{name}/{key}" if name else str(key))


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = to_numpy(value)
    except (TypeError, ValueError) as error:
        raise _refused(name, value) from error
    if array.dtype.kind not in "biufcV" or array.dtype.names:
        raise _refused(name, value)
    return array.copy()


def _refused(name: str, value: Any) -> LogValueError:
    return LogValueError(
        f"The value of {name!r} is a {type(value).__name__}, not a number or array. Hint: log "
        "tensors, arrays, Python numbers, or dicts of them."
    )


def _step_arrays(steps: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return each step as an array ``[1]``."""
    found = {}
    for axis, value in steps.items():
        array = to_numpy(value)
        if array.ndim or array.dtype.kind not in "biuf":
            raise LogValueError(f"The step {axis!r} must be a number; got {value!r:.80}. {_HINT}")
        found[axis] = array[None]
    return found
