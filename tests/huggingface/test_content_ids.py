"""Ids that are made of content are those of the rows, in every batch and every process."""

import itertools

import numpy as np
import pytest
import torch
from accelerate.data_loader import DataLoaderDispatcher
from accelerate.utils import concatenate
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainingArguments

from sawlog.errors import ArgumentError
from sawlog.huggingface import LogArguments, LogIXArguments, patch_trainer
from sawlog.huggingface._batches import ExampleIds
from sawlog.huggingface._content_ids import row_hash
from sawlog.huggingface._sent_ids import encoded_ids
from sawlog.influence import Logs
from tests.huggingface.small import alone, arguments, assert_rows, gpt, padded, texts
from tests.huggingface.test_logix_trainer import tokenizer

SIZE = 9


def rows():
    """Sequences of different lengths, of which three are equal."""
    found = texts(SIZE)
    found[5] = found[8] = found[2]
    return found


def by_first_token(batch):
    return [f"t{int(ids[0])}" for ids in batch["input_ids"]]


def arguments_of(kind, path):
    if kind == "detokenize":
        return LogIXArguments("run", {"root_dir": str(path)}, save="grad")
    if kind == "hash of LogIX":
        return LogIXArguments("run", {"root_dir": str(path)}, save="grad", data_id="hash")
    given = by_first_token if kind == "a function" else kind
    return LogArguments("run", root=path, data_id=given, check=False)


def logged(path, kind, rank, size, monkeypatch):
    """What one of several processes logs, which run after each other here."""
    monkeypatch.setattr(TrainingArguments, "world_size", size)
    monkeypatch.setattr(TrainingArguments, "process_index", rank)
    trainer = patch_trainer(Trainer)(
        log_args=arguments_of(kind, path),
        model=gpt(),
        args=arguments(path, per_device_train_batch_size=2),
        train_dataset=rows(),
        data_collator=padded,
        processing_class=tokenizer(),
    )
    return trainer, sum(trainer.extract_log().examples)


@pytest.mark.parametrize("kind", ["hash", "detokenize", "hash of LogIX", "a function"])
def test_ids_do_not_depend_on_processes(kind, tmp_path, monkeypatch):
    one, count = logged(tmp_path / "one", kind, 0, 1, monkeypatch)
    expected = sorted(Logs(one.log_run.store_path).ids)
    assert len(expected) == count == SIZE
    assert sum(each.endswith(("#2", "#3")) for each in expected) >= 2
    for rank in range(2):
        two, _ = logged(tmp_path / "two", kind, rank, 2, monkeypatch)
    assert sorted(Logs(two.log_run.store_path).ids) == expected
    for rank in range(3):  # continued by another number of processes: nothing is left to do
        assert logged(tmp_path / "two", kind, rank, 3, monkeypatch)[1] == 0
    assert sorted(Logs(two.log_run.store_path).ids) == expected


def test_rows_under_their_ids(tmp_path, monkeypatch):
    trainer, _ = logged(tmp_path, "hash", 0, 1, monkeypatch)
    ids = ExampleIds(rows(), "hash")._named
    assert ids[5] == f"{ids[2]}#2"
    assert ids[8] == f"{ids[2]}#3"
    run = trainer.log_run
    assert_rows(run.store_path, run._blocks(), ids, alone(gpt(), rows()))


def test_what_a_row_is_made_of():
    item = {"ids": [1, 2, 3], "text": "a", "more": {"x": None, "y": [[1], [2, 3]]}}
    same = {"more": {"y": [[1], [2, 3]], "x": None}, "ids": torch.tensor([1, 2, 3]), "text": "a"}
    assert row_hash(item) == row_hash(same)
    others = [{**item, "ids": [1, 2, 4]}, {**item, "text": "b"}, {**item, "more": {"y": []}}]
    assert len({row_hash(each) for each in (item, *others)}) == 4
    assert row_hash({"a": np.float32([1])}) != row_hash({"a": np.float64([1])})
    with pytest.raises(ArgumentError, match=r"cannot hash a object.*column"):
        row_hash({"image": object()})


class Stream(IterableDataset):
    def __iter__(self):
        yield from ({**row, "name": f"é{i}"} for i, row in enumerate(rows()))


def without_names(items):
    return padded([{k: item[k] for k in ("input_ids", "labels")} for item in items])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_stream_is_named_by_its_rows(size):
    """Whatever they are padded to."""
    loader = DataLoader(Stream(), size, collate_fn=without_names)
    ids = ExampleIds(Stream(), "hash")
    ids.attach(loader)
    named = [*itertools.chain.from_iterable(map(ids.take, loader))]
    assert named == [row_hash(row) for row in Stream()]


def test_a_row_that_occurs_again_in_a_stream():
    class Same(IterableDataset):
        def __iter__(self):
            yield from rows()

    ids = ExampleIds(Same(), "hash")
    loader = DataLoader(Same(), 4, collate_fn=padded)
    ids.attach(loader)
    named = [*itertools.chain.from_iterable(map(ids.take, loader))]
    assert named == ExampleIds(rows(), "hash")._named.tolist()


@pytest.mark.parametrize("data_id", ["name", "hash"])
def test_ids_that_one_process_sends_to_all(data_id):
    """Accelerate joins and splits batches, of which it knows tensors only."""
    dispatcher = DataLoaderDispatcher(Stream(), batch_size=3, collate_fn=without_names)
    ids = ExampleIds(Stream(), data_id)
    ids.attach(dispatcher)
    batches = [dispatcher.collate_fn([*Stream()][part]) for part in (slice(0, 3), slice(3, 5))]
    sent = concatenate([{"sawlog_ids": each["sawlog_ids"]} for each in batches])
    found = [ids.take({"sawlog_ids": sent["sawlog_ids"][part]}) for part in (slice(2), slice(2, 5))]
    plain = ExampleIds([*Stream()], data_id)._named
    assert [each for part in found for each in part] == plain[:5].tolist()


def test_an_id_that_is_too_long_to_be_sent():
    with pytest.raises(ArgumentError, match=r"at most 256 bytes.*dispatch_batches"):
        encoded_ids(np.array(["a", "b" * 257]))
