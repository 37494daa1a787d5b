"""The static part of a logdict, which JAX compares to decide whether two have one structure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from sawlog.jax._logdict.entries import EmptyKey, Slot


class LogdictLayout:
    """The slots of a logdict, in the order in which its keys were first logged.

    ``empty`` holds the names that the program knows but did not log in this run. Equality ignores
    it: two logdicts that differ only in ``empty`` have the same structure.
    """

    __slots__ = ("_hash", "by_key", "empty", "keys", "masked", "slots")

    def __init__(self, slots: Iterable[Slot], empty: Mapping[str, EmptyKey] | None = None) -> None:
        self.slots = tuple(slots)
        self.empty = dict(empty or {})
        self.keys = tuple(slot.key for slot in self.slots)
        self.by_key = {slot.key: slot for slot in self.slots}
        self.masked = any(slot.masked for slot in self.slots)
        self._hash = hash(self.slots)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LogdictLayout) and self.slots == other.slots)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"LogdictLayout({', '.join(self.keys)})"

    def to_bytes(self) -> bytes:
        """Serialize the slots, for ``jax.export``."""
        return json.dumps([dataclasses.asdict(slot) for slot in self.slots]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LogdictLayout:
        """Invert :meth:`to_bytes`."""
        rows = json.loads(bytes(data).decode())
        return cls(Slot(**{**row, "steps": tuple(row["steps"])}) for row in rows)
