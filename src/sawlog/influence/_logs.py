"""``Logs``: rows by example id, of one layer or many, in memory or in a store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog import store
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog._validate import positive_integer
from sawlog.errors import ArgumentError, StoreError
from sawlog.influence._join_logs import join_arguments
from sawlog.influence._layer_names import choose_layers
from sawlog.influence._memory_source import MemorySource
from sawlog.influence._rows import ExampleRows, Ids, LayerRows, is_real
from sawlog.influence._store_source import StoreSource
from sawlog.run_files._provenance import Provenance

BUDGET = 256 << 20


class Logs:
    """Rows of examples, which can be iterated any number of times.

    Args:
        source: the path of a store, a reader, other logs, or a dict of arrays ``[n, ...]`` by
            layer.
        ids: the ids of the examples of a dict; their indices by default.
        names: the layers to use. By default all gradients, or all logs if there are no gradients.
        meta: metadata for the rows of a dict, as a store has it: ``options``, ``blocks``, and
            ``provenance``, the weights they were computed with.

    Raises:
        ArgumentError: a layer does not exist, arrays do not match in length, or ``ids`` is given
            with a store, which has its own.

    >>> logs = Logs({"grad/w": np.eye(2)}, ids=["a", "b"])
    >>> logs.layers, logs.ids
    (['w'], ['a', 'b'])
    >>> logs.gather(["b"]).columns["w"].values
    array([[0., 1.]])
    """

    def __init__(
        self,
        source: Logs | store.Reader | Mapping[str, Any] | str | os.PathLike[str],
        *,
        ids: Any = None,
        names: Sequence[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if ids is not None and not isinstance(source, Mapping):
            raise ArgumentError(
                "`ids` names the rows of a dict of arrays; logs and stores have their own. "
                "Hint: Logs(source).gather(ids) returns the rows of some examples."
            )
        available: list[str] | None = None
        self.source: MemorySource | StoreSource
        if isinstance(source, Logs):
            self.source, available = source.source, source.layers
        elif isinstance(source, Mapping):
            self.source = MemorySource(source, ids, meta or {})
        elif isinstance(source, store.Reader):
            self.source = StoreSource(source)
        elif isinstance(source, (str, os.PathLike)):
            self.source = StoreSource(store.open(source))
        else:
            kind = f"the path of a store, a reader, Logs, or a dict of arrays; got {_kind(source)}"
            raise ArgumentError(f'Rows must be {kind}. Hint: {{"layer": rows}} or run.store_path.')
        available = self.source.layers if available is None else available
        self.layers: list[str] = choose_layers(available, names, self.source.known)

    @classmethod
    def join(cls, several: Iterable[Logs]) -> Logs:
        """Concatenate logs in memory, such as those of several batches of queries.

        Raises:
            ArgumentError: Their layers or compression differ, or an id occurs twice.
            WeightsMismatchError: They come from different weights of the model.
        """
        logs = list(several)
        if not logs:
            raise ArgumentError("There are no logs to join. Hint: Logs.join([run.get_log(), ...]).")
        return logs[0] if len(logs) == 1 else cls(**join_arguments(logs))

    def __add__(self, other: Logs) -> Logs:
        return Logs.join([self, other]) if isinstance(other, Logs) else NotImplemented

    # -- what the logs contain --------------------------------------------------------------------

    def __len__(self) -> int:
        return self.source.count(self.layers)

    @property
    def ids(self) -> Ids:
        """The ids of all examples in order."""
        return self.source.ids(self.layers)

    @property
    def reader(self) -> store.Reader | None:
        """The reader of the store; None for logs in memory."""
        return self.source.reader

    @property
    def path(self) -> str | None:
        """The path of the store; None for logs in memory."""
        return self.source.path

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the rows."""
        return self.source.meta

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """The weights that the rows were computed with; empty if unknown."""
        return self.source.provenance

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the store, with those of scales.

        Raises:
            ArgumentError: The logs are in memory.
        """
        if not isinstance(self.source, StoreSource):
            raise ArgumentError("Logs in memory have no columns. Hint: logs.layers.")
        return self.source.columns(self.layers)

    @property
    def ragged(self) -> list[str]:
        """The layers whose examples have different numbers of positions."""
        return self.source.ragged(self.layers)

    @property
    def files(self) -> int:
        """The number of parts that can be read independently: the segments of a store."""
        return self.source.files

    @property
    def elements(self) -> int:
        """The number of elements of an example, over all layers."""
        return self._sizes()[1]

    def shapes(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return the stored dtype and shape of the rows of each layer.

        Raises:
            ArgumentError: Some rows are not real numbers, such as strings. Lists them and the
                layers that are real numbers.
        """
        found = self.source.types(self.layers)
        _check_real({name: dtype for name, (dtype, _) in found.items()}, self.path)
        return found

    def state(self) -> str:
        """Return a hash that changes with any row."""
        return self.source.state(self.layers)

    def check_state(self, state: str) -> None:
        """Raise a StoreError if the store has changed since it was in this :meth:`state`."""
        if self.reader is not None and self.state() != state:
            raise StoreError(
                f"The store at {self.path} changed while it was read. Hint: call again; parts in "
                "checkpoint=... that were scored before the change are not reused."
            )

    def usable_device(self, device: ArrayDevice) -> ArrayDevice:
        """Return ``device`` if it can hold the stored dtypes, otherwise numpy."""
        held = all(device.holds(dtype) for dtype, _ in self.shapes().values())
        return device if held else NUMPY

    # -- rows -------------------------------------------------------------------------------------

    def parts(
        self, budget: int = BUDGET, part: tuple[int, int] = (0, 1), *, copies: int = 0
    ) -> Iterator[ExampleRows]:
        """Yield all examples in order, or the i-th of n parts of them, in blocks.

        Args:
            budget: bytes for the current block, the one read ahead, and the copies of both.
            part: ``(i, n)``.
            copies: bytes per element that the caller needs in addition, not counting the
                conversion to float32.
        """
        positive_integer("budget", budget)
        stored, elements, wide = self._sizes()
        each = 2 * stored + elements * (copies if wide else copies + 4)
        most = max(1, budget // max(1, each))
        yield from self.source.blocks(self.layers, most, stored, part)

    def _sizes(self) -> tuple[int, int, bool]:
        """Return bytes and elements per example, and whether all are float32 or float64."""
        sizes = [(dtype, math.prod(shape)) for dtype, shape in self.shapes().values()]
        stored = sum(dtype.itemsize * size for dtype, size in sizes)
        wide = all(dtype in (np.float32, np.float64) for dtype, _ in sizes)
        return stored, sum(size for _, size in sizes), wide

    def gather(self, ids: Any) -> ExampleRows:
        """Return the rows of these examples, in this order.

        Raises:
            UnknownIdError: Some ids do not exist.
            ArgumentError: Rows are not real numbers.
        """
        self.shapes()
        return self.source.gather(self.layers, ids)

    def of(self, part: ExampleRows) -> Logs:
        """Return some of the rows as logs in memory, with the same metadata."""
        meta = {**self.meta, "provenance": [each.to_json() for each in self.provenance]}
        return Logs(part.rows(), ids=part.ids, meta=meta)

    def scan(self, budget: int = BUDGET, device: ArrayDevice = NUMPY) -> Iterator[dict[str, Any]]:
        """Yield the rows of every layer in blocks, with room for four copies in float64."""
        for part in self.parts(budget, copies=32):
            yield part.rows(device)

    def batches(self, budget: int) -> Iterator[ExampleRows]:
        """Yield all examples in batches that take ``budget`` bytes in float64.

        A batch has at least one example. Its rows are in float32 or float64.
        """
        most = max(1, budget // (8 * max(1, self.elements)))
        if len(self) <= most:
            yield self.whole()
            return
        ids = self.ids
        for start in range(0, len(ids), most):
            yield self.gather(ids[start : start + most]).widened()

    def whole(self) -> ExampleRows:
        """Return all examples in memory, in float32 or float64."""
        parts = list(self.parts())
        if len(parts) == 1:
            return parts[0].widened()
        ids: Any = [each for part in parts for each in part.ids]
        columns = {
            name: LayerRows(np.concatenate([part.columns[name].rows() for part in parts]))
            for name in (self.layers if parts else [])
        }
        if parts and isinstance(parts[0].ids, np.ndarray):
            ids = np.concatenate([np.asarray(part.ids) for part in parts])
        return ExampleRows(ids, columns)


def _check_real(dtypes: Mapping[str, np.dtype], path: str | None) -> None:
    odd = {name: dtype for name, dtype in dtypes.items() if not is_real(dtype)}
    if not odd:
        return
    where = "" if path is None else f" at {path}"
    listed = ", ".join(f"{name!r} ({dtype})" for name, dtype in list(odd.items())[:5])
    real = [name for name in dtypes if name not in odd]
    hint = f"choose layers by names={real!r}" if real else "log gradients, or other real numbers"
    raise ArgumentError(f"Rows{where} are not real numbers: {listed}. Hint: {hint}.")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of the type {type(value).__name__}"
