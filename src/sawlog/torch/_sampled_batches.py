"""Batches of a ``DataLoader`` with the positions that its sampler drew for them."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from sawlog.capture._batches import BATCHES_HINT, size_of
from sawlog.capture._data_ids import data_ids
from sawlog.errors import ArgumentError


def sampled_batches(loader: Iterable[Any]) -> Iterator[tuple[np.ndarray, Any]] | None:
    """Return batches with the positions of their examples; None if a loader keeps the order.

    Raises:
        ArgumentError: the order of the loader is unknown.
    """
    if not isinstance(loader, DataLoader) or _keeps_order(loader):
        return None
    return _by_sampler(loader)


def _keeps_order(loader: DataLoader[Any]) -> bool:
    """Return whether a loader only passes on the batches of its dataset, in their order."""
    if isinstance(loader.dataset, IterableDataset):
        return True
    if loader.batch_sampler is not None:
        return False
    if not isinstance(loader.sampler, SequentialSampler):
        raise ArgumentError(
            "The items of the dataset are batches, which the loader shuffles, so the examples of "
            f"a batch are unknown. {BATCHES_HINT}"
        )
    return True


class _Recorder:
    """Wraps the sampler of a loader and records the indices that it yields."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.drawn: collections.deque[Any] = collections.deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __iter__(self) -> Iterator[Any]:
        self.drawn.clear()
        for indices in self.inner:
            self.drawn.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self.inner)


def _by_sampler(loader: DataLoader[Any]) -> Iterator[tuple[np.ndarray, Any]]:
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise ArgumentError(
            "The loader yields batches in any order (in_order=False), so the examples of a batch "
            f"are unknown. {BATCHES_HINT}"
        )
    holder = getattr(loader, "base_dataloader", loader)  # accelerate wraps loaders
    own = holder.batch_sampler
    recorder = own if isinstance(own, _Recorder) else _Recorder(own)
    holder.__dict__["batch_sampler"] = recorder  # until workers and iterators have read it
    try:
        batches = iter(loader)
        kept = getattr(batches, "_index_sampler", None)
        if isinstance(kept, _Recorder):  # persistent workers keep that of an earlier pass
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
    if not recorder.drawn:
        raise ArgumentError(
            "The examples of a batch are unknown: the loader does not use its sampler. "
            f"{BATCHES_HINT}"
        )
    drawn = recorder.drawn.popleft()
    several = drawn if isinstance(drawn, (list, tuple, np.ndarray, Tensor)) else [drawn]
    try:
        indices = np.array([int(each) for each in several], np.int64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"The sampler of the loader yields {several!r:.80}, which are not integers. "
            f"{BATCHES_HINT}"
        ) from None
    if len(indices) != size_of(batch):
        raise ArgumentError(
            f"The sampler of the loader drew {len(indices)} examples for a batch that has "
            f"{size_of(batch)}. {BATCHES_HINT}"
        )
    return data_ids(indices, once=False)
