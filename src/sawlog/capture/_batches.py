"""Batches of a loader with the ids of their examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from sawlog.capture._backend import Backend
from sawlog.capture._data_ids import data_ids
from sawlog.errors import ArgumentError

DataId = Callable[[Any], Any] | str | int | None

BATCHES_HINT = "Hint: run.batches(loader, data_id=lambda batch: batch['id'])."


def named_batches(
    backend: Backend, loader: Iterable[Any], data_id: DataId = None
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield the batches of a loader with the ids of their examples.

    Args:
        backend: knows the samplers of its framework.
        loader: an iterable of batches.
        data_id: a function from a batch to its ids, or the key of the ids in a batch. None numbers
            the examples by their positions in the dataset, also where a sampler shuffles them.

    Raises:
        ArgumentError: which examples a batch contains is unknown.
    """
    if data_id is not None:
        for batch in loader:
            ids = data_id(batch) if callable(data_id) else _column(batch, data_id)
            yield data_ids(ids, once=False), batch  # the run refuses what it must
        return
    sampled = backend.sampled_batches(loader)
    yield from _in_order(loader) if sampled is None else sampled


def _in_order(loader: Iterable[Any]) -> Iterator[tuple[np.ndarray, Any]]:
    start = 0
    for batch in loader:
        size = size_of(batch)
        yield np.arange(start, start + size), batch
        start += size


def _column(batch: Any, key: str | int) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        keys = f" with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise ArgumentError(
            f"data_id={key!r} is not in the batch, a {type(batch).__name__}{keys}. {BATCHES_HINT}"
        ) from error


def size_of(batch: Any) -> int:
    """Return the number of examples in a batch: the length of its first array.

    Raises:
        ArgumentError: the batch has no array, list or dict to tell.
    """
    if _is_array(batch):
        return len(batch)
    if isinstance(batch, Mapping) and len(batch):
        return size_of(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)) and batch and is_array_api_obj(batch[0]):
        return len(batch[0])
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Mapping):
        return size_of(batch[0]) if any(map(_is_array, batch[0].values())) else len(batch)
    if isinstance(batch, (tuple, list)):
        return len(batch)
    raise ArgumentError(
        f"The number of examples in a {type(batch).__name__} is unknown. Hint: "
        "run.batches(loader, data_id=lambda batch: batch.ids)."
    )


def _is_array(value: Any) -> bool:
    return is_array_api_obj(value) and bool(value.ndim)
