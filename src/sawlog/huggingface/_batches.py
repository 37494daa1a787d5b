"""Batches of a Trainer that carry the ids of their examples."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from sawlog._arrays import to_numpy
from sawlog.capture import data_ids
from sawlog.errors import ArgumentError
from sawlog.huggingface._content_ids import ByContent, batch_hashes, numbered, row_hash
from sawlog.huggingface._sent_ids import decoded_ids, encoded_ids
from sawlog.torch._positioned_batches import attach_positions, detach_positions

IDS = "sawlog_ids"

_HINT = 'Hint: LogArguments(data_id="column") takes a column; data_id="hash" the content.'


class NamingCollator:
    """A collator that puts ids of the items into the batch, for datasets without positions.

    Args:
        collate: the collator of the Trainer.
        name: returns the ids of items, None if it cannot name them.
        without: the key that is taken out of the items.
        as_tensor: whether ids must be tensors, as where one process reads for all others.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        name: Callable[[Sequence[Any]], Any],
        without: str | None = None,
        as_tensor: bool = False,
    ) -> None:
        self.collate, self._name = collate, name
        self._without, self._as_tensor = without, as_tensor

    def __call__(self, items: Sequence[Any]) -> Any:
        ids = self._name(items)
        if self._without is not None:
            items = [{k: v for k, v in item.items() if k != self._without} for item in items]
        batch = self.collate(items)
        if ids is None:
            return batch
        ids = np.asarray(ids)
        return _with_ids(batch, ids if _whole(ids) or not self._as_tensor else encoded_ids(ids))


def _of_column(column: str, items: Sequence[Any]) -> np.ndarray:
    try:
        ids = [item[column] for item in items]
    except (KeyError, TypeError, IndexError):
        keys = ", ".join(map(repr, items[0])) if isinstance(items[0], Mapping) else ""
        raise ArgumentError(
            f"data_id={column!r} is not a column of the dataset ({keys})."
        ) from None
    return data_ids(ids, once=False)


def _with_positions(batch: Any, positions: list[int]) -> Any:
    return _with_ids(batch, torch.tensor(positions))


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
            each row, and a function gets a batch.
    """

    def __init__(
        self, dataset: Any, data_id: str | ByContent | Callable[[Any], Any] | None
    ) -> None:
        self.streams = isinstance(dataset, IterableDataset)
        self._named: np.ndarray | None = None
        self._function: Callable[[Any], Any] | None = None  # from a batch to its ids
        self._times: Counter[str] = Counter()
        self._of_items: Callable[[Sequence[Any]], Any] | None = None  # from items to their ids
        self._column: str | None = None
        self.positions: np.ndarray | None = None  # of the rows of a part of the dataset
        if self.streams and data_id is None:
            raise ArgumentError(
                f"The dataset is a stream, whose rows have no numbers, so ids are unknown. {_HINT}"
            )
        data_id = ByContent(row_hash, batch_hashes) if data_id == "hash" else data_id
        if isinstance(data_id, ByContent):
            self._named = None if self.streams else data_id.names(dataset)
            self._function = data_id.batch if self._named is None else None
            self._of_items = data_id.of_items if self.streams else None
        elif isinstance(data_id, str):
            self._column = data_id
            self._of_items = functools.partial(_of_column, data_id)
            self._named = None if self.streams else _unique(dataset, data_id)
        else:
            self._function = data_id

    @property
    def by_batch(self) -> bool:
        """Whether ids are made of batches, so that they are not known before."""
        return self._function is not None

    def name_rows(self, batches: Iterable[Any]) -> None:
        """Take the ids of all rows of the dataset from its batches in order."""
        self.restart()
        self._named = np.concatenate([self.take(batch) for batch in batches])
        self._function = None

    def attach(self, loader: Any) -> None:
        """Make the batches of a loader carry what ids are made of."""
        if self.streams and self._of_items is not None:
            self._attach_names(loader, self._of_items)
        elif not self.by_batch:
            attach_positions(loader, _with_positions, _HINT)

    def take(self, batch: Any) -> np.ndarray:
        """Remove what :meth:`attach` put into a batch, and return the ids of its examples."""
        if self._function is not None and IDS not in batch:
            return self._numbered(self._function(batch))
        if IDS not in batch:
            raise ArgumentError(
                "A batch of the Trainer does not say which examples it has. Hint: its loader must "
                "be that of Trainer.get_train_dataloader, over the dataset it was created with."
            )
        own = batch.pop(IDS)
        own = to_numpy(own)
        if self.streams:
            own = decoded_ids(own) if own.dtype == np.uint8 else own
            return (
                data_ids(own, once=False)
                if self._function is None
                else self._numbered(own.tolist())
            )
        own = own if self.positions is None else self.positions[own]
        return own if self._named is None else self._named[own]

    def restart(self) -> None:
        """Forget which contents were seen, at the start of a pass over the data."""
        self._times.clear()

    def _attach_names(self, loader: Any, of_items: Callable[[Sequence[Any]], Any]) -> None:
        as_tensor = type(loader).__name__ == "DataLoaderDispatcher"
        for each in (loader, getattr(loader, "base_dataloader", loader)):
            own = vars(each)
            if "collate_fn" in own and not isinstance(own["collate_fn"], NamingCollator):
                own["collate_fn"] = NamingCollator(
                    own["collate_fn"], of_items, self._column, as_tensor
                )

    def _numbered(self, named: Any) -> np.ndarray:
        """Return ids in which a content that occurs again has a number."""
        named = batch_hashes(named) if isinstance(named, Mapping) else named
        if not isinstance(named, (list, tuple)) or not all(isinstance(e, str) for e in named):
            return data_ids(named, once=False)
        return data_ids(numbered(named, self._times))


def detach(loader: Any) -> None:
    """Undo :meth:`ExampleIds.attach`."""
    detach_positions(loader)
    for each in (loader, getattr(loader, "base_dataloader", loader)):
        own = vars(each)
        if isinstance(own.get("collate_fn"), NamingCollator):
            own["collate_fn"] = own["collate_fn"].collate


def _unique(dataset: Any, name: str) -> np.ndarray:
    """Return the ids in a column of a dataset."""
    ids = data_ids(_column(dataset, name), once=False)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        some = ", ".join(map(repr, unique[counts > 1][:5].tolist()))
        raise ArgumentError(
            f"The column data_id={name!r} names {len(unique)} of {len(ids)} rows of the dataset; "
            f"several are called {some}. Hint: a column with an id for each row; data_id=None "
            "numbers the rows."
        )
    return ids


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
