"""Stage the entries of one ``log``, ``extend`` or ``write``: match the series, fill the segment."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from sawlog.errors import SchemaError
from sawlog.records import Entries
from sawlog.store._format._empty_items import MOST, empty_items_of_row
from sawlog.store._format._json_files import check_json
from sawlog.store._format._layout import Config
from sawlog.store._format._schema import Log, Schema, Series
from sawlog.store._reading._catalog import Catalog
from sawlog.store._writing._accepted import WriterCall
from sawlog.store._writing._nan_policy import check_nan
from sawlog.store._writing._pending import OwnedEntries
from sawlog.store._writing._pipeline import Pipeline
from sawlog.store._writing._validate_write import all_series, as_series

_NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


class EntryStaging:
    """Stages entries for one writer; ``known`` has the series that it has written to."""

    def __init__(
        self,
        catalog: Catalog,
        config: Config,
        pipeline: Pipeline,
        *,
        path: Path,
        segment_bytes: int,
    ) -> None:
        self._catalog, self._config, self._pipeline = catalog, config, pipeline
        self._path, self._segment_bytes = path, segment_bytes
        self.known: dict[str, Series] = {}

    def stage(self, call: WriterCall, records: dict[str, Entries]) -> None:
        """Stage the entries of every name."""
        for name, entries in records.items():
            if entries.attrs:
                check_json(dict(entries.attrs), f"attrs of {name!r}")
        series = self._all_series(records)
        if self._config.nan != "allow":
            values = {name: entries.values for name, entries in records.items()}
            check_nan(self._config.nan, values, self._path)
        self._put(call, [*zip(series.values(), records.values(), strict=True)])
        self.known.update(series)

    def _all_series(self, records: dict[str, Entries]) -> dict[str, Series]:
        """Return the series of every name, in their order, after declaring new ones."""
        found = all_series(self._catalog.schema, records)

        def wanted(schema: Schema) -> list[Log]:
            found.update(all_series(schema, records))
            new = {name: records[name] for name, series in found.items() if series is None}
            made = as_series(schema, new, self._config.fixed)
            found.update(made)
            return list(made.values())

        if None in found.values():
            self._catalog.declare(wanted)
        return cast(dict[str, Series], found)

    def _put(self, call: WriterCall, found: list[tuple[Series, Entries]]) -> None:
        """Copy entries into one segment, so that all entries of a call are published together."""
        parts = _bytes_per_entry(found)
        sizes = [size for size, _ in parts]
        counts = [len(entries.values) for _, entries in found]
        total, room = sum(map(operator.mul, sizes, counts)), self._segment_bytes
        if any(empty for _, empty in parts):
            room = min(room, MOST)
            _check_empty(found, [empty * n for (_, empty), n in zip(parts, counts, strict=True)])
        if call.nbytes + total + 1 > room:
            self._pipeline.wait_for_room(total)
            if call.nbytes + total > room:
                call.seal()
        masked = [(s, entries.mask) for s, entries in found if entries.mask is not None]
        if not all(call.chunk(s).takes(call.key, mask) for s, mask in masked):
            call.seal()
        key, chunk = call.key, call.chunk
        for size, count, (series, entries) in zip(sizes, counts, found, strict=True):
            if count or entries.attrs:
                chunk(series).add_entries(key, entries, max(1, room // size))
        call.count(total)
        if call.nbytes + 1 > room:
            call.seal()


def _check_empty(found: list[tuple[Series, Entries]], counts: list[int]) -> None:
    """Refuse more items without bytes than a segment may have."""
    if sum(counts) > MOST:
        most = counts.index(max(counts))
        name, values = found[most][0].column.name, found[most][1].values
        raise SchemaError(
            f"{name!r} would get values {values.dtype}{list(values.shape)}, which are "
            f"{counts[most]} empty items, and a call may add {MOST}. The call was refused as a "
            "whole. Hint: log fewer at once, or arrays that are not empty."
        )


def one_entry(values: np.ndarray, steps: Mapping[str, np.ndarray]) -> Entries:
    """Build ``Entries`` of length 1 without checks: a call may have a hundred thousand names.

    Small arrays must be read-only copies: buffers keep them.
    """
    made = object.__new__(OwnedEntries)
    parts = made.__dict__
    parts["values"], parts["steps"], parts["mask"], parts["attrs"] = values, steps, None, _NO_ATTRS
    return made


def _bytes_per_entry(found: list[tuple[Series, Entries]]) -> list[tuple[int, int]]:
    """Return for one entry of each series its size, and how many items of that have no bytes.

    An item without bytes counts as one byte: the file has as many.
    """
    known: dict[tuple[Any, ...], tuple[int, int]] = {}
    out = []
    for series, entries in found:
        column = series.column
        key = (id(column.dtype), column.shape, id(series.steps))
        sizes = known.get(key)
        if sizes is None:
            columns = (column, *series.steps)
            empty = sum([each.empty_items for each in columns])
            sizes = known[key] = sum([each.row_bytes for each in columns]) + empty, empty
        if entries.mask is not None:
            own = empty_items_of_row(entries.mask.dtype, entries.mask.shape[1:])
            sizes = sizes[0] + entries.mask[:1].nbytes + own, sizes[1] + own
        out.append(sizes)
    return out
