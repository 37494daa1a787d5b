"""Headers that were read before: segments of one program differ in little but their numbers.

The first bytes of a header that :func:`sawlog.store._prepare.prepare` wrote have the version, the
store, the writer, the sequence and the order. If all other bytes are those of a header that was
read and found good, so is what they say. Nothing is taken from a disk: this is the memory of one
process, by the bytes themselves.
"""

from __future__ import annotations

import re

from sawlog.store._header import Header

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
_MOST = 1 << 14  # bytes of a header that is kept
_MANY = 256  # of them
_NOTES = b"attrs"  # belong to one segment: whoever reads them may change them

Key = tuple[bytes, bytes, bytes, int, int]


class Recall:
    """Good headers by their bytes, the last of them."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Header, tuple[int, int]]] = {}

    def find(self, text: bytes, size: int) -> tuple[Header, tuple[int, int]] | None:
        """A header, and where its checksums are, if all but its first bytes was read before."""
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
        """Keep a header that was checked from end to end."""
        if len(text) > _MOST or header.replaces or _NOTES in text:
            return
        begin = _BEGIN.match(text)
        if begin is not None:
            if len(self._known) >= _MANY:
                self._known.clear()
            self._known[_key(begin, text, size)] = (header, checksums)


def _key(begin: re.Match[bytes], text: bytes, size: int) -> Key:
    return (text[begin.end() :], begin[1], begin[2], len(text), size)
