"""Ids of examples: integers, strings, or a hash of the content of each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from sawlog._array_device import to_numpy
from sawlog.errors import ArgumentError

_HINT = "Hint: data_id=[3, 4, 5], data_id=['a', 'b'], or the inputs themselves, data_id=x."


def data_ids(given: Any, *, once: bool = True) -> np.ndarray:
    """Return ids as an array ``[batch]`` of int64 or of strings.

    A sequence or array of integers or strings is the ids themselves. An array of several axes, or
    a dict of arrays, is the examples, and each is named by a hash of its content: the same example
    always has the same name.

    Args:
        given: the ids, or the examples.
        once: whether an id that occurs twice is an error.

    Raises:
        ArgumentError: an id occurs twice, or the value does not identify examples, such as one
            float for each of them.

    >>> data_ids([3, 1]).tolist(), data_ids(np.zeros((1, 2), np.float32)).tolist()
    ([3, 1], ['dc17dc4595ff36d714359aedbc59aedb'])
    """
    ids = _plain(given)
    if ids is None:
        ids = _hashes(given)
    if once:
        _check_once(ids)
    return ids


def are_kept(ids: np.ndarray, last: bool = False) -> np.ndarray:
    """Return which ids of a batch are the first of several equal ones, or the last, as a mask.

    >>> are_kept(np.array([3, 1, 3])).tolist(), are_kept(np.array([3, 1, 3]), last=True).tolist()
    ([True, True, False], [False, True, True])
    """
    kept = np.zeros(len(ids), bool)
    kept[np.unique(ids[::-1] if last else ids, return_index=True)[1]] = True
    return np.ascontiguousarray(kept[::-1]) if last else kept


def _plain(given: Any) -> np.ndarray | None:
    if isinstance(given, (int, str)) and not isinstance(given, bool):
        raise ArgumentError(f"data_id must name every example of a batch; got {given!r}. {_HINT}")
    if isinstance(given, Mapping):
        return None
    if isinstance(given, Sequence) and len(given) and isinstance(given[0], str):
        if not all(isinstance(each, str) for each in given):
            raise ArgumentError(f"data_id mixes strings with other types in one batch. {_HINT}")
        return np.asarray(given, dtype=object).astype(str)
    array = _array(given)
    if array is None:
        return None
    if array.size == 0 and array.ndim <= 1:
        return np.zeros(0, np.int64)
    if array.ndim == 1 and array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
            raise ArgumentError(
                "An id is above 2**63 - 1, the largest int64. Hint: strings, such as [str(x) for x "
                "in ids]."
            )
        return array.astype(np.int64)
    if array.ndim == 1 and array.dtype.kind != "U":
        raise ArgumentError(
            f"Ids are integers or strings, and data_id has one {array.dtype} for each example. "
            "Hint: ids.astype(int), if all of them are integers; data_id={'x': x}, if they are the "
            "inputs, names each example by a hash of its content."
        )
    return array if array.ndim == 1 else None


def _array(given: Any) -> np.ndarray | None:
    """Return an array of any library as a numpy array."""
    try:
        array = to_numpy(given)
    except (ValueError, TypeError):
        return None
    return None if array.dtype == object else array


def _hashes(given: Any) -> np.ndarray:
    named = given if isinstance(given, Mapping) else {"": given}
    arrays = {str(name): _array(value) for name, value in named.items()}
    for name, array in arrays.items():
        if array is None or not array.ndim or array.dtype.kind == "O":
            what = f"the value of {name!r}" if name else repr(given)
            raise ArgumentError(f"data_id cannot be made of {what:.80}. {_HINT}")
    lengths = {name: len(array) for name, array in arrays.items() if array is not None}
    if len(set(lengths.values())) != 1:
        raise ArgumentError(
            f"data_id has arrays for different numbers of examples: {lengths}. Hint: each array "
            "needs one row for each example of the batch."
        )
    names = []
    for i in range(next(iter(lengths.values()))):
        digest = xxhash.xxh3_128()
        for name, array in sorted(arrays.items(), key=lambda item: item[0]):
            assert array is not None
            item = np.ascontiguousarray(array[i])
            if item.dtype.kind in "US":  # as wide as its own texts, not as those of the batch
                item = np.ascontiguousarray(item.tolist())
            digest.update(f"{name}\0{item.dtype.str}\0{item.shape}\0".encode())
            digest.update(item.tobytes())
        names.append(digest.hexdigest())
    return np.array(names, dtype=str)


def _check_once(ids: np.ndarray) -> None:
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        twice = unique[counts > 1][:5].tolist()
        raise ArgumentError(
            f"data_id has the same id twice in one batch: {', '.join(map(repr, twice))}. "
            "Hint: each example needs an id of its own; two equal inputs have one content hash; "
            "where a sampler repeats examples, run.setup(duplicates='first') keeps the first."
        )
