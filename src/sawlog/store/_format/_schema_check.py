"""Check the chunks of a segment against the schema."""

from __future__ import annotations

from sawlog.store._format._chunks import Chunk, SeriesChunk, TableChunk, step_name
from sawlog.store._format._schema import Column, Log, Schema, Series, Table
from sawlog.store._format._segment import Segment


def schema_mismatch(log: Log, segment: Segment, chunk: Chunk) -> str | None:
    """Return what is wrong with a chunk of a log, or None."""
    if isinstance(chunk, TableChunk):
        fits = (
            isinstance(log, Table)
            and log.ids == chunk.ids
            and log.names == chunk.names
            and all(_same(column, segment, column.name) for column in log.columns)
        )
    else:
        fits = (
            isinstance(log, Series)
            and log.axes == chunk.steps
            and _same(log.column, segment, chunk.name)
            and all(_same(step, segment, step_name(step.name, chunk.name)) for step in log.steps)
        )
    return None if fits else "does not fit the schema"


def all_match_schema(schema: Schema, segment: Segment) -> bool:
    """Return whether every chunk matches. Fast for many series of few types."""
    seen: set[tuple[object, ...]] = set()
    tensors = segment.tensors
    for chunk in segment.chunks:
        log = schema.find(chunk.first)
        if log is None:
            return False
        if isinstance(log, Series) and isinstance(chunk, SeriesChunk):
            column, name = log.column, chunk.name
            parts = [tensors[name], *[tensors[step_name(axis, name)] for axis in chunk.steps]]
            types = [x for part in parts for x in (id(part.dtype), part.shape[1:])]
            key = (id(column.dtype), column.shape, id(log.steps), chunk.steps, *types)
            if key in seen:
                continue
            seen.add(key)
        if schema_mismatch(log, segment, chunk) is not None:
            return False
    return True


def _same(column: Column, segment: Segment, tensor: str) -> bool:
    placed = segment.tensors[tensor]
    return placed.dtype == column.dtype and placed.shape[1:] == column.shape


def log_of(segment: Segment, chunk: Chunk) -> Log:
    """Return the table or series of a chunk, from the types in the segment."""

    def column(tensor: str, name: str) -> Column:
        placed = segment.tensors[tensor]
        return Column(name, placed.dtype, placed.shape[1:])

    if isinstance(chunk, TableChunk):
        columns = tuple(column(name, name) for name in chunk.names)
        return Table(columns, "int" if chunk.ids == "int" else "str")
    steps = tuple(column(step_name(axis, chunk.name), axis) for axis in chunk.steps)
    return Series(column(chunk.name, chunk.name), steps)
