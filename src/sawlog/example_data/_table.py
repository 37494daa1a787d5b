"""Examples in a store: one table by id, and their bytes in tables of rows of similar length.

The store is the folder ``data`` of a run. The table ``example`` has the number of bytes of each
example; the bytes are in the column ``bytes/N``, padded, where N is the least power of two that is
enough for them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._paths import absolute
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.example_data._example import Example
from sawlog.example_data._sources import Ids, examples_of

FOLDER = "data"
QUERIES = "queries"  # the folder of a run below which its queries are described
LENGTH = "length"
_LEAST = 64  # bytes of a row
_MOST = 1 << 24
_BATCH_BYTES, _BATCH = 8 << 20, 4096

StrPath = str | os.PathLike[str]


def describe(
    folder: StrPath,
    dataset: Any,
    ids: Ids = None,
    *,
    text: str | None = None,
    image: str | None = None,
) -> int:
    """Store what the examples of a run look like, and return how many there are.

    Examples that were described before are replaced: those of the same ids, or all of them if ids
    were integers and are strings now, or the other way round. See :func:`examples_of` for the
    arguments.

    Args:
        folder: the folder of the run.

    Raises:
        ArgumentError: the data set is of an unknown kind, or ids of both kinds are mixed.
    """
    place = absolute(folder) / FOLDER
    batches = _batches(examples_of(dataset, ids, text=text, image=image))
    first = next(batches, None)
    if first is None:
        return 0
    exists = "replace" if _has_other_ids(place, first) else "append"
    count = 0
    with store.create(
        place, exists=exists, duplicates="replace", meta={"examples": 1}, interval=None
    ) as writer:
        for batch in itertools.chain([first], batches):
            _write(writer, batch)
            count += len(batch)
    return count


def _has_other_ids(place: Path, batch: dict[int | str, bytes]) -> bool:
    """Return whether examples were described before with ids of the other kind."""
    try:
        known = ExampleData(place)
    except StoreNotFoundError:
        return False
    known.close()
    return bool(known.ids) and type(known.ids[0]) is not type(next(iter(batch)))


def _batches(
    examples: Iterable[tuple[int | str, Example]],
) -> Iterator[dict[int | str, bytes]]:
    batch: dict[int | str, bytes] = {}
    total = 0
    for each, example in examples:
        data = example.to_bytes()
        if len(data) > _MOST:
            raise ArgumentError(
                f"The example {each!r} takes {len(data):,} bytes, and at most {_MOST:,} are stored."
            )
        batch[each] = data
        total += len(data)
        if total >= _BATCH_BYTES or len(batch) >= _BATCH:
            yield batch
            batch, total = {}, 0
    if batch:
        yield batch


def _write(writer: store.Writer, batch: dict[int | str, bytes]) -> None:
    kinds = {type(each) for each in batch}
    if len(kinds) > 1:
        raise ArgumentError("Ids must be all integers or all strings. Hint: ids=[...]")
    by_width: dict[int, list[int | str]] = {}
    for each, data in batch.items():
        by_width.setdefault(_width(len(data)), []).append(each)
    for width, own in by_width.items():  # the bytes come first: an id in the table has them
        rows = np.zeros((len(own), width), np.uint8)
        for row, each in zip(rows, own, strict=True):
            row[: len(batch[each])] = np.frombuffer(batch[each], np.uint8)
        writer.append(_array(own), {_column(width): rows})
    lengths = np.array([len(data) for data in batch.values()], np.int64)
    writer.append(_array(list(batch)), {LENGTH: lengths})


def _array(ids: list[int | str]) -> Any:
    return np.array(ids, np.int64) if isinstance(ids[0], int) else list(map(str, ids))


def _width(length: int) -> int:
    return max(_LEAST, 1 << (length - 1).bit_length())


def _column(width: int) -> str:
    return f"bytes/{width}"


class ExampleData:
    """The described examples of a run, by id.

    Args:
        path: the folder of the store.

    Raises:
        StoreNotFoundError: nothing was described.
    """

    def __init__(self, path: StrPath) -> None:
        self._reader = store.open(path)
        if "examples" not in self._reader.meta:
            raise StoreNotFoundError(
                f"The store at {path} does not contain examples. Hint: run.describe(dataset) "
                "stores them."
            )
        has = LENGTH in self._reader.names
        self.ids: list[Any] = list(np.asarray(self._reader.ids(LENGTH)).tolist()) if has else []
        self._known = set(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, each: Any) -> bool:
        return each in self._known

    def get(self, ids: Iterable[Any]) -> dict[Any, Example]:
        """Return the examples of these ids; those that were not described are left out."""
        wanted = [each for each in dict.fromkeys(ids) if each in self._known]
        if not wanted:
            return {}
        lengths = self._reader.gather(_array(wanted), [LENGTH])[LENGTH].tolist()
        size = dict(zip(wanted, lengths, strict=True))
        by_width: dict[int, list[Any]] = {}
        for each in wanted:
            by_width.setdefault(_width(size[each]), []).append(each)
        found: dict[Any, Example] = {}
        for width, own in by_width.items():
            rows = self._reader.gather(_array(own), [_column(width)])[_column(width)]
            for each, row in zip(own, rows, strict=True):
                found[each] = Example.from_bytes(row[: size[each]].tobytes())
        return {each: found[each] for each in wanted}

    def batches(self, size: int = 4096) -> Iterator[dict[Any, Example]]:
        """Yield all examples in order, at most ``size`` at a time."""
        for start in range(0, len(self.ids), size):
            yield self.get(self.ids[start : start + size])

    def close(self) -> None:
        """Close the store."""
        self._reader.close()


def load_examples(folder: StrPath) -> ExampleData | None:
    """Return the described examples of the run at ``folder``; None if nothing was described."""
    try:
        return ExampleData(absolute(folder) / FOLDER)
    except StoreNotFoundError:
        return None


def check_described(folder: StrPath) -> None:
    """Check that examples which were described have ids that the run stores, if it stores rows.

    Raises:
        ArgumentError: none of them does.
    """
    data, stored = load_examples(folder), list(_stored_ids(absolute(folder)))
    if data is None or not stored or any(each in data for each in stored):
        return
    kept = ", ".join(map(repr, stored[:3]))
    described = ", ".join(map(repr, data.ids[:3]))
    many = len(data) > 1
    none = f"None of the {len(data):,} described examples is" if many else "The example is not"
    raise ArgumentError(
        f"{none} in the run: it has ids such as {kept}, and described are {described}. Hint: ids= "
        'says which id the run gave each example (on the command line --ids); "position" counts '
        "from 0."
    )


def _stored_ids(folder: Path) -> Iterator[Any]:
    for file in sorted((folder / "logs").glob("*/store.json")):
        with store.open(file.parent) as reader:
            for table in reader.schema.tables[:1]:
                yield from np.asarray(reader.ids(table.names[0])).tolist()
