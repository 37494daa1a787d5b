"""Shared work: which process does a piece of work whose result goes to a store."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from sawlog.store._disk import Lease
from sawlog.store._format._json_files import write_error
from sawlog.store._format._layout import Folder

WAIT = 0.2  # seconds after which to ask again what other processes have done


class SharedWork:
    """Pieces of work by name, each done by one of the processes that share a store.

    A claim is a lock, which the system releases when its process ends, however it ends. On a disk
    without locks, several processes may have the same claim: they do the work twice.

    Args:
        path: The folder of the store.
    """

    def __init__(self, path: Path) -> None:
        self._folder = Folder(path)
        self._held: dict[str, Lease] = {}

    def take(self, names: Iterable[str], most: int, is_done: Callable[[str], bool]) -> list[str]:
        """Claim up to ``most`` of these names, of those that no process has claimed.

        Args:
            names: The names, the most wanted first.
            most: How many to claim.
            is_done: Whether the result is in the store. It is asked with the claim in hand: another
                process may have done the work since the names were listed.
        """
        taken: list[str] = []
        for name in names:
            if len(taken) == most:
                break
            lease = None if name in self._held else self._lease(name)
            if lease is None:
                continue
            self._held[name] = lease
            if is_done(name):
                self._leave(name, remove=True)
            else:
                taken.append(name)
        return taken

    def done(self) -> None:
        """Leave all claims: their results are in the store, for all processes to see."""
        for name in list(self._held):
            self._leave(name, remove=True)

    def __enter__(self) -> SharedWork:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave claims whose work is not done to other processes."""
        for name in list(self._held):
            self._leave(name, remove=False)

    def _lease(self, name: str) -> Lease | None:
        try:
            return self._folder.disk.lease(_file(name))
        except OSError as error:
            raise write_error(error, "sharing work in", self._folder.path) from error

    def _leave(self, name: str, *, remove: bool) -> None:
        """Release a claim, and remove its file if the work is done.

        A process that has opened the removed file, or creates a new one, finds the work done.
        """
        if remove:
            with contextlib.suppress(OSError):
                self._folder.disk.delete(_file(name))
        self._held.pop(name).release()


def _file(name: str) -> str:
    return f"tmp/{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.claim"
