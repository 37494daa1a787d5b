"""Example ids, integers or strings: as they are stored, as a set, and as an index of rows.

Strings are looked up by their hash; a found row counts only if its text is the same.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np

from sawlog.errors import SchemaError
from sawlog.store._format._checksum import hash_of

Kind = Literal["int", "str"]


def normalize_ids(ids: Any) -> np.ndarray | list[str]:
    """Ids as an int64 array or a list of strings.

    Raises:
        SchemaError: they are neither.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or _is_scalar(ids):
        raise SchemaError(f"ids are a sequence, one for each row, not {ids!r}. Hint: [{ids!r}]")
    if isinstance(ids, (Set, Mapping)):
        raise SchemaError(
            f"ids are a sequence, in the order of the rows, not a {type(ids).__name__}. "
            "Hint: a list, or an array."
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
            "ids are integers or strings, not truth values. Hint: list(map(int, ids))"
        )
    return _integers(np.asarray(ids) if len(ids) else np.zeros(0, np.int64))


def _is_scalar(ids: Any) -> bool:
    return getattr(ids, "ndim", 1) == 0


def _array(ids: Any) -> np.ndarray:
    if np.ma.is_masked(ids):
        raise SchemaError("Some ids are masked, and every row needs one. Hint: ids.compressed()")
    return np.asarray(ids)


def _decoded(ids: np.ndarray) -> Any:
    """An array of strings or bytes as a list of strings."""
    if ids.ndim != 1 or ids.dtype.kind == "U":
        return ids.tolist()
    try:
        return [text.decode() for text in ids.tolist()]
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"ids in bytes are UTF-8, and {error.object!r} is not: {error.reason}. "
            "Hint: np.char.decode(ids, 'latin-1')"
        ) from error


def _texts(ids: list[str]) -> list[str]:
    """Refuse strings that are no Unicode text, and could not be written."""
    try:
        "".join(ids).encode()
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
        raise SchemaError(f"ids have one axis, one id for each row, not the shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise SchemaError(
            f"ids are integers or strings, not {array.dtype}. "
            "Hint: ids.astype(np.int64), or [str(x) for x in ids]"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise SchemaError(f"the id {array.max()} does not fit into int64. Hint: use strings")
    return array.astype(np.int64)


def kind_of(ids: np.ndarray | list[str]) -> Kind:
    """What these ids are."""
    return "int" if isinstance(ids, np.ndarray) else "str"


def shown_ids(ids: Sequence[Any] | np.ndarray) -> str:
    """A few of them, for a message."""
    shown = [x.item() if isinstance(x, np.generic) else x for x in ids[:5]]
    return ", ".join(map(repr, shown)) + (f", ... ({len(ids)} in all)" if len(ids) > 5 else "")


@dataclasses.dataclass(frozen=True)
class StringIds:
    """String ids as they are stored: all bytes, where each ends, and their hashes."""

    data: np.ndarray
    ends: np.ndarray
    hashes: np.ndarray

    @classmethod
    def of(cls, ids: list[str]) -> StringIds:
        """Pack strings."""
        texts = [text.encode() for text in ids]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        data = np.frombuffer(b"".join(texts), dtype=np.uint8)
        hashes = np.array([hash_of(text) for text in texts], dtype=np.uint64)
        return cls(data, ends.reshape(len(texts)), hashes)

    def __len__(self) -> int:
        return len(self.ends)

    def _bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the texts of some rows start and end."""
        starts = np.where(rows > 0, self.ends[rows - 1], 0) if len(rows) else rows
        return starts, self.ends[rows]

    def take(self, rows: np.ndarray | slice | None = None) -> list[str]:
        """The strings of some rows, or all."""
        chosen = np.arange(len(self))[slice(None) if rows is None else rows]
        starts, ends = self._bounds(chosen)
        if not len(chosen):
            return []
        low, high = int(starts.min()), int(ends.max())
        data = self.data[low:high].tobytes()
        pairs = zip((starts - low).tolist(), (ends - low).tolist(), strict=True)
        return [data[start:end].decode() for start, end in pairs]

    def same(self, rows: np.ndarray, others: list[bytes]) -> np.ndarray:
        """For each of these rows whether it has this text."""
        starts, ends = self._bounds(rows)
        sizes = np.fromiter(map(len, others), dtype=np.int64, count=len(others))
        good = ends - starts == sizes
        number = np.repeat(np.arange(len(rows)), np.where(good, sizes, 0))
        own = np.frombuffer(b"".join(itertools.compress(others, good.tolist())), np.uint8)
        begins = np.cumsum(np.where(good, sizes, 0)) - sizes
        at = np.arange(len(number)) + (starts - begins)[number]
        good[number[self.data[at] != own]] = False
        return good
