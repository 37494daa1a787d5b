"""Example ids, integers or strings: as they are stored, as a set, and as an index of rows.

Strings are looked up by their hash; a found row counts only if its text is the same.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np

from sawlog.errors import DuplicateIdError, SchemaError
from sawlog.store._checksum import hash_of

Kind = Literal["int", "str"]


def normal(ids: Any) -> np.ndarray | list[str]:
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


def some(ids: Sequence[Any] | np.ndarray) -> str:
    """A few of them, for a message."""
    shown = [x.item() if isinstance(x, np.generic) else x for x in ids[:5]]
    return ", ".join(map(repr, shown)) + (f", ... ({len(ids)} in all)" if len(ids) > 5 else "")


class IdSet:
    """A growing set of ids that can be asked about many at once."""

    def __init__(self, kind: Kind) -> None:
        self._texts: set[str] | None = set() if kind == "str" else None
        # sorted, each at most half as long as the one before
        self._runs: tuple[np.ndarray, ...] = ()

    def add(self, ids: np.ndarray | list[str]) -> None:
        """Take in more. Stopped in the middle, it can be done again, and nothing is lost."""
        if self._texts is not None:
            self._texts.update(ids)
            return
        run, runs = np.unique(ids), self._runs
        while runs and len(runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate([runs[-1], run]), kind="stable")
            runs = runs[:-1]
        if len(run):
            self._runs = (*runs, run)

    def has(self, ids: np.ndarray | list[str]) -> np.ndarray:
        """For each id whether it is there."""
        if self._texts is not None:
            texts = self._texts
            return np.fromiter((text in texts for text in ids), dtype=bool, count=len(ids))
        found = np.zeros(len(ids), dtype=bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, ids), len(run) - 1)
            found |= run[at] == ids
        return found


def first_of_each(ids: np.ndarray | list[str]) -> np.ndarray:
    """For each id whether it stands here for the first time."""
    if isinstance(ids, np.ndarray):
        if len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
            return np.ones(len(ids), dtype=bool)
        first = np.zeros(len(ids), dtype=bool)
        first[np.unique(ids, return_index=True)[1]] = True
        return first
    seen: set[str] = set()
    return np.array([not (text in seen or seen.add(text)) for text in ids], dtype=bool)  # type: ignore[func-returns-value]


@dataclasses.dataclass(frozen=True)
class Texts:
    """String ids as they are stored: all bytes, where each ends, and their hashes."""

    data: np.ndarray
    ends: np.ndarray
    hashes: np.ndarray

    @classmethod
    def of(cls, ids: list[str]) -> Texts:
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


class Index:
    """Where each id of a table is: numbers of rows, counted over all its chunks in order."""

    def __init__(self, chunks: Sequence[np.ndarray | Texts], policy: str, table: str) -> None:
        """Sort the ids.

        ``policy`` says which row counts where an id is there twice.

        Raises:
            DuplicateIdError: an id is there twice and the policy is ``error``.
        """
        self._chunks = chunks
        self.starts = np.cumsum([0, *map(len, chunks)])
        self.rows = int(self.starts[-1])
        keys = [chunk.hashes if isinstance(chunk, Texts) else chunk for chunk in chunks]
        self._texts = bool(chunks) and isinstance(chunks[0], Texts)
        self._clashes: dict[str, int] = {}
        self.superseded: np.ndarray | None = None
        self._sort(np.concatenate(keys) if keys else np.zeros(0, np.int64))
        self._settle(policy, table)

    def _sort(self, keys: np.ndarray) -> None:
        if len(keys) < 2 or bool((keys[1:] > keys[:-1]).all()):
            self._keys, self._at = keys, None
            return
        self._at = np.argsort(keys, kind="stable")
        self._keys = keys[self._at]

    def _settle(self, policy: str, table: str) -> None:
        """Let one row of every id count."""
        if self._at is None:
            return
        same = self._keys[1:] == self._keys[:-1]
        if not same.any():
            return
        keep = np.ones(len(self._keys), dtype=bool)
        drop: list[int] = []
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for low, high in zip(edges[::2].tolist(), (edges[1::2] + 1).tolist(), strict=True):
            rows = self._at[low:high]
            groups = self._by_text(rows)
            if len(groups) > 1:  # texts whose hashes are equal: looked up one by one
                keep[low:high] = False
                self._clashes.update((t, g[-1 if policy == "replace" else 0]) for t, g in groups)
            else:
                keep[low : high - 1] = False
                self._at[high - 1] = rows[-1] if policy == "replace" else rows[0]
            drop += [r for _, g in groups for r in (g[:-1] if policy == "replace" else g[1:])]
        if drop and policy == "error":
            raise self._twice(np.array(sorted(drop)), table)
        self._keys, self._at = self._keys[keep], self._at[keep]
        if drop:
            self.superseded = np.zeros(self.rows, dtype=bool)
            self.superseded[drop] = True

    def _by_text(self, rows: np.ndarray) -> list[tuple[str, list[int]]]:
        if not self._texts:
            return [("", rows.tolist())]
        groups: dict[str, list[int]] = {}
        for row, text in zip(rows.tolist(), self.texts(rows), strict=True):
            groups.setdefault(text, []).append(row)
        return list(groups.items())

    def _twice(self, rows: np.ndarray, table: str) -> DuplicateIdError:
        chunk = np.searchsorted(self.starts, rows, side="right") - 1
        ids: Any = (
            self.texts(rows[:6])
            if self._texts
            else [
                int(self._chunks[c][r - self.starts[c]])
                for c, r in zip(chunk[:6], rows[:6], strict=True)
            ]
        )
        return DuplicateIdError(
            f"{table} has {len(rows)} ids more than once, written by several writers at once: "
            f"{some(ids)}. Hint: open(path, duplicates='first') or 'replace' takes the first or "
            "the last row of each."
        )

    def texts(self, rows: np.ndarray) -> list[str]:
        """The string ids of some rows."""
        out: list[str] = [""] * len(rows)
        for chunk, where, own in self.split(rows):
            texts = self._chunks[chunk]
            assert isinstance(texts, Texts)
            for place, text in zip(where.tolist(), texts.take(own), strict=True):
                out[place] = text
        return out

    def split(self, rows: np.ndarray) -> Iterable[tuple[int, np.ndarray, np.ndarray]]:
        """Rows by chunk: its number, where they stand in ``rows``, and the rows within it."""
        if len(self._chunks) == 1:
            yield 0, np.arange(len(rows)), rows
            return
        chunk = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        bounds = np.searchsorted(chunk[order], np.arange(len(self._chunks) + 1))
        for number in range(len(self._chunks)):
            where = order[bounds[number] : bounds[number + 1]]
            if len(where):
                yield number, where, rows[where] - self.starts[number]

    def find(self, ids: np.ndarray | list[str]) -> np.ndarray:
        """The row of each id, -1 where there is none."""
        texts = [text.encode() for text in ids] if isinstance(ids, list) else []
        keys = np.array(list(map(hash_of, texts)), np.uint64) if isinstance(ids, list) else ids
        if not len(self._keys):
            rows = np.full(len(ids), -1, dtype=np.int64)
        else:
            at = np.empty(len(keys), np.int64)
            order = np.argsort(keys, kind="stable")  # neighbours are found near each other
            at[order] = np.searchsorted(self._keys, keys[order])
            at = np.minimum(at, len(self._keys) - 1)
            rows = at if self._at is None else self._at[at]
            rows = np.where(self._keys[at] == keys, rows, -1)
        if isinstance(ids, list):
            self._drop_other_texts(rows, texts)
            if self._clashes:
                rows[:] = [self._clashes.get(x, r) for x, r in zip(ids, rows, strict=True)]
        return rows

    def _drop_other_texts(self, rows: np.ndarray, texts: list[bytes]) -> None:
        """Forget rows that were found by a hash and have another text."""
        there = np.flatnonzero(rows >= 0)
        for chunk, where, own in self.split(rows[there]):
            stored = self._chunks[chunk]
            assert isinstance(stored, Texts)
            asked = there[where]
            good = stored.same(own, [texts[i] for i in asked.tolist()])
            rows[asked[~good]] = -1
