"""Escape sequences of paths, names, ids and notes never reach a terminal or a spreadsheet."""

import csv
import warnings

import numpy as np
import pytest

from sawlog import store
from sawlog._text import guarded, unguarded
from sawlog.records import Entries
from sawlog.sinks import CsvSink

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202eb"


@pytest.fixture
def evil(tmp_path):
    path = tmp_path / EVIL
    with store.create(path, meta={EVIL: [EVIL]}) as writer:
        writer.append([EVIL, "c"], {EVIL: np.ones((2, 2))})
        writer.extend({f"{EVIL}2": np.array([EVIL] * 2)})
        writer.log({f"{EVIL}/loss": 0.5}, **{EVIL: 1})
        writer.write({"noted": Entries(np.ones(1), {}, None, {EVIL: EVIL})})
    return path


def check(done):
    for text in (done.out, done.err):
        assert not set(text) & set("\x1b\x07\x9b\r\x08\u202e"), repr(text)


@pytest.mark.parametrize("state", ["sound", "damaged", "foreign", "gone"])
@pytest.mark.parametrize(
    "command", ["ls", "show", "verify", "compact", "repair", "export", "attribute"]
)
def test_every_command(sawlog_, evil, tmp_path, command, state):
    if state == "damaged":
        segment = next((evil / "segments").iterdir())
        segment.write_bytes(segment.read_bytes()[:-9])
    elif state == "foreign":
        (evil / "store.json").write_text('{"format": "\\u001b[2J"}')
    path = str(evil / EVIL if state == "gone" else evil)
    more = {"export": [str(tmp_path / f"{EVIL}.csv")], "attribute": [path], "show": [EVIL]}
    check(sawlog_(command, path, *more.get(command, [])))
    if command in ("ls", "show", "verify"):
        check(sawlog_(command, str(tmp_path) if command == "ls" else path, "--json"))
    check(sawlog_(command, path, EVIL, "--" + EVIL))


def test_a_warning(sawlog_, evil, monkeypatch):
    from sawlog.cli import _show

    def run(arguments, screen):
        warnings.warn(f"about {arguments.path}", stacklevel=1)
        screen.remark(f"on {arguments.path}")
        return 0

    monkeypatch.setattr(_show, "run", run)
    with pytest.warns(UserWarning, match="owned") as shown:
        done = sawlog_("show", str(evil))
    check(done)
    assert "owned" in done.err
    assert str(shown[0].message).isprintable()


FORMULAS = ["=1+1", "+A1", "-2+3", "@SUM(1)", "\tx", "\r=1", "'=1", "\uff1d1", "--1"]
PLAIN = ["a=b", "-5", "+1.5e3", "1", "", "'quoted'", "-inf", "x-1", " =1"]


def test_guarding_can_be_undone():
    assert [guarded(text)[0] for text in FORMULAS] == ["'"] * len(FORMULAS)
    assert [guarded(text) for text in PLAIN] == PLAIN
    for text in (*FORMULAS, *PLAIN):
        assert unguarded(guarded(text)) == text


def test_cells_of_exported_tables(tmp_path):
    texts = [*FORMULAS, *PLAIN]
    numbers = -np.arange(len(texts), dtype=float)
    with store.create(tmp_path / "s") as writer:
        writer.append(texts, {"=cmd": np.array(texts), "x": numbers})
    [path] = store.export(tmp_path / "s", tmp_path / "s.csv")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "'=cmd", "x"]
    assert [row[0] for row in rows] == list(map(guarded, texts))
    assert [row[1] for row in rows] == list(map(guarded, texts))
    assert [float(row[2]) for row in rows] == numbers.tolist()


def test_cells_of_a_sink(tmp_path):
    for number in (1, 2):
        with CsvSink(tmp_path / "run.csv") as sink:
            entries = Entries(np.array(["=1", "a"]), {"@x": np.array([-number] * 2)})
            sink.write({"+name": entries})
    with CsvSink(tmp_path / "run.csv") as sink:
        sink.write({"b": Entries(np.array([1.0]), {"-axis": np.array([3])})})
    with (tmp_path / "run.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["name", "'@x", "'-axis", "value"]
    assert rows[:2] == [["'+name", "-1", "", "'=1"], ["'+name", "-1", "", "a"]]
    assert rows[-1] == ["b", "", "3", "1.0"]
    assert len(rows) == 5
