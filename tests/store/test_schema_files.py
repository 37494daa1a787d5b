"""Names that are declared in the middle of declaring them, as a signal handler may do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError, SchemaError
from sawlog.store._format._layout import Folder
from sawlog.store._format._schema import Column, Log, Schema, Series
from sawlog.store._format._schema_files import SchemaFiles

X, Y = (Series(Column(name, np.dtype("f8"))) for name in "xy")


@pytest.fixture
def files(tmp_path: Path) -> SchemaFiles:
    store.create(tmp_path / "s").close()
    return SchemaFiles(Folder(tmp_path / "s"))


def lacking(*logs: Log) -> Any:
    return lambda schema: [log for log in logs if log.names[0] not in schema]


@pytest.mark.parametrize("other", [X, Y])
def test_between_asking_and_checking(files: SchemaFiles, other: Log) -> None:
    due = [True]

    def wanted(schema: Schema) -> list[Log]:
        answer = lacking(X)(schema)
        if due:
            due.clear()
            files.declare(lacking(other))
        return answer

    files.declare(wanted)
    assert set(files.schema) == {"x", other.names[0]}
    check_stored(files)


@pytest.mark.parametrize("others", [(X,), (X, Y), (Y,)])
def test_between_writing_and_taking_in(
    files: SchemaFiles, monkeypatch: Any, others: tuple[Log, ...]
) -> None:
    add_all, due = Schema.add_all, [True]

    def nested(self: Schema, logs: Any) -> None:
        if due:
            due.clear()
            files.declare(lacking(*others))
            files.refresh()
        add_all(self, logs)

    monkeypatch.setattr(Schema, "add_all", nested)
    files.declare(lacking(X))
    assert set(files.schema) == {"x", *(log.names[0] for log in others)}
    check_stored(files)


def check_stored(files: SchemaFiles) -> None:
    """Each name is declared once, whoever reads it."""
    again = SchemaFiles(files._folder)
    assert again.refresh() == []
    assert dict(again.schema) == dict(files.schema)
    files.refresh()
    files.declare(lacking(X, Y))
    assert set(files.schema) == {"x", "y"}


def test_what_is_there_twice_is_still_refused(files: SchemaFiles) -> None:
    with pytest.raises(SchemaError, match="'x' is used twice"):
        files.declare(lambda schema: [X, X])
    files.declare(lacking(X))
    with pytest.raises(SchemaError, match="'x' is used twice"):
        files.declare(lambda schema: [Y, X])
    assert list(files.schema) == ["x"]


def test_a_damaged_file_is_refused_each_time(files: SchemaFiles) -> None:
    """A second call does not go on as if the names had never been declared."""
    SchemaFiles(files._folder).declare(lacking(X))
    (damaged,) = files._folder.schema.glob("*.json")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    for _ in range(2):
        with pytest.raises(DamagedStoreError, match=r"00000001\.json is cut or changed"):
            files.refresh()
        assert not files.schema
    assert [path for path, _ in files.refresh(skip_damaged=True)] == [damaged]
    assert files.refresh(skip_damaged=True) == []


@pytest.mark.parametrize("odd", ["link", "folder", "pipe", "huge"])
@pytest.mark.parametrize("name", ["00000001.json", "00000002.json", "00000001-00000009.json"])
def test_something_else_in_the_place_of_a_file(tmp_path: Path, name: str, odd: str) -> None:
    """The error says so in words, without the number of an ``OSError``."""
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.log({"loss": 0.5}, step=0)
    file = path / "schema" / name
    file.unlink(missing_ok=True)
    if odd == "link":
        file.symlink_to(file)
    elif odd == "folder":
        file.mkdir()
    elif odd == "pipe":
        os.mkfifo(file)
    else:
        with open(file, "wb") as made:
            made.truncate(1 << 40)
    with pytest.raises(DamagedStoreError) as raised:
        store.open(path)
    assert "Errno" not in str(raised.value)
    said = {"link": "it is a link", "huge": "it has 1099511627776 bytes"}
    assert said.get(odd, "it is not a regular file") in str(raised.value)
    assert store.open(path, damaged="skip").read("loss").tolist() == [0.5]
