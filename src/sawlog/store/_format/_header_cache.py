"""A cache of parsed headers: the segments of one program differ in little but their numbers.

A header starts with the version, the store, the writer, the sequence and the order. If all bytes
after that equal those of a header that was parsed and checked before, the result is reused. The
cache is in memory, for one process, and compares the bytes themselves.
"""

from __future__ import annotations

import re

from sawlog.store._format._header import Header

_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_WRITER = rb'\\"([a-z0-9]{1,32})\\"'
_BEGIN = re.compile(
    rb'\{"__metadata__":\{"sawlog":"\{\\"version\\": ([0-9]), \\"store\\": \\"([0-9a-f]{32})\\", '
    rb'\\"writer\\": '
    + _WRITER
    + rb', \\"sequence\\": '
    + _NUMBER
    + rb', \\"order\\": \['
    + _NUMBER
    + rb", "
    + _WRITER
    + rb", "
    + _NUMBER
    + rb"\], "
)
_MOST = 1 << 14  # bytes of a cached header
_MANY = 256  # cached headers
_NOTES = b"attrs"  # mutable, so headers with attrs are not shared

Key = tuple[bytes, bytes, bytes, int, int]


class HeaderCache:
    """Recently parsed headers, by their bytes."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Header, tuple[int, int]]] = {}

    def find(self, text: bytes, size: int) -> tuple[Header, tuple[int, int]] | None:
        """Return a header and the place of its checksums, if an equal one is cached."""
        begin = _BEGIN.match(text)
        if begin is None:
            return None
        found = self._known.get(_key(begin, text, size))
        if found is None:
            return None
        header, checksums = found
        writer, sequence = begin[3].decode(), int(begin[4])
        order = (int(begin[5]), begin[6].decode(), int(begin[7]))
        if not sequence or header.replaces:
            return None
        return header._replace(writer=writer, sequence=sequence, order=order), checksums

    def add(self, text: bytes, size: int, header: Header, checksums: tuple[int, int]) -> None:
        """Add a header that was checked completely."""
        if len(text) > _MOST or header.replaces or _NOTES in text:
            return
        begin = _BEGIN.match(text)
        if begin is not None:
            if len(self._known) >= _MANY:
                self._known.clear()
            self._known[_key(begin, text, size)] = (header, checksums)


def _key(begin: re.Match[bytes], text: bytes, size: int) -> Key:
    return (text[begin.end() :], begin[1], begin[2], len(text), size)
