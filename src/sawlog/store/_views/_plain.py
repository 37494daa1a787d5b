"""Export a store, or some of its names, as one safetensors file with a tensor for each name.

The file has the tensors of a segment (FORMAT.md, section 4) without checksums: ``loss``,
``sawlog.step/step/loss``, ``sawlog.mask/loss``; ``grad``, ``sawlog.ids/grad``. It is written in
small parts, so the store may be larger than memory. Dtypes are preserved. Those that safetensors
does not have are stored as follows, and listed in the metadata:

- complex128 as F64 with a last axis of two, real and imaginary;
- dates and durations as I64, in their unit;
- ``S`` strings as U8 and ``U`` strings as U32, code points, with a last axis of their width;
- anything else (structured types, ``longdouble``, odd floats) as U8, its bytes as a last axis.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog._atomic import write_all
from sawlog.errors import ArgumentError
from sawlog.store._format import _dtypes
from sawlog.store._format._checksum import bytes_of
from sawlog.store._format._chunks import ids_name, mask_name, step_name
from sawlog.store._format._ids import StringIds
from sawlog.store._format._schema import Series, Table
from sawlog.store._reading._stored_ids import stored_ids
from sawlog.store._views._sheets import chosen_names
from sawlog.store._views._stored import StoredSeries, StoredTensor, windows

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader
    from sawlog.store._reading._table_index import TableIndex

_MORE = {  # safetensors types that segments do not use
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_LONGEST = 100_000_000  # bytes; the limit of safetensors for headers
_ABOUT = (
    "Exported by sawlog. The key 'sawlog' is JSON: 'tables' and 'series' say which tensors are the "
    "ids, steps and masks of which names; 'types' has the numpy dtype and shape of tensors that "
    "are stored as another type."
)
Arrays = Callable[[int], Iterator[np.ndarray]]  # yields parts within a budget of bytes


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of the file: its type, and the source of its values."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    arrays: Arrays

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def stored(self) -> tuple[str, tuple[int, ...]]:
        """Return the type and shape in the file."""
        dtype, shape = self.dtype, self.shape
        native = _dtypes.stored_as(dtype) or _MORE.get(dtype.name)
        if native is not None and dtype.names is None:
            return native, shape
        if dtype == np.complex128:
            return "F64", (*shape, 2)
        if dtype.kind in "Mm":
            return "I64", shape
        if dtype.kind == "U":
            return "U32", (*shape, dtype.itemsize // 4)
        return "U8", (*shape, dtype.itemsize)

    @property
    def is_native(self) -> bool:
        """Whether safetensors has the type."""
        return self.dtype.names is None and (
            _dtypes.stored_as(self.dtype) is not None or self.dtype.name in _MORE
        )


def write_safetensors(
    reader: Reader,
    path: Path,
    names: str | Iterable[str] | None,
    notes: dict[str, Any],
    budget: int,
    tell: Callable[[int, int], None],
) -> None:
    """Write the file; ``tell`` is called with the written bytes, and the total.

    Raises:
        ArgumentError: the header is longer than safetensors allows.
    """
    tensors, said = _contents(reader, chosen_names(reader, names))
    tensors.sort(key=lambda tensor: -_alignment(tensor))
    header = _header(tensors, {**notes, **said})
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), header)
        for tensor in tensors:
            for array in tensor.arrays(budget):
                write_all(file.fileno(), bytes_of(np.ascontiguousarray(array)))
                done += array.nbytes
                tell(done, total)
        assert file.tell() == len(header) + total


def _alignment(tensor: Tensor) -> int:
    return 1 if tensor.stored()[0] == "U8" else tensor.dtype.alignment


def _header(tensors: list[Tensor], said: dict[str, Any]) -> bytes:
    entries, offset = {}, 0
    types = {
        t.name: {"dtype": _dtypes.name_of(t.dtype), "shape": list(t.shape)}
        for t in tensors
        if not t.is_native
    }
    for tensor in tensors:
        kind, shape = tensor.stored()
        end = offset + tensor.nbytes
        entries[tensor.name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    metadata = {"about": _ABOUT, "sawlog": json.dumps({**said, "types": types})}
    document = {"__metadata__": metadata, **entries}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    if len(text) > _LONGEST:
        raise ArgumentError(
            f"The names and attrs of this store take {len(text)} bytes, and safetensors allows "
            f"{_LONGEST}. Hint: choose fewer names with names=[...]."
        )
    return struct.pack("<Q", len(text)) + text


# -- contents -------------------------------------------------------------------------------------


def _contents(reader: Reader, names: list[str]) -> tuple[list[Tensor], dict[str, Any]]:
    tensors: list[Tensor] = []
    tables: dict[Table, list[str]] = {}
    series: dict[str, Any] = {}
    for name in names:
        log = reader.schema[name]
        if isinstance(log, Table):
            tables.setdefault(log, []).append(name)
        else:
            more, series[name] = _series(reader, log)
            tensors += more
    described = []
    for table, own in tables.items():
        more, said = _table(reader, table, own)
        tensors += more
        described.append(said)
    return tensors, {"tables": described, "series": series}


def _series(reader: Reader, series: Series) -> tuple[list[Tensor], dict[str, Any]]:
    stored = StoredSeries(reader, series)
    name = stored.name
    tensors = [_whole(name, stored.values)]
    tensors += [_whole(step_name(axis, name), part) for axis, part in stored.steps.items()]
    said: dict[str, Any] = {
        "entries": len(stored),
        "steps": {axis: step_name(axis, name) for axis in stored.steps},
        "attrs": stored.attrs,
    }
    if stored.mask is not None:
        tensors.append(_whole(mask_name(name), stored.mask))
        said["mask"] = mask_name(name)
    return tensors, said


def _table(reader: Reader, table: Table, names: list[str]) -> tuple[list[Tensor], dict[str, Any]]:
    indexed = reader._indexed(table)
    chunks, keep = indexed.chunks, indexed.keep
    columns = [reader.schema.column(name) for name in names]
    tensors = [
        _whole(c.name, StoredTensor(chunks, c.name, c.dtype, c.shape), keep) for c in columns
    ]
    said: dict[str, Any] = {"names": names, "rows": reader.count(names[0])}
    if table.ids == "int":
        ids = StoredTensor(chunks, ids_name(table.names), np.dtype(np.int64), ())
        tensors.append(_whole(ids_name(names), ids, keep))
        return tensors, {**said, "ids": ids_name(names)}
    text, ends = ids_name(names, "text"), ids_name(names, "ends")
    tensors += _text_ids(indexed, keep, text, ends)
    return tensors, {**said, "ids": {"text": text, "ends": ends}}


def _whole(name: str, stored: StoredTensor, keep: np.ndarray | None = None) -> Tensor:
    """Return a tensor with all stored rows, or those to keep."""

    def arrays(budget: int) -> Iterator[np.ndarray]:
        cuts = stored.starts.tolist()
        for start, stop in windows(len(stored), stored.row_bytes, budget, cuts):
            rows = stored.slice(start, stop)
            yield rows if keep is None else rows[keep[start:stop]]
            stored.release(start, stop)

    count = len(stored) if keep is None else int(keep.sum())
    return Tensor(name, stored.dtype, (count, *stored.shape), arrays)


def _text_ids(indexed: TableIndex, keep: np.ndarray | None, text: str, ends: str) -> list[Tensor]:
    """Return the tensors of string ids: all bytes in UTF-8, and the end of each string."""
    starts = indexed.index.starts

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each segment the bytes and the lengths of the ids."""
        for number, (segment, chunk) in enumerate(indexed.chunks):
            texts = stored_ids(segment, chunk)
            assert isinstance(texts, StringIds)
            lengths = np.diff(texts.ends, prepend=0)
            if keep is None:
                yield texts.data, lengths
                continue
            own = keep[int(starts[number]) : int(starts[number + 1])]
            yield texts.data[np.repeat(own, lengths)], lengths[own]

    def all_ends(budget: int) -> Iterator[np.ndarray]:
        del budget
        end = 0
        for _, lengths in parts():
            yield end + np.cumsum(lengths, dtype=np.int64)
            end += int(lengths.sum())

    sizes = [(int(lengths.sum()), len(lengths)) for _, lengths in parts()]
    size, rows = sum(a for a, _ in sizes), sum(b for _, b in sizes)
    data = Tensor(text, np.dtype(np.uint8), (size,), lambda _: (data for data, _ in parts()))
    return [data, Tensor(ends, np.dtype(np.int64), (rows,), all_ends)]
