"""Stores that a stranger made."""

import contextlib
import shutil
import signal

import numpy as np
import pytest

from sawlog import store
from sawlog.cli import main
from sawlog.errors import SawlogError

PATIENCE = 120  # seconds: everything here takes a moment, unless it never ends


@contextlib.contextmanager
def soon():
    """Whatever takes longer hangs."""

    def late(*_):
        raise TimeoutError("this would take forever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fill(path):
    with store.create(path, interval=None, meta={"a": [1, {"b": None}]}) as writer:
        for start in (0, 3):
            ids = np.arange(start, start + 3)
            writer.append(ids, {"grad": ids[:, None] * np.ones((3, 2), np.float32)})
            writer.append([f"t{i}" for i in ids], {"text": ids.astype("M8[s]")})
            writer.extend({"loss": ids / 2}, step=ids)
            writer.flush()
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("sound") / "store")


@pytest.fixture
def path(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "store")
    return tmp_path / "store"


def segment_of(path):
    return sorted((path / "segments").glob("*.safetensors"))[0]


def read_all(reader):
    for name in reader.names:
        reader.read(name)
        reader.count(name)
    reader.records()
    for table in reader.schema.tables:
        ids = reader.ids(table.names[0])
        reader.gather(ids, table.names)
        list(reader.blocks(table.names))


def ask(path, question):
    """Ask; says how it was refused, if so. Anything but an error of sawlog is a failure."""
    try:
        with soon():
            question(path)
    except SawlogError as error:
        return error
    return None


def ask_open(path):
    with store.open(path) as reader:
        read_all(reader)


def ask_skip(path):
    with store.open(path, damaged="skip") as reader:
        read_all(reader)
        reader.refresh()


def ask_append(path):
    with store.open(path, "append", interval=None) as writer:
        writer.missing([1, 99], "grad")


def ask_command(*words):
    def ask(path):
        assert main([*words, str(path)]) in (0, 1, 2, 3, 4)

    return ask


QUESTIONS = {
    "open": ask_open,
    "skip": ask_skip,
    "append": ask_append,
    "verify": store.verify,
    "compact": store.compact,
    "show": ask_command("show"),
    "ls": ask_command("ls"),
    "repair": store.repair,
    "open again": ask_open,
}


def ask_everything(path):
    """Every question on the same store, repairing it near the end; returns who refused."""
    return {name: ask(path, question) for name, question in QUESTIONS.items()}


HUGE = 10**30
