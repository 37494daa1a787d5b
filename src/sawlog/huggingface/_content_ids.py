"""Ids that are computed from the content of examples.

They are those of the rows of a dataset: the same in every batch, whatever it is padded to, and in
every process, however rows are divided among them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from sawlog._arrays import to_numpy
from sawlog.capture import data_ids
from sawlog.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class ByContent:
    """How examples are named by their content.

    Args:
        row: returns the name of an item of a dataset.
        batch: returns the names of the examples of a batch, for streams of items, and for items
            that do not have what ``row`` needs before they are collated.
    """

    row: Callable[[Any], str]
    batch: Callable[[Any], Sequence[str]]

    def names(self, dataset: Any) -> np.ndarray | None:
        """Return the names of all rows of a dataset; None if ``row`` cannot name them."""
        found = self.of_items(dataset[i] for i in range(len(dataset)))
        return None if found is None else data_ids(numbered(found, Counter()))

    def of_items(self, items: Iterable[Any]) -> list[str] | None:
        """Return the names of items, without numbers; None if ``row`` cannot name them."""
        try:
            return [self.row(each) for each in items]
        except (KeyError, TypeError, IndexError):
            return None


def numbered(names: Iterable[str], times: Counter[str]) -> list[str]:
    """Return names in which one that occurs again has a number, as ``"text#2"``.

    >>> numbered(["a", "b", "a"], Counter())
    ['a', 'b', 'a#2']
    """
    found = []
    for each in names:
        times[each] += 1
        found.append(each if times[each] == 1 else f"{each}#{times[each]}")
    return found


def row_hash(item: Any) -> str:
    """Return a hash of an item of a dataset, of all its columns.

    >>> row_hash({"a": [1, 2], "b": "x"}) == row_hash({"b": "x", "a": np.array([1, 2])})
    True

    Raises:
        ArgumentError: it has a value whose content is not known, such as an image.
    """
    digest = xxhash.xxh3_128()
    _add(digest, item, nested=False)
    return str(digest.hexdigest())


def batch_hashes(batch: Mapping[str, Any]) -> list[str]:
    """Return a hash of the content of each example of a batch."""
    size = len(next(iter(batch.values())))
    return [str(data_ids({k: v[i : i + 1] for k, v in batch.items()})[0]) for i in range(size)]


def _add(digest: Any, value: Any, nested: bool = True) -> None:
    if isinstance(value, Mapping):
        if nested:  # otherwise a dict in a column could end anywhere
            digest.update(f"{len(value)}\0".encode())
        for key in sorted(value, key=str):
            digest.update(f"{key}\0".encode())
            _add(digest, value[key])
        return
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        digest.update(f"{value!r}\0".encode())
        return
    array = _array(value)
    if array is not None:
        digest.update(f"{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, Sequence):
        digest.update(f"{len(value)}\0".encode())
        for each in value:
            _add(digest, each)
    else:
        raise ArgumentError(
            f'data_id="hash" cannot hash a {type(value).__name__} of the dataset. Hint: '
            'data_id="column" takes ids from a column.'
        )


def _array(value: Any) -> np.ndarray | None:
    try:
        array = to_numpy(value)
    except (ValueError, TypeError):
        return None
    return None if array.dtype == object else array
