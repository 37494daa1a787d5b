"""``examples_of``: the examples of a data set with their ids, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.example_data._convert import Columns, example_from
from sawlog.example_data._example import Example
from sawlog.example_data._files import rows_of_file

Ids: TypeAlias = str | Sequence[Any] | Callable[[Any], Any] | None
POSITION = "position"

_TAKES = (
    "a Hugging Face dataset, a data frame or table (pandas, polars, Arrow), a dict by id, a list "
    "or torch dataset, a file (.jsonl, .csv, .tsv, .parquet, .txt), or a folder of images"
)


def examples_of(
    dataset: Any,
    ids: Ids = None,
    *,
    text: str | None = None,
    image: str | None = None,
) -> Iterator[tuple[int | str, Example]]:
    """Yield ``(id, example)`` for each example of a data set.

    Args:
        dataset: a Hugging Face dataset, a data frame of pandas or polars, an Arrow table, a dict
            from ids to examples, a list or torch dataset, the path of a file (``.jsonl``, ``.csv``,
            ``.tsv``, ``.parquet``, or ``.txt`` with one text a line), or the path of a folder of
            images. An example is a text, an image, a dict of columns, or a pair
            ``(example, label)``.
        ids: the ids: a list of them; the name of a column; a function of an example; or
            ``"position"``, which counts from 0. None takes the keys of a dict, the column ``id``,
            the index of a data frame that has other labels than positions, or else positions.
            Images of a folder are identified by their path in it, unless ``ids`` is given.
        text, image: the columns with the text and the image; None finds them by their names and
            types.

    Raises:
        ArgumentError: the data set is not one of these, an id occurs twice, or the number of ids
            is not that of examples.

    >>> list(examples_of(["one", "two"]))
    [(0, Example(text='one')), (1, Example(text='two'))]
    >>> list(examples_of([("cat.", 3)], ids=["a"]))
    [('a', Example(text='cat.', fields={'label': 3}))]
    """
    columns = Columns(text, image)
    numbered = _given_ids(ids)
    places: dict[int | str, int] = {}
    for place, (own, item) in enumerate(_items(dataset)):
        found = _id_of(ids, numbered, own, item, place)
        if places.setdefault(found, place) != place:
            raise ArgumentError(
                f"The examples {places[found]} and {place} (from 0 on) have the same id, {found!r}."
                ' Hint: give each its own; ids="position" counts from 0.'
            )
        yield found, example_from(item, columns)
    if numbered is not None and len(numbered) != len(places):
        raise _other_number(numbered, str(len(places)))


def _given_ids(ids: Ids) -> list[Any] | None:
    """Return ids that were given as a list, array or series; None for other choices."""
    if ids is None or isinstance(ids, str) or callable(ids):
        return None
    listed: Iterable[Any] = ids.tolist() if hasattr(ids, "tolist") else ids
    return list(listed)


def _id_of(ids: Ids, numbered: list[Any] | None, own: Any, item: Any, place: int) -> int | str:
    if numbered is not None:
        if place >= len(numbered):
            raise _other_number(numbered, "more")
        found = numbered[place]
    elif ids == POSITION:
        found = place
    elif isinstance(ids, str):
        if not isinstance(item, Mapping) or ids not in item:
            raise ArgumentError(
                f"Example {place} (from 0 on) has no column {ids!r}. Hint: ids= is the name of a "
                'column, a list, a function of an example, or "position".'
            )
        found = item[ids]
    elif callable(ids):
        found = ids(item)
    elif own is not None:
        found = own
    else:
        found = item["id"] if isinstance(item, Mapping) and "id" in item else place
    return _checked_id(found)


def _other_number(ids: list[Any], examples: str) -> ArgumentError:
    return ArgumentError(
        f"The number of ids is {len(ids)}, that of examples {examples}. Hint: give one id for each."
    )


def _checked_id(found: Any) -> int | str:
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, (int, str)):
        refuse("ids", "integers or strings, one for each example", found)
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        refuse("ids", "integers of 64 bits, or strings", found)
    return found


def _items(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """Yield ``(id or None, example)`` in order; None where the example has no id of its own."""
    if isinstance(dataset, (str, os.PathLike)):
        return rows_of_file(Path(dataset))
    if isinstance(dataset, Mapping):
        if hasattr(dataset, "column_names"):  # splits, by name
            refuse("dataset", "one of its splits", list(dataset), "dataset[name].")
        return iter(dataset.items())
    if hasattr(dataset, "iterrows"):
        return _of_frame(dataset)
    if hasattr(dataset, "to_frame") and hasattr(dataset, "items"):  # a series of pandas
        numbered = _is_numbered(dataset)
        return ((None if numbered else own, item) for own, item in dataset.items())
    if hasattr(dataset, "iter_rows"):  # a data frame of polars
        return ((None, row) for row in dataset.iter_rows(named=True))
    if hasattr(dataset, "to_pylist") and hasattr(dataset, "schema"):  # a table of Arrow
        parts = dataset.to_batches() if hasattr(dataset, "to_batches") else [dataset]
        return ((None, row) for part in parts for row in part.to_pylist())
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return ((None, dataset[place]) for place in range(len(dataset)))
    if isinstance(dataset, Iterable):
        return ((None, item) for item in dataset)
    refuse("dataset", _TAKES, dataset)


def _is_numbered(frame: Any) -> bool:
    """Return whether the labels of a data frame or series of pandas are positions."""
    return list(frame.index.tolist()) == list(range(len(frame)))


def _of_frame(frame: Any) -> Iterator[tuple[Any, Any]]:
    labels = list(frame.index.tolist())
    by_column = "id" in frame.columns or _is_numbered(frame)
    records = frame.to_dict("records")
    for label, row in zip(labels, records, strict=True):
        yield None if by_column else label, {str(name): value for name, value in row.items()}
