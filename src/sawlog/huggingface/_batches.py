"""Batches of a Trainer that carry the ids of their examples.

The dataset of a loader is wrapped so that the items of a batch are followed by their positions, and
the collator so that it puts them into the batch. That holds with any sampler, with worker
processes, and where a Trainer skips batches when it resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sawlog.capture import data_ids
from sawlog.errors import ArgumentError

IDS = "sawlog_ids"

_HINT = 'Hint: LogArguments(data_id="column") takes a column; data_id="hash" the content.'


class _Items(list[Any]):
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

    def __getitems__(self, positions: Sequence[int]) -> _Items:
        several = getattr(self.dataset, "__getitems__", None)
        items = several(positions) if several else [self.dataset[each] for each in positions]
        found = _Items(items)
        found.positions = [int(each) for each in positions]
        return found

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class PositionCollator:
    """A collator that puts the positions of the items into the batch.

    Args:
        collate: the collator of the Trainer.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, items: _Items) -> Any:
        return _with_ids(self.collate(list(items)), torch.tensor(items.positions))


class ColumnCollator:
    """A collator that puts a column of the items into the batch, for datasets without positions.

    Args:
        collate: the collator of the Trainer.
        column: the name of the column.
    """

    def __init__(self, collate: Callable[[Any], Any], column: str) -> None:
        self.collate, self.column = collate, column

    def __call__(self, items: Sequence[Any]) -> Any:
        try:
            ids = [item[self.column] for item in items]
        except (KeyError, TypeError, IndexError):
            keys = ", ".join(map(repr, items[0])) if isinstance(items[0], Mapping) else ""
            raise ArgumentError(
                f"data_id={self.column!r} is not a column of the dataset ({keys})."
            ) from None
        rest = [{k: v for k, v in item.items() if k != self.column} for item in items]
        return _with_ids(self.collate(rest), data_ids(ids))


def _with_ids(batch: Any, ids: Any) -> Any:
    if not isinstance(batch, Mapping):
        raise ArgumentError(
            f"The data collator returns a {type(batch).__name__}; sawlog needs a dict of tensors, "
            "as the Trainer does."
        )
    # not torch.Tensor for strings; accelerate leaves such values as they are
    batch[IDS] = torch.from_numpy(ids) if isinstance(ids, np.ndarray) and _whole(ids) else ids  # type: ignore[index]
    return batch


def _whole(ids: np.ndarray) -> bool:
    return ids.dtype.kind == "i"


class ExampleIds:
    """The ids of the examples of one dataset.

    Args:
        dataset: the dataset, as the user passed it to the Trainer.
        data_id: None numbers the rows, a string is a column of the dataset, ``"hash"`` a hash of
            the inputs, and a function gets a batch.
    """

    def __init__(self, dataset: Any, data_id: str | Callable[[Any], Any] | None) -> None:
        self.by_content = data_id == "hash" or callable(data_id)
        self._function = data_id if callable(data_id) else dict
        self._times: Counter[str] = Counter()
        self.streams = isinstance(dataset, IterableDataset)
        self.column = data_id if isinstance(data_id, str) and not self.by_content else None
        self._named: np.ndarray | None = None
        self.positions: np.ndarray | None = None  # of the rows of a part of the dataset
        if self.streams and data_id is None:
            raise ArgumentError(
                f"The dataset is a stream, whose rows have no numbers, so ids are unknown. {_HINT}"
            )
        if self.column is not None and not self.streams:
            self._named = data_ids(_column(dataset, self.column))

    def attach(self, loader: Any) -> None:
        """Make the batches of a loader carry what ids are made of."""
        if self.by_content:
            return
        for each in (loader, getattr(loader, "base_dataloader", loader)):
            if self.streams:
                assert self.column is not None
                _attach_column(each, self.column)
            else:
                _attach_positions(each)

    def take(self, batch: Any) -> np.ndarray:
        """Remove what :meth:`attach` put into a batch, and return the ids of its examples."""
        if self.by_content:
            return self._numbered(self._function(batch))
        if IDS not in batch:
            raise ArgumentError(
                "A batch of the Trainer does not say which examples it has. Hint: its loader must "
                "be that of Trainer.get_train_dataloader, over the dataset it was created with."
            )
        own = batch.pop(IDS)
        own = own.cpu().numpy() if isinstance(own, torch.Tensor) else np.asarray(own)
        if self.streams:
            return data_ids(own)
        own = own if self.positions is None else self.positions[own]
        return own if self._named is None else self._named[own]


    def restart(self) -> None:
        """Forget which contents were seen, at the start of a pass over the data."""
        self._times.clear()

    def _numbered(self, named: Any) -> np.ndarray:
        """Return ids in which a content that occurs again has a number, as ``"text#2"``."""
        if isinstance(named, Mapping):
            named = content_ids(named)
        if not isinstance(named, (list, tuple)) or not all(isinstance(e, str) for e in named):
            return data_ids(named)
        found = []
        for each in named:
            self._times[each] += 1
            found.append(each if self._times[each] == 1 else f"{each}#{self._times[each]}")
        return data_ids(found)


def content_ids(named: Any) -> Sequence[str]:
    """Return a hash of the content of each example; equal examples have equal ones."""
    return [data_ids({k: v[i : i + 1] for k, v in named.items()})[0] for i in range(_size(named))]


def _size(named: Mapping[str, Any]) -> int:
    return len(next(iter(named.values())))


def _attach_positions(loader: Any) -> None:
    # A loader refuses new attributes of these names; nothing else is known to read them later.
    own = vars(loader)
    if isinstance(own.get("dataset"), PositionedDataset):
        return
    if "dataset" not in own:
        return
    if getattr(loader, "batch_sampler", None) is None:
        raise ArgumentError(
            f"The loader does not put examples into batches, so their ids are unknown. {_HINT}"
        )
    own["dataset"] = PositionedDataset(own["dataset"])
    own["collate_fn"] = PositionCollator(own["collate_fn"])


def _attach_column(loader: Any, column: str) -> None:
    own = vars(loader)
    if "collate_fn" in own and not isinstance(own["collate_fn"], ColumnCollator):
        own["collate_fn"] = ColumnCollator(own["collate_fn"], column)


def detach(loader: Any) -> None:
    """Undo :meth:`ExampleIds.attach`."""
    for each in (loader, getattr(loader, "base_dataloader", loader)):
        own = vars(each)
        if isinstance(own.get("dataset"), PositionedDataset):
            own["dataset"] = own["dataset"].dataset
        if isinstance(own.get("collate_fn"), (PositionCollator, ColumnCollator)):
            own["collate_fn"] = own["collate_fn"].collate


def _column(dataset: Any, name: str) -> Any:
    """Return a column of a dataset: of ``datasets.Dataset``, or of a sequence of dicts."""
    columns = getattr(dataset, "column_names", None)
    if columns is not None:
        if name not in columns:
            raise ArgumentError(
                f"data_id={name!r} is not a column of the dataset, which has "
                f"{', '.join(map(repr, columns))}."
            )
        return list(dataset[name])
    try:
        return [dataset[i][name] for i in range(len(dataset))]
    except (KeyError, TypeError, IndexError):
        raise ArgumentError(f"data_id={name!r} is not a key of the items of the dataset.") from None


class Batches:
    """The batches of a loader, each a dict that starts with the ids of its examples.

    Args:
        loader: the loader, with :meth:`ExampleIds.attach` applied.
        ids: the ids of its dataset.
        shown: wraps the loader in a progress bar.
    """

    def __init__(
        self, loader: DataLoader[Any], ids: ExampleIds, shown: Callable[[Any], Any] = iter
    ) -> None:
        self._loader, self._ids, self._shown = loader, ids, shown

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._ids.restart()
        for batch in self._shown(self._loader):
            ids = self._ids.take(batch)
            yield {IDS: ids, **batch}
