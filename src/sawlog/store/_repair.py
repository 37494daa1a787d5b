"""``repair``: give up what is damaged, on purpose, so that the rest can be used as before."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from sawlog.errors import DamagedStoreError
from sawlog.store._catalog import Catalog, Problem, Ranges
from sawlog.store._compact import Output, alone
from sawlog.store._files import explained, publish, to_json
from sawlog.store._layout import FORMAT, Folder, identity_of
from sawlog.store._segment import VERSION, parse_name
from sawlog.store._verify import Progress, salvaged_identity


def repair(path: str | os.PathLike[str], progress: Progress | None = None) -> list[Problem]:
    """Move damaged files to the folder ``damaged/``, and note that they and missing ones are gone.

    What is intact in a damaged file is kept. Returns what was given up. Ids that were lost are
    missing afterwards, so ``writer.missing(ids)`` lists them and a resumed run writes them again.

    Raises:
        StoreNotFoundError, ForeignStoreError, NewerStoreError: there is no store to repair.
        StorePermissionError, StoreFullError, StoreWriteError: it cannot be written to.
    """
    folder = Folder(Path(path))
    identity = salvaged_identity(folder)
    folder.make()
    with alone(folder):
        catalog = Catalog(folder, identity, "skip", look=False)
        catalog.progress = progress
        catalog.refresh()
        problems = list(catalog.problems)
        try:
            problems = _repair_identity(folder, problems)
            _repair_schema(folder, catalog, problems)
            _give_up(folder, catalog, problems)
        except OSError as error:
            raise explained(error, "repairing", folder.path) from error
    return problems


def _repair_identity(folder: Folder, problems: list[Problem]) -> list[Problem]:
    try:
        identity_of(folder)
    except DamagedStoreError:
        identity = salvaged_identity(folder)
        _set_aside(folder, "store.json")
        said = {"format": FORMAT, "version": VERSION, "id": identity.id, "created": ""}
        said.update(config=dataclasses.asdict(identity.config), meta={})
        publish(to_json(said), folder.identity, folder.tmp)
        return [Problem("store.json", "missing, cut or changed; its notes are lost"), *problems]
    return problems


def _repair_schema(folder: Folder, catalog: Catalog, problems: list[Problem]) -> None:
    if not any(problem.file.startswith("schema") for problem in problems):
        return
    logs = list(dict.fromkeys(catalog.schema.values()))
    for path in sorted(folder.schema.glob("*.json")):
        _set_aside(folder, f"schema/{path.name}")
    data = to_json({"add": [log.to_json() for log in logs]})
    publish(data, folder.schema / f"{1:08d}.json", folder.tmp)


def _give_up(folder: Folder, catalog: Catalog, problems: list[Problem]) -> None:
    files = [Path(p.file).name for p in problems if p.file.startswith("segments/")]
    pairs = [pair for name in files if (pair := parse_name(name)) is not None]
    if not pairs:
        return
    out = Output(folder, salvaged_identity(folder))
    for segment in catalog.segments:
        if segment.name in files:  # some of it is intact, and is published anew
            out.merge([segment], {})
            pairs.remove((segment.writer, segment.sequence))
    out.publish([], {}, out.after(catalog.clock), Ranges.of(pairs))
    for name in files:
        _set_aside(folder, f"segments/{name}")


def _set_aside(folder: Folder, file: str) -> None:
    target = folder.path / "damaged" / file.replace("/", "-")
    target.parent.mkdir(exist_ok=True)
    if (folder.path / file).exists():
        os.replace(folder.path / file, target)
