"""``StoreSink``: logs in a store, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog import store
from sawlog.errors import StoreExistsError
from sawlog.records import Records
from sawlog.sinks._base import BaseSink

StrPath = str | os.PathLike[str]


class StoreSink(BaseSink):
    """Write to a store, with steps, masks and attributes; ``sawlog.store.open(path)`` reads it.

    Args:
        path: the folder of the store.
        exists: what to do if the store exists: ``"append"`` to it, ``"replace"`` it, or raise an
            ``"error"``.
        meta: metadata, as JSON values; appending requires the metadata that the store has.
        options: those of :func:`sawlog.store.create`, such as ``nan="error"`` or ``interval=5.0``,
            the longest time in seconds until logs are on disk.

    Raises:
        StoreExistsError: the store exists and ``exists="error"``, or it has other metadata.
        SchemaError: from ``write``: entries differ in type from the existing ones.
        StoreWriteError: from any method: writing failed, now or earlier in the background.

    >>> import tempfile, numpy as np, sawlog.store
    >>> from sawlog.records import Entries, Records
    >>> path = tempfile.mkdtemp() + "/run"
    >>> with StoreSink(path) as sink:
    ...     sink.write(Records({"loss": Entries(np.array([0.5]))}))
    >>> sawlog.store.open(path).read("loss")
    array([0.5])
    """

    def __init__(
        self,
        path: StrPath,
        *,
        exists: str = "append",
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._writer = store.create(path, exists=exists, meta=meta, **options)
        self._appends = bool(self._writer.schema)
        try:
            _check_meta(self._writer, dict(meta or {}))
        except BaseException:
            self._writer.close()
            raise

    def __repr__(self) -> str:
        return f"StoreSink({str(self.path)!r})"

    @property
    def appends(self) -> bool:
        """Whether the store had entries before."""
        return self._appends

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._writer.path

    def fail(self) -> None:
        """Let ``close`` record that the program failed; see ``Reader.failed``."""
        super().fail()
        self._writer.fail()

    def _write(self, records: Records) -> None:
        self._writer.write(records)

    def _flush(self) -> None:
        self._writer.flush()

    def _close(self) -> None:
        self._writer.close()


def _check_meta(writer: store.Writer, meta: dict[str, Any]) -> None:
    """Refuse other metadata than the store was created with, which it keeps."""
    there = writer.meta
    if not meta:
        return
    meta = json.loads(json.dumps(meta))  # as read from disk: tuples are lists
    if meta == there:
        return
    differing = sorted(k for k in {*meta, *there} if meta.get(k) != there.get(k))
    was = {k: there.get(k) for k in differing}
    now = {k: meta.get(k) for k in differing}
    raise StoreExistsError(
        f"The store at {writer.path} was started with {was}, and cannot continue with "
        f"{now}. Hint: exists='replace' deletes it first; or choose another folder or key."
    )
