"""An index from example id to row.

Strings are found by their hash, and the text of the row that was found is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sawlog.errors import DuplicateIdError
from sawlog.store._format._ids import StringIds, hashes_of, shown_ids


class IdIndex:
    """Maps ids of a table to row numbers, counted over all its chunks in order."""

    def __init__(self, chunks: Sequence[np.ndarray | StringIds], policy: str, table: str) -> None:
        """Sort the ids.

        ``policy`` selects the row that counts if an id occurs twice.

        Raises:
            DuplicateIdError: an id occurs twice, and the policy is ``"error"``.
        """
        self.chunks = chunks  # the ids of each chunk
        self.starts = np.cumsum([0, *map(len, chunks)])
        self.rows = int(self.starts[-1])
        keys = [chunk.hashes if isinstance(chunk, StringIds) else chunk for chunk in chunks]
        self._texts = bool(chunks) and isinstance(chunks[0], StringIds)
        self._clashes: dict[str, int] = {}
        self.superseded: np.ndarray | None = None
        self._sort(np.concatenate(keys) if keys else np.zeros(0, np.int64))
        self._settle(policy, table)
        self._dense = not self._texts and self._has_no_gaps()

    def _has_no_gaps(self) -> bool:
        """Return whether the ids are all integers of a range, such as positions in a data set."""
        keys = self._keys
        return len(keys) > 0 and int(keys[-1]) - int(keys[0]) == len(keys) - 1

    def _sort(self, keys: np.ndarray) -> None:
        if len(keys) < 2 or bool((keys[1:] > keys[:-1]).all()):
            self._keys, self._at = keys, None
            return
        self._at = np.argsort(keys, kind="stable")
        self._keys = keys[self._at]

    def _settle(self, policy: str, table: str) -> None:
        """Select one row of every id."""
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
            if len(groups) > 1:  # different strings with the same hash: looked up by text
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
                int(self.chunks[c][r - self.starts[c]])
                for c, r in zip(chunk[:6], rows[:6], strict=True)
            ]
        )
        return DuplicateIdError(
            f"{table} has {len(rows)} ids more than once, written by several writers at once: "
            f"{shown_ids(ids)}. Hint: open(path, duplicates='first') reads the first row of each, "
            "'replace' the last."
        )

    def texts(self, rows: np.ndarray) -> list[str]:
        """Return the string ids of some rows."""
        out: list[str] = [""] * len(rows)
        for chunk, where, own in self.split(rows):
            texts = self.chunks[chunk]
            assert isinstance(texts, StringIds)
            for place, text in zip(where.tolist(), texts.take(own), strict=True):
                out[place] = text
        return out

    def split(self, rows: np.ndarray) -> Iterable[tuple[int, np.ndarray, np.ndarray]]:
        """Yield for each chunk: its number, positions in ``rows``, and rows within the chunk."""
        if len(self.chunks) == 1:
            yield 0, np.arange(len(rows)), rows
            return
        chunk = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        bounds = np.searchsorted(chunk[order], np.arange(len(self.chunks) + 1))
        for number in range(len(self.chunks)):
            where = order[bounds[number] : bounds[number + 1]]
            if len(where):
                yield number, where, rows[where] - self.starts[number]

    def find(self, ids: np.ndarray | list[str]) -> np.ndarray:
        """Return the row of each id, or -1."""
        keys = hashes_of(ids) if isinstance(ids, list) else ids
        if not len(self._keys):
            rows = np.full(len(ids), -1, dtype=np.int64)
        elif self._dense:
            there = (keys >= self._keys[0]) & (keys <= self._keys[-1])
            at = np.where(there, keys - self._keys[0], 0)
            rows = np.where(there, at if self._at is None else self._at[at], -1)
        else:
            order = np.argsort(keys)  # sorted lookups use the cache better
            wanted = keys[order]
            at = np.searchsorted(self._keys, wanted)
            np.minimum(at, len(self._keys) - 1, out=at)
            found = at if self._at is None else self._at[at]
            rows = np.empty(len(keys), np.int64)
            rows[order] = np.where(self._keys[at] == wanted, found, -1)
        if isinstance(ids, list):
            self._drop_other_texts(rows, ids)
            if self._clashes:
                rows[:] = [self._clashes.get(x, r) for x, r in zip(ids, rows, strict=True)]
        return rows

    def _drop_other_texts(self, rows: np.ndarray, texts: list[str]) -> None:
        """Set rows to -1 that were found by hash and have another string."""
        there = np.flatnonzero(rows >= 0)
        for chunk, where, own in self.split(rows[there]):
            stored = self.chunks[chunk]
            assert isinstance(stored, StringIds)
            asked = there[where]
            whole = len(asked) == len(texts)  # then they are in order
            good = stored.same(own, texts if whole else [texts[i] for i in asked.tolist()])
            rows[asked[~good]] = -1
