"""Sheets as Arrow tables, and as Parquet and Arrow IPC files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sawlog._optional import require
from sawlog.store._views._arrow import array_of, pyarrow, type_of
from sawlog.store._views._cells import Sheet, coalesced

KEY = b"sawlog"  # the key in the metadata of schemas and fields
_ROW_GROUP = 8 << 20  # bytes; smaller batches are joined


def schema_of(sheet: Sheet, notes: dict[str, Any]) -> Any:
    """Return the Arrow schema of a sheet.

    The metadata of a field has, as JSON under ``sawlog``, its ``role``, ``dtype`` and ``shape`` in
    the store; that of the schema has ``notes``, and the ``names`` with their dtypes and ``attrs``.

    Raises:
        ArgumentError: Arrow has no type for a field.
    """
    pa = pyarrow()
    fields = [
        pa.field(field.name, type_of(field), metadata={KEY: json.dumps(field.to_json())})
        for field in sheet.fields
    ]
    said = {**notes, "names": [column.to_json() for column in sheet.logs], "attrs": sheet.attrs}
    return pa.schema(fields, metadata={KEY: json.dumps(said)})


def batches_of(
    sheet: Sheet, schema: Any, budget: int, least: int, *, copy: bool = True
) -> Iterator[Any]:
    """Yield the sheet as Arrow record batches, joined by :func:`coalesced`."""
    pa = pyarrow()
    for batch in coalesced(sheet.batches(budget), least, copy=copy):
        arrays = [array_of(f, cells) for f, cells in zip(sheet.fields, batch, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_parquet(
    sheet: Sheet, path: Path, notes: dict[str, Any], budget: int, tell: Callable[[int], None]
) -> None:
    """Write a Parquet file, zstd-compressed, with a row group for each batch."""
    pa = pyarrow("Exporting to Parquet")
    parquet = require("pyarrow.parquet", "arrow", "Exporting to Parquet")
    schema = schema_of(sheet, notes)
    texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    options = {"compression": "zstd", "use_dictionary": texts, "store_schema": True}
    with parquet.ParquetWriter(path, schema, **options) as writer:
        for batch in batches_of(sheet, schema, budget, min(_ROW_GROUP, budget // 3)):
            writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
            tell(batch.num_rows)


def write_arrow(
    sheet: Sheet, path: Path, notes: dict[str, Any], budget: int, tell: Callable[[int], None]
) -> None:
    """Write an Arrow IPC file (Feather version 2), uncompressed, so that it can be mapped."""
    pa = pyarrow("Exporting to Arrow")
    schema = schema_of(sheet, notes)
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in batches_of(sheet, schema, budget, min(_ROW_GROUP, budget // 3)):
            writer.write_batch(batch)
            tell(batch.num_rows)
