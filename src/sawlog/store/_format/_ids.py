"""Example ids: integers or strings, as users pass them and as they are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np
import numpy.ma  # np.unique would import it, and a fork meanwhile leave the child hanging

from sawlog.errors import SchemaError
from sawlog.store._format._checksum import hash_of

Kind = Literal["int", "str"]


def normalize_ids(ids: Any) -> np.ndarray | list[str]:
    """Convert ids to an int64 array or a list of strings.

    Raises:
        SchemaError: the ids are neither.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or _is_scalar(ids):
        raise SchemaError(f"ids must be a sequence, one for each row; got {ids!r}. Hint: [{ids!r}]")
    if isinstance(ids, (Set, Mapping)):
        raise SchemaError(
            f"ids must be a sequence in the order of the rows; got a {type(ids).__name__}. "
            "Hint: pass a list or an array."
        )
    if isinstance(ids, range):
        ids = np.arange(ids.start, ids.stop, ids.step, dtype=np.int64)
    if not isinstance(ids, (list, tuple)):
        ids = _array(ids) if hasattr(ids, "__array__") else list(ids)
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "US":
        ids = _decoded(ids)
    kinds = set(map(type, ids)) if isinstance(ids, (list, tuple)) else set()
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return _texts(list(ids) if kinds == {str} else [str.__str__(text) for text in ids])
    if kinds & {bool, np.bool_}:
        raise SchemaError(
            "ids must be integers or strings; got booleans. Hint: list(map(int, ids))"
        )
    return _integers(np.asarray(ids) if len(ids) else np.zeros(0, np.int64))


def _is_scalar(ids: Any) -> bool:
    return getattr(ids, "ndim", 1) == 0


def _array(ids: Any) -> np.ndarray:
    if np.ma.is_masked(ids):
        raise SchemaError("Some ids are masked, and every row needs one. Hint: ids.compressed()")
    return np.asarray(ids)


def _decoded(ids: np.ndarray) -> Any:
    """Convert an array of strings or bytes to a list of strings."""
    if ids.ndim != 1 or ids.dtype.kind == "U":
        return ids.tolist()
    try:
        return [text.decode() for text in ids.tolist()]
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"ids that are bytes must be UTF-8; got {error.object!r}: {error.reason}. "
            "Hint: np.char.decode(ids, 'latin-1')"
        ) from error


def _texts(ids: list[str]) -> list[str]:
    """Refuse strings that are not valid Unicode, and cannot be written."""
    joined = "".join(ids)
    try:
        if not joined.isascii():
            joined.encode()
    except UnicodeEncodeError:
        for text in ids:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SchemaError(
                    f"The id {text!r} is not valid Unicode text: {error.reason}. Hint: read files "
                    "as UTF-8, or use os.fsencode(name).hex()."
                ) from error
    return ids


def _integers(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1:
        raise SchemaError(f"ids must have one axis, an id per row; got the shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise SchemaError(
            f"ids must be integers or strings; got {array.dtype}. "
            "Hint: ids.astype(np.int64), or [str(x) for x in ids]"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise SchemaError(f"The id {array.max()} does not fit into int64. Hint: use strings.")
    return array.astype(np.int64)


def kind_of(ids: np.ndarray | list[str]) -> Kind:
    """Return the kind of normalized ids."""
    return "int" if isinstance(ids, np.ndarray) else "str"


def shown_ids(ids: Sequence[Any] | np.ndarray) -> str:
    """Return the first few ids, for a message."""
    shown = [x.item() if isinstance(x, np.generic) else x for x in ids[:5]]
    return ", ".join(map(repr, shown)) + (f", ... ({len(ids)} in all)" if len(ids) > 5 else "")


def hashes_of(ids: list[str]) -> np.ndarray:
    """Return the hash of each string, which is that of its UTF-8 bytes."""
    return np.fromiter(map(hash_of, map(str.encode, ids)), np.uint64, len(ids))


def _encoded(ids: list[str]) -> tuple[bytes, np.ndarray]:
    """Return the UTF-8 bytes of all strings, joined, and the size of each."""
    joined = "".join(ids)
    sizes = map(len, ids) if joined.isascii() else (len(text.encode()) for text in ids)
    return joined.encode(), np.fromiter(sizes, np.int64, len(ids))


_WORD, _MOST_WORDS = 8, 8  # bytes that are compared at once, and how often
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)


class _Words:
    """Bytes that are read eight at a time, from any offset."""

    def __init__(self, data: Any) -> None:
        padded = np.zeros(len(data) + _WORD, np.uint8)
        self.data = padded[: len(data)]
        self.data[:] = data
        self._at = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))

    def __getitem__(self, offsets: np.ndarray) -> np.ndarray:
        """Return the eight bytes from each offset on; zeros follow the last byte."""
        return self._at[offsets]


@dataclasses.dataclass(frozen=True)
class StringIds:
    """String ids as they are stored: all bytes, the end of each string, and the hashes."""

    words: _Words
    ends: np.ndarray
    hashes: np.ndarray

    @classmethod
    def stored(cls, data: np.ndarray, ends: np.ndarray, hashes: np.ndarray) -> StringIds:
        """Copy the three tensors of a chunk."""
        return cls(_Words(data), ends.copy(), hashes.copy())

    @property
    def data(self) -> np.ndarray:
        """The bytes of all strings."""
        return self.words.data

    @classmethod
    def of(cls, ids: list[str]) -> StringIds:
        """Encode strings."""
        data, sizes = _encoded(ids)
        words = _Words(np.frombuffer(data, np.uint8))
        return cls(words, np.cumsum(sizes), hashes_of(ids))

    def __len__(self) -> int:
        return len(self.ends)

    def _bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the strings of some rows start and end."""
        starts = np.where(rows > 0, self.ends[rows - 1], 0) if len(rows) else rows
        return starts, self.ends[rows]

    def take(self, rows: np.ndarray | slice | None = None) -> list[str]:
        """Return the strings of some rows, or of all."""
        chosen = np.arange(len(self))[slice(None) if rows is None else rows]
        starts, ends = self._bounds(chosen)
        if not len(chosen):
            return []
        low, high = int(starts.min()), int(ends.max())
        data = self.data[low:high].tobytes()
        pairs = zip((starts - low).tolist(), (ends - low).tolist(), strict=True)
        return [data[start:end].decode() for start, end in pairs]

    def same(self, rows: np.ndarray, others: list[str]) -> np.ndarray:
        """Return for each row whether its string equals the other."""
        starts, ends = self._bounds(rows)
        joined, sizes = _encoded(others)
        good = ends - starts == sizes
        words, begins = _Words(np.frombuffer(joined, np.uint8)), np.cumsum(sizes) - sizes
        for start in range(0, _MOST_WORDS * _WORD, _WORD):
            left = np.clip(sizes - start, 0, _WORD)
            if not (left[good]).any():
                return good
            at = np.flatnonzero(good & (left > 0))
            apart = self.words[starts[at] + start] ^ words[begins[at] + start]
            good[at[(apart & _MASKS[left[at]]) != 0]] = False
        for row in np.flatnonzero(good & (sizes > _MOST_WORDS * _WORD)).tolist():  # long strings
            own = self.data[starts[row] : ends[row]].tobytes()
            good[row] = own == joined[begins[row] : begins[row] + sizes[row]]
        return good
