"""``repair``: set damaged files of a store aside, so that the rest is usable again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from sawlog._atomic import new_name
from sawlog.errors import DamagedStoreError, StoreNotFoundError
from sawlog.store._format._header import parse_name
from sawlog.store._format._json_files import to_json, write_error
from sawlog.store._format._layout import IDENTITY, Folder, Identity, identity_of
from sawlog.store._format._sequence_ranges import Ranges
from sawlog.store._maintenance._replacements import ReplacementWriter, exclusive_lease
from sawlog.store._maintenance._verify import Progress, salvaged_identity
from sawlog.store._reading._catalog import Catalog, Problem

_DAMAGED = "damaged"


def repair(path: str | os.PathLike[str], progress: Progress | None = None) -> list[Problem]:
    """Move damaged files to the folder ``damaged/``, and record them and missing files as lost.

    Intact parts of damaged files are kept. Lost ids count as missing afterwards:
    ``writer.missing(ids)`` lists them, and a resumed run writes them again.

    Returns:
        The files that were removed or missing.

    Raises:
        StoreNotFoundError, ForeignStoreError, NewerStoreError: ``path`` is not a store that this
            version can repair.
        StorePermissionError, StoreFullError, StoreWriteError: the store cannot be written to.
        StoreReadError: the system failed to read a file, which may be intact.
    """
    folder = Folder(Path(path))
    identity = salvaged_identity(folder)
    lost = _lost_folders(folder)
    folder.make_all()
    with exclusive_lease(folder):
        identity, problems = _repair_identity(folder, identity)
        problems += lost
        catalog = Catalog(folder, identity, "skip", look=False)
        catalog.progress = progress
        catalog.refresh()
        problems += catalog.problems
        try:
            _repair_schema(folder, catalog, problems)
            _replace_lost(folder, identity, catalog)
        except OSError as error:
            raise write_error(error, "repairing", folder.path) from error
    return problems


def _lost_folders(folder: Folder) -> list[Problem]:
    """Return missing folders as problems; raise if a file has the name of a folder."""
    try:
        folder.check()
    except StoreNotFoundError:
        raise
    except DamagedStoreError as error:
        if not error.what.endswith("missing"):
            raise
        return [Problem("segments", "the folder is missing")]
    return []


def _repair_identity(folder: Folder, identity: Identity) -> tuple[Identity, list[Problem]]:
    """Write a new ``store.json`` if it is damaged; never replace an intact one."""
    try:
        return identity_of(folder), []
    except DamagedStoreError as error:
        what = f"missing, cut or changed; its meta is lost ({error.what})"
    made = dataclasses.replace(identity, id=identity.id or new_name(32))
    try:
        _set_aside(folder, [IDENTITY])
        folder.disk.put_new(IDENTITY, to_json(made.to_json()))
    except OSError as error:
        raise write_error(error, "repairing", folder.path) from error
    return identity_of(folder), [Problem(IDENTITY, what)]


def _repair_schema(folder: Folder, catalog: Catalog, problems: list[Problem]) -> None:
    if not any(problem.file.startswith("schema/") for problem in problems):
        return
    logs = list(dict.fromkeys(catalog.schema.values()))
    names = sorted(folder.names("schema"))
    _set_aside(folder, [f"schema/{name}" for name in names if name.endswith(".json")])
    data = to_json({"add": [log.to_json() for log in logs]})
    folder.disk.put(f"schema/{1:08d}.json", data)


def _replace_lost(folder: Folder, identity: Identity, catalog: Catalog) -> None:
    """Publish the intact parts of damaged segments, and a segment that replaces the lost ones."""
    if not (catalog.missing or catalog.broken or catalog.partly):
        return
    out = ReplacementWriter(folder, identity)
    intact = [segment for segment in catalog.segments if segment.name in catalog.partly]
    for segment in intact:
        out.merge([segment], {})
    broken = [parsed for name in catalog.broken if (parsed := parse_name(name)) is not None]
    lost = Ranges.union([catalog.missing, Ranges.of(broken)])
    if lost:
        out.publish([], {}, out.after(catalog.clock), lost)
    _set_aside(folder, [f"segments/{name}" for name in (*catalog.broken, *catalog.partly)])


def _set_aside(folder: Folder, files: Iterable[str]) -> None:
    """Move files to ``damaged/``, under names that are free."""
    folder.disk.make((_DAMAGED,))
    taken = set(folder.disk.list(_DAMAGED))
    for file in files:
        target = name = file.replace("/", "-")
        number = 1
        while target in taken:
            number += 1
            target = f"{name}.{number}"
        taken.add(target)
        with contextlib.suppress(FileNotFoundError):
            folder.disk.move(file, f"{_DAMAGED}/{target}")
