"""Sets of segments, as sorted ranges of sequence numbers for each writer."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping

from sawlog.store._format import _parse

Range = tuple[int, int]  # the first and the last number


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Merge ranges into sorted ones that do not touch.

    >>> joined([(5, 6), (1, 2), (3, 3), (6, 8)])
    [(1, 3), (5, 8)]
    """
    out: list[Range] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            if last > out[-1][1]:
                out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return out


class Ranges:
    """A set of segments, such as those that exist, were replaced, or are missing.

    >>> some = Ranges.of([("a", 2), ("a", 1), ("b", 1), ("a", 4)])
    >>> some.to_json(), some.has("a", 4), some.has("a", 3)
    ({'a': [[1, 2], [4, 4]], 'b': [[1, 1]]}, True, False)
    """

    def __init__(self, by_writer: Mapping[str, Iterable[Range]] | None = None) -> None:
        found = {writer: joined(ranges) for writer, ranges in (by_writer or {}).items()}
        self._by_writer = {writer: ranges for writer, ranges in found.items() if ranges}

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, int]]) -> Ranges:
        """Build a set from ``(writer, sequence)`` pairs."""
        found: dict[str, list[Range]] = {}
        for writer, sequence in pairs:
            found.setdefault(writer, []).append((sequence, sequence))
        return cls(found)

    @classmethod
    def union(cls, parts: Iterable[Ranges]) -> Ranges:
        """Return the union of several sets."""
        found: dict[str, list[Range]] = {}
        for part in parts:
            for writer, ranges in part._by_writer.items():
                found.setdefault(writer, []).extend(ranges)
        return cls(found)

    @classmethod
    def from_json(cls, value: object) -> Ranges:
        """Parse ``replaces`` of a segment's description.

        Raises:
            Malformed: the value is invalid.
        """
        found = {}
        for writer, ranges in _parse.mapping(value, "'replaces'").items():
            _parse.writer(writer, "a key of 'replaces'")
            found[writer] = [_range(each) for each in _parse.sequence(ranges, "'replaces'")]
        return cls(found)

    def to_json(self) -> dict[str, list[list[int]]]:
        """Return ``replaces`` of a segment's description."""
        return {w: [[a, b] for a, b in ranges] for w, ranges in sorted(self._by_writer.items())}

    def __bool__(self) -> bool:
        return bool(self._by_writer)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for writer, ranges in sorted(self._by_writer.items()):
            for first, last in ranges:
                yield writer, first, last

    def has(self, writer: str, sequence: int) -> bool:
        """Return whether the set contains a segment."""
        ranges = self._by_writer.get(writer)
        if ranges is None:
            return False
        at = bisect.bisect_right(ranges, (sequence, _parse.MOST)) - 1
        return at >= 0 and ranges[at][0] <= sequence <= ranges[at][1]

    def last(self) -> dict[str, int]:
        """Return the greatest sequence of each writer."""
        return {writer: ranges[-1][1] for writer, ranges in self._by_writer.items()}

    def gaps(self, last: Mapping[str, int]) -> Ranges:
        """Return, for each writer, the sequences from 1 to ``last`` that are not in the set."""
        found = {}
        for writer, end in last.items():
            holes, start = [], 1
            for first, stop in self._by_writer.get(writer, ()):
                if first > end:
                    break
                if first > start:
                    holes.append((start, first - 1))
                start = stop + 1
            if start <= end:
                holes.append((start, end))
            found[writer] = holes
        return Ranges(found)


def _range(value: object) -> Range:
    pair = _parse.sequence(value, "a range of 'replaces'")
    if len(pair) != 2:
        _parse.fail("a range of 'replaces' is not a pair of numbers")
    first = _parse.integer(pair[0], "a range of 'replaces'", 1)
    return first, _parse.integer(pair[1], "a range of 'replaces'", first)
