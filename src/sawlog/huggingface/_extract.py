"""Logging the dataset of a Trainer after training, and scoring it for queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from sawlog.capture._extract import Extraction
from sawlog.errors import ArgumentError
from sawlog.huggingface._batches import IDS, Batches, ExampleIds
from sawlog.huggingface._content_ids import ByContent, batch_hashes, row_hash
from sawlog.huggingface._loss import alone, check_supported, evaluating, extraction_loss
from sawlog.huggingface._padding import (
    KEY,
    counts_positions,
    is_padded_otherwise,
    position_mask,
)
from sawlog.influence import Logs, Ranking, Scores
from sawlog.torch import Run

# Trainers may sort evaluation data by length too; scores of queries have the order of their data.
_IN_ORDER: dict[str, Any] = {"train_sampling_strategy": "random", "group_by_length": False}


class TrainerLogs:
    """The run of one Trainer.

    Args:
        trainer: the Trainer.
        args: what to log: ``LogArguments`` or ``LogIXArguments``.
    """

    def __init__(self, trainer: Any, args: Any) -> None:
        self._trainer, self.args = trainer, args
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run, which is opened on first use; it watches the model of the Trainer."""
        if self._run is None:
            check_supported(self._trainer)
            run: Run = self.args.open()
            self.args.watch(run, self._trainer.model)
            self._run = run
        return self._run

    def extract(self, dataset: Any = None) -> Extraction:
        """Log all examples of a dataset, by default the one that is trained on."""
        dataset = self._trainer.train_dataset if dataset is None else dataset
        if dataset is None:
            raise ArgumentError(
                "The Trainer has no train_dataset. Hint: trainer.extract_log(data)."
            )
        run = self.run
        run.save(True)
        prepare = getattr(self.args, "prepare", None)
        if prepare is not None:
            prepare(run)
        return self._pass(dataset, "logging", getattr(self.args, "check", True))

    def queries(self, dataset: Any) -> Logs:
        """Return the logs of queries."""
        run = self.run
        run.eval()
        try:
            self._pass(dataset, "queries", False, shards=False)
            return run.get_log()
        finally:
            run.save(True)

    def influence(self, dataset: Any, options: dict[str, Any]) -> Scores:
        """Score the stored examples for the examples of a dataset."""
        queries = self.queries(dataset)
        return self.run.influence.compute_influence_all(queries, **self._options(options))

    def self_influence(self, dataset: Any, options: dict[str, Any]) -> Ranking:
        """Score the stored examples, or those of a dataset, for themselves."""
        queries = None if dataset is None else self.queries(dataset)
        given = self._options(options)
        given.pop("mode", None)
        return self.run.influence.compute_self_influence(queries, **given)

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {**self.args.analysis(), **options}
        return {key: value for key, value in given.items() if value is not None}

    def _pass(self, dataset: Any, title: str, check: bool, shards: bool = True) -> Extraction:
        """Make all passes over a dataset that the options need."""
        trainer, run = self._trainer, self.run
        measures = counts_positions(run.options) and not run.evaluates
        examples = _Examples(trainer, dataset, _id_source(trainer, self.args), shards, measures)
        key = getattr(self.args, "attention_key", KEY)

        def step(model: Any, batch: Any) -> Tensor:
            inputs = {key: value for key, value in batch.items() if key != IDS}
            return extraction_loss(trainer, model, inputs, run)

        def mask(batch: Any) -> Tensor | None:
            return position_mask(trainer, batch, len(batch[IDS]), key)

        with evaluating(trainer.model), alone(trainer), examples.loader() as loader:
            bar = _bar(trainer, f"{run.project}: {title}")
            batches = Batches(loader, examples.ids, bar)
            return run.extract(
                step, batches, IDS, mask=mask, check=check, one=one_example, quiet=True
            )


def _bar(trainer: Any, title: str) -> Any:
    hidden = trainer.args.disable_tqdm or not trainer.is_local_process_zero()
    return lambda loader: tqdm(loader, desc=title, disable=hidden)


def _id_source(trainer: Any, args: Any) -> Any:
    """Return how examples are named, as :class:`ExampleIds` takes it."""
    key = getattr(args, "input_key", None)
    if key is None:
        return args.data_id
    if args.data_id == "index":
        return None
    if args.data_id == "hash":
        return ByContent(
            lambda row: row_hash({key: row[key]}), lambda batch: batch_hashes({key: batch[key]})
        )
    tokenizer = getattr(trainer, "processing_class", None) or getattr(trainer, "tokenizer", None)
    if tokenizer is None:
        raise ArgumentError(
            'data_id="detokenize" needs a tokenizer. Hint: pass tokenizer= to the Trainer, or '
            'LogIXArguments(data_id="hash"), or "index".'
        )
    return ByContent(
        lambda row: tokenizer.decode(row[key], skip_special_tokens=True),
        lambda batch: tokenizer.batch_decode(batch[key], skip_special_tokens=True),
    )


class _Examples:
    """The examples of a dataset in order, in batches as the Trainer collates them.

    Args:
        trainer: the Trainer.
        dataset: the dataset.
        data_id: how examples are named.
        shards: whether each process takes a part of them.
        measures: whether statistics count positions, so that padding must be known.
    """

    def __init__(
        self, trainer: Any, dataset: Any, data_id: Any, shards: bool, measures: bool
    ) -> None:
        self._trainer, self._dataset, self._measures = trainer, dataset, measures
        self.ids = ExampleIds(dataset, data_id)
        self._positions: range | None = None
        world, rank = trainer.args.world_size, trainer.args.process_index
        if shards and world > 1 and not isinstance(dataset, IterableDataset):
            if self.ids.by_batch:
                self._name_rows()
            self._positions = range(rank, len(dataset), world)
            self.ids.positions = np.asarray(self._positions, np.int64)

    @contextlib.contextmanager
    def loader(self) -> Iterator[Any]:
        """Yield a loader whose batches carry ids."""
        size = self._trainer.args.per_device_train_batch_size
        loader = self._make(size)
        if size > 1 and self._must_be_alone(loader):
            loader = self._make(1)
        yield loader

    def _name_rows(self) -> None:
        """Let every process name all rows, so that equal names get numbers in their order."""
        with torch.random.fork_rng(devices=[]):
            self.ids.name_rows(self._make(self._trainer.args.per_device_train_batch_size))

    def _make(self, size: int) -> Any:
        trainer, args = self._trainer, self._trainer.args
        changed: dict[str, Any] = {
            "per_device_eval_batch_size": size,
            "dataloader_drop_last": False,
        }
        changed |= {name: value for name, value in _IN_ORDER.items() if hasattr(args, name)}
        before = {name: getattr(args, name) for name in changed}
        accelerator = trainer.accelerator
        _set(args, changed)
        accelerator.prepare = lambda *several, **_: several[0]  # plain, and not split up
        try:
            loader = trainer.get_test_dataloader(self._own())
        finally:
            del accelerator.prepare
            _set(args, before)
        self.ids.attach(loader)
        return loader

    def _own(self) -> Any:
        """Return the examples of this process."""
        if self._positions is None:
            return self._dataset
        select = getattr(self._dataset, "select", None)
        return Subset(self._dataset, self._positions) if select is None else select(self._positions)

    def _must_be_alone(self, loader: Any) -> bool:
        """Return whether batches of one example are needed.

        A collator may join all examples of a batch into one row, as without padding; or statistics
        count positions, and what is padding is not known.
        """
        if isinstance(self._dataset, IterableDataset) or not len(loader):
            return False
        state = torch.random.get_rng_state()
        batch = next(iter(loader))
        torch.random.set_rng_state(state)
        many = len(self.ids.take(batch))
        sizes = {len(v) for v in batch.values() if isinstance(v, Tensor) and v.dim() > 1}
        if many > 1 and sizes == {1}:
            return True
        return self._measures and is_padded_otherwise(self._trainer, batch, many)


def _set(args: Any, values: dict[str, Any]) -> None:
    # TrainingArguments refuses changes of some versions, and none of these matters to it later
    for name, value in values.items():
        object.__setattr__(args, name, value)


def one_example(batch: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a batch of the one example at ``place``.

    Where a tensor has several rows for each example, as chosen and rejected answers, these are
    one after the other: all first ones, then all second ones.
    """
    size, found = len(batch[IDS]), {}
    for key, value in batch.items():
        rows = len(value) if hasattr(value, "__len__") and not isinstance(value, str) else 0
        if rows and rows % size == 0 and not isinstance(value, Mapping):
            own = [place + size * part for part in range(rows // size)]
            found[key] = [value[i] for i in own] if isinstance(value, list) else value[own]
        else:
            found[key] = value
    return found
