"""``sawlog export``: the same data in a format that other programs read."""

from __future__ import annotations

import sawlog.store
from sawlog.cli._chosen import matching
from sawlog.cli._commands import Export
from sawlog.cli._format import plain, size
from sawlog.cli._outcome import OK
from sawlog.cli._screen import Screen
from sawlog.cli._table import Column, table

_COLUMNS = (Column("file", folds=16, style="bold"), Column("size", right=True))


def run(arguments: Export, screen: Screen) -> int:
    """Carry out ``sawlog export``."""
    with sawlog.store.open(arguments.path) as reader:
        names = matching(reader.schema, arguments.names) if arguments.names else None
        with screen.progress(f"exporting {arguments.path.name}") as progress:
            written = sawlog.store.export(
                reader,
                arguments.target,
                names=names,
                format=arguments.format,
                long=arguments.long,
                overwrite=arguments.overwrite,
                progress=progress,
            )
    sizes = {path: path.stat().st_size for path in written}
    if arguments.json:
        files = [{"file": str(path), "bytes": nbytes} for path, nbytes in sizes.items()]
        screen.print_json({"path": str(arguments.path), "files": files})
    else:
        rows = [[plain(str(path)), size(nbytes)] for path, nbytes in sizes.items()]
        screen.print(table(_COLUMNS, rows, screen.width))
    return OK
