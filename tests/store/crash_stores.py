"""Stores for the tests of crashes and damage."""

import atexit
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sawlog import store
from sawlog.testing import assert_same

from .numbers import expected
from .plain_reader import PlainStore
from .processes import Server


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def assert_sound(path):
    report = store.verify(path)
    assert report.ok, report.problems


def lasting_folder():
    """A folder for what several tests copy from."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def check_numbers(path, count, **options):
    """Reader and plain reader agree on exactly the first so many numbers, in order."""
    truth = expected(np.arange(count))
    with store.open(path, **options) as reader:
        check_all(reader, truth)
    assert_sound(path)
    plain = PlainStore(path)
    assert plain.missing == []
    assert plain.ids("grad") == truth.numbers.tolist()
    assert plain.ids("text") == truth.texts
    assert_same(plain.series("loss")[0], truth.columns["loss"])


def check_all(reader, truth):
    for ask in QUESTIONS.values():
        ask(reader, truth)


def ask_ids(reader, truth):
    assert_same(reader.ids("grad"), truth.numbers)
    assert reader.count("grad") == len(truth.numbers)


def ask_texts(reader, truth):
    assert list(reader.ids("text")) == truth.texts


def ask_count(reader, truth):
    assert reader.count("loss") == len(truth.numbers)


def ask_read(name):
    return lambda reader, truth: assert_same(reader.read(name), truth.columns[name], name)


def ask_gather(reader, truth):
    order = np.random.default_rng(0).permutation(len(truth.numbers))
    found = reader.gather(truth.numbers[order], ["label", "grad"])
    for name in ("grad", "label"):
        assert_same(found[name], truth.columns[name][order], name)


def ask_gather_texts(reader, truth):
    order = np.random.default_rng(1).permutation(len(truth.numbers))
    found = reader.gather([truth.texts[place] for place in order], ["text"])["text"]
    assert_same(found, truth.columns["text"][order], "text")


def ask_blocks(reader, truth):
    ids = []
    for block in reader.blocks(["grad", "label"], budget=200):
        some = expected(block.ids)
        assert_same(block.values["grad"], some.columns["grad"])
        assert_same(block.values["label"], some.columns["label"])
        ids += block.ids.tolist()
    assert ids == truth.numbers.tolist()


def ask_entries(name):
    def ask(reader, truth):
        found = reader.entries(name)
        assert_same(found.values, truth.columns[name], name)
        assert list(found.steps) == list(truth.steps[name])
        for axis, steps in truth.steps[name].items():
            assert_same(found.steps[axis], steps, f"{axis} of {name}")
        if name == "act":
            assert_same(found.mask, truth.mask, "mask")
        notes = [dict(note) for rows, note in reader.attrs(name) for _ in range(rows)]
        assert notes == truth.notes[name]

    return ask


def ask_records(reader, truth):
    found = reader.records()
    assert sorted(found) == ["act", "loss"]
    assert_same(found["loss"].values, truth.columns["loss"])


def ask_meta(reader, truth):
    assert reader.meta == {}
    assert sorted(reader.names) == ["act", "grad", "label", "loss", "text"]


QUESTIONS = {
    "ids": ask_ids,
    "texts": ask_texts,
    "count": ask_count,
    "read grad": ask_read("grad"),
    "read text": ask_read("text"),
    "gather": ask_gather,
    "gather by text": ask_gather_texts,
    "blocks": ask_blocks,
    "entries of loss": ask_entries("loss"),
    "entries of act": ask_entries("act"),
    "records": ask_records,
    "meta": ask_meta,
}
