"""Batches of a loader with the ids of their examples: places in the data, or what a key says."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from sawlog.capture._data_ids import data_ids
from sawlog.errors import ArgumentError

DataId = Callable[[Any], Any] | str | int | None

_HINT = "Hint: run.batches(loader, data_id=lambda batch: batch['id'])."


def named_batches(
    loader: Iterable[Any], data_id: DataId = None
) -> Iterator[tuple[np.ndarray, Any]]:
    """The batches of a loader with the ids of their examples.

    Args:
        loader: batches.
        data_id: a function from a batch to its ids, or what they are called in a batch; None
            numbers the examples by their places in the data, also where a sampler shuffles them.

    Raises:
        ArgumentError: which examples a batch has cannot be told.
    """
    if data_id is not None:
        for batch in loader:
            yield data_ids(data_id(batch) if callable(data_id) else _column(batch, data_id)), batch
    elif isinstance(loader, DataLoader) and not _in_order(loader):
        yield from _by_sampler(loader)
    else:
        at = 0
        for batch in loader:
            size = size_of(batch)
            yield np.arange(at, at + size), batch
            at += size


def _in_order(loader: DataLoader[Any]) -> bool:
    """Whether a loader only passes on the batches of its dataset, in their order.

    Raises:
        ArgumentError: it passes them on in another order.
    """
    if isinstance(loader.dataset, IterableDataset):
        return True
    if loader.batch_sampler is not None:
        return False
    if not isinstance(loader.sampler, SequentialSampler):
        raise ArgumentError(
            "The dataset has batches, which the loader takes in an order of its own, so which "
            f"examples they have is not known. {_HINT}"
        )
    return True


def _column(batch: Any, key: str | int) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        there = f" has {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise ArgumentError(
            f"data_id={key!r} is not in the batch, a {type(batch).__name__}{there}. {_HINT}"
        ) from error


class _Recorder:
    """Stands in for the sampler of a loader, and keeps what it gave."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.given: collections.deque[Any] = collections.deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __iter__(self) -> Iterator[Any]:
        self.given.clear()
        for indices in self.inner:
            self.given.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self.inner)


def _by_sampler(loader: DataLoader[Any]) -> Iterator[tuple[np.ndarray, Any]]:
    """Batches with the indices that the sampler gave for them."""
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise ArgumentError(
            "The loader gives batches in any order (in_order=False), so which examples they have "
            f"is not known. {_HINT}"
        )
    holder = getattr(loader, "base_dataloader", loader)  # which accelerate wraps
    own = holder.batch_sampler
    recorder = own if isinstance(own, _Recorder) else _Recorder(own)
    holder.__dict__["batch_sampler"] = recorder  # until workers and iterators have it
    try:
        batches = iter(loader)
        kept = getattr(batches, "_index_sampler", None)
        if isinstance(kept, _Recorder):  # of workers that were kept from a pass before
            recorder = kept
        first = next(batches, None)
    finally:
        holder.__dict__["batch_sampler"] = own
    if first is None:
        return
    yield _indices(recorder, first), first
    for batch in batches:
        yield _indices(recorder, batch), batch


def _indices(recorder: _Recorder, batch: Any) -> np.ndarray:
    if not recorder.given:
        raise ArgumentError(
            "Which examples the loader took for a batch is not known: it does not use its sampler. "
            f"{_HINT}"
        )
    given = recorder.given.popleft()
    several = given if isinstance(given, (list, tuple, np.ndarray, Tensor)) else [given]
    try:
        indices = np.array([int(each) for each in several], np.int64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"The sampler of the loader names examples by {several!r:.80}, not by numbers. {_HINT}"
        ) from None
    if len(indices) != size_of(batch):
        raise ArgumentError(
            f"The sampler of the loader took {len(indices)} examples for a batch that has "
            f"{size_of(batch)}. {_HINT}"
        )
    return data_ids(indices)


def size_of(batch: Any) -> int:
    """How many examples a batch has: the length of its first tensor.

    Raises:
        ArgumentError: that is not known.
    """
    if isinstance(batch, (Tensor, np.ndarray)) and batch.ndim:
        return len(batch)
    if isinstance(batch, Mapping) and len(batch):
        return size_of(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], (Tensor, np.ndarray)):
        return len(batch[0])
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Mapping):
        return size_of(batch[0]) if _of_tensors(batch[0]) else len(batch)
    if isinstance(batch, (tuple, list)):
        return len(batch)
    raise ArgumentError(
        f"How many examples a {type(batch).__name__} has is not known. Hint: "
        "run.batches(loader, data_id=lambda batch: batch.ids)."
    )


def _of_tensors(values: Mapping[Any, Any]) -> bool:
    return any(isinstance(each, (Tensor, np.ndarray)) and each.ndim for each in values.values())
