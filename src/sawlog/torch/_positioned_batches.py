"""Batches of a loader that carry the positions of their examples in the dataset.

The dataset of a loader is wrapped so that the items of a batch are followed by their positions, and
the collator so that it passes them on. That holds with any sampler, with worker processes, and
where a training program skips batches when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from sawlog.errors import ArgumentError

Join = Callable[[Any, list[int]], Any]


class PositionedItems(list[Any]):
    """The items of a batch, with the positions of the dataset that they come from."""

    positions: list[int]


class PositionedDataset(Dataset[Any]):
    """A dataset whose batches know the positions of their items.

    Args:
        dataset: a map-style dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: Any) -> Any:
        return self.dataset[position]

    def __getitems__(self, positions: Sequence[int]) -> PositionedItems:
        several = getattr(self.dataset, "__getitems__", None)
        items = several(positions) if several else [self.dataset[each] for each in positions]
        found = PositionedItems(items)
        found.positions = [int(each) for each in positions]
        return found

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class PositionCollator:
    """A collator that joins a batch with the positions of its items.

    Args:
        collate: the collator of the loader.
        join: returns the batch to yield, given the batch and the positions.
    """

    def __init__(self, collate: Callable[[Any], Any], join: Join) -> None:
        self.collate, self._join = collate, join

    def __call__(self, items: PositionedItems) -> Any:
        return self._join(self.collate(list(items)), items.positions)


def attach_positions(loader: Any, join: Join, hint: str) -> None:
    """Make the batches of a loader carry positions; accelerate's loaders hold another.

    Raises:
        ArgumentError: the dataset is a stream, or the loader does not put examples into batches.
    """
    for each in _loaders(loader):
        own = vars(each)  # a loader refuses to set these attributes
        if "dataset" not in own or isinstance(own["dataset"], PositionedDataset):
            continue
        if isinstance(own["dataset"], IterableDataset):
            raise ArgumentError(
                "The dataset is a stream, whose rows have no numbers, so ids are unknown. " + hint
            )
        if getattr(each, "batch_sampler", None) is None:
            raise ArgumentError(
                "The loader does not put examples into batches, so their ids are unknown. " + hint
            )
        own["dataset"] = PositionedDataset(own["dataset"])
        own["collate_fn"] = PositionCollator(own["collate_fn"], join)


def detach_positions(loader: Any) -> None:
    """Undo :func:`attach_positions`."""
    for each in _loaders(loader):
        own = vars(each)
        if isinstance(own.get("dataset"), PositionedDataset):
            own["dataset"] = own["dataset"].dataset
        if isinstance(own.get("collate_fn"), PositionCollator):
            own["collate_fn"] = own["collate_fn"].collate


def _loaders(loader: Any) -> list[Any]:
    inner = getattr(loader, "base_dataloader", loader)
    return [loader] if inner is loader else [loader, inner]
