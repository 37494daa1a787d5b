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
    others: list[Chunk] = []
    alike: dict[tuple[str, ...], list[tuple[Series, SeriesChunk]]] = {}
    for chunk in segment.chunks:
        log = schema.find(chunk.first)
        if log is None:
            return False
        if type(log) is Series and type(chunk) is SeriesChunk:
            alike.setdefault(chunk.steps, []).append((log, chunk))
        else:
            others.append(chunk)
    for steps, pairs in alike.items():
        others += _one_of_each_type(segment, steps, pairs)
    return all(schema_mismatch(schema[chunk.first], segment, chunk) is None for chunk in others)


def _one_of_each_type(
    segment: Segment, steps: tuple[str, ...], pairs: list[tuple[Series, SeriesChunk]]
) -> list[SeriesChunk]:
    """Return one chunk for each combination of a type in the schema and one in the segment."""
    tensors, names = segment.tensors, [chunk.name for _, chunk in pairs]
    columns = [log.column for log, _ in pairs]
    parts: list[list[object]] = [
        [id(column.dtype) for column in columns],
        [column.shape for column in columns],
        [id(log.steps) for log, _ in pairs],
    ]
    for prefix in ("", *[step_name(axis, "") for axis in steps]):
        placed = [tensors[prefix + name] for name in names]
        parts += [[id(each.dtype) for each in placed], [each.shape[1:] for each in placed]]
    chunks = [chunk for _, chunk in pairs]
    return list(dict(zip(zip(*parts, strict=True), chunks, strict=True)).values())


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
