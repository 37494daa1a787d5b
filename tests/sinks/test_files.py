"""CsvSink and JsonlSink: what is in the files."""

import csv
import json
import os

import ml_dtypes
import numpy as np
import pytest

from sawlog.errors import (
    ArgumentError,
    ForeignStoreError,
    LogMismatchError,
    StoreExistsError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import CsvSink, JsonlSink

from .file_helpers import KINDS, lines_of, one

# ---- JSON lines


def test_jsonl_lines(tmp_path):
    found = lines_of(
        tmp_path / "a.jsonl",
        one(0.1, step=3, epoch=0.5),
        one(np.float32(0.1)),
        one(np.array([[1, 2], [3, 4]], np.int8), step=np.array([7, 8])),
        one(True, 'the "name", ß\n'),
        one("text"),
        one(np.array([1 + 2j, np.nan], np.complex64)),
        one(ml_dtypes.bfloat16(0.5)),
        one(np.datetime64("2020-01-02")),
    )
    assert found == [
        '{"name": "x", "step": 3, "epoch": 0.5, "value": 0.1}',
        '{"name": "x", "value": 0.1}',
        '{"name": "x", "step": [7, 8], "value": [[1, 2], [3, 4]]}',
        '{"name": "the \\"name\\", ß\\n", "value": true}',
        '{"name": "x", "value": "text"}',
        '{"name": "x", "value": [{"real": 1.0, "imag": 2.0}, {"real": "NaN", "imag": 0.0}]}',
        '{"name": "x", "value": 0.5}',
        '{"name": "x", "value": "2020-01-02"}',
    ]
    assert all(json.loads(line)["name"] for line in found)


def test_jsonl_masked_items_are_null(tmp_path):
    mask = np.array([[True, False], [False, False]])
    steps = {"lane": np.array([[7, 0], [0, 0]]), "deep": np.full((2, 2, 2), 3), "n": np.arange(2)}
    entries = Entries(np.ones((2, 2, 2)), steps, mask)
    found = lines_of(tmp_path / "a.jsonl", Records({"x": entries}))
    at = '"lane": [7, null], "deep": [[3, 3], null], "n": 0'
    assert found == ['{"name": "x", ' + at + ', "value": [[1.0, 1.0], null]}']


def test_jsonl_steps_of_what_is_masked_in_part(tmp_path):
    """A lane of which anything was logged has a step; one of which nothing was has none."""
    mask = np.array([[[True, False], [False, False]]])
    entries = Entries(np.ones((1, 2, 2)), {"step": np.array([[5, 0]])}, mask)
    found = lines_of(tmp_path / "a.jsonl", Records({"x": entries}))
    assert found == ['{"name": "x", "step": [5, null], "value": [[1.0, null], [null, null]]}']


# ---- CSV


def test_csv_rows(tmp_path):
    found = lines_of(
        tmp_path / "a.csv",
        one(0.1, step=3),
        one(np.float32(0.1), "a,b", step=4),
        one(np.array([[1, 2]]), "m", step=5),
        one(1 + 2j, "c", step=6),
        one(np.array([7, 8]), "lanes", step=np.array([1, 2])),
        one("", "t", step=8),
        one(np.zeros((0, 2)), "nothing", step=9),
    )
    assert found == [
        "name,step,value",
        "x,3,0.1",
        '"a,b",4,0.1',
        '"m[0,0]",5,1',
        '"m[0,1]",5,2',
        "c.real,6,1.0",
        "c.imag,6,2.0",
        "lanes[0],1,7",
        "lanes[1],2,8",
        't,8,""',
    ]


def test_csv_masked_items_have_no_row(tmp_path):
    mask = np.array([[True, False], [False, False]])
    values = np.arange(4).reshape(2, 2)
    found = lines_of(tmp_path / "a.csv", Records({"x": Entries(values, mask=mask)}))
    assert found == ["name,value", "x[0],0"]


def test_csv_new_step_axes_are_new_columns(tmp_path):
    path = tmp_path / "a.csv"
    os.close(os.open(path, os.O_CREAT, 0o640))
    mode = path.stat().st_mode
    lines_of(path, one('quoted "text",\n', "a,b"), one(1, step=1), one(2, step=2, epoch=0))
    lines_of(path, one(3, seed=5), one(4, epoch=1))
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [
            ["name", "step", "epoch", "seed", "value"],
            ["a,b", "", "", "", 'quoted "text",\n'],
            ["x", "1", "", "", "1"],
            ["x", "2", "0", "", "2"],
            ["x", "", "", "5", "3"],
            ["x", "", "1", "", "4"],
        ]
    assert os.listdir(tmp_path) == ["a.csv"]
    assert path.stat().st_mode == mode


@pytest.mark.parametrize("text", ["a,b", 'say "so"', "two\nlines", " outside ", "plain"])
def test_csv_steps_that_are_texts_stay_whole_beside_a_new_column(tmp_path, text):
    path = tmp_path / "a.csv"
    lines_of(path, one(1, phase=text), one(2, phase=text, step=3))
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [
            ["name", "phase", "step", "value"],
            ["x", text, "", "1"],
            ["x", text, "3", "2"],
        ]


def test_csv_that_was_written_again_is_still_locked(tmp_path):
    with CsvSink(tmp_path / "a.csv") as sink:
        sink.write(one(1))
        sink.write(one(1, step=1))
        with pytest.raises(StoreExistsError, match="another sink"):
            CsvSink(sink.path)


def test_csv_refuses_large_arrays(tmp_path):
    with CsvSink(tmp_path / "a.csv", limit=4) as sink:
        sink.write(one(np.zeros(4)))
        with pytest.raises(ArgumentError, match=r"'big' would become 5 rows.*limit=5"):
            sink.write(Records({**one(1, "small"), **one(np.zeros(5), "big")}))
    assert "small" not in sink.path.read_text()
    with pytest.raises(ArgumentError, match="limit"):
        CsvSink(tmp_path / "b.csv", limit=0)


def test_csv_refuses_steps_without_a_row(tmp_path):
    with CsvSink(tmp_path / "a.csv") as sink:
        with pytest.raises(LogMismatchError, match=r"steps 'step' of 'x'.*JsonlSink"):
            sink.write(one(1.0, step=np.array([1, 2])))
        with pytest.raises(LogMismatchError, match="single column"):
            sink.write(one(1.0, step=1j))


# ---- both


@pytest.mark.parametrize("axis", ["name", "value"])
def test_a_step_axis_with_a_name_of_ours(path, kind, axis):
    entries = Entries(np.ones(1), {axis: np.ones(1)})
    error = pytest.raises(LogMismatchError, match=f"step axis called '{axis}'.*Hint")
    with KINDS[kind](path) as sink, error:
        sink.write(Records({**one(1.0), "y": entries}))
    assert path.read_text() == ""


def test_exists(path, kind):
    lines_of(path, one(1))
    with pytest.raises(StoreExistsError, match="exists='append'"):
        KINDS[kind](path, exists="error")
    with KINDS[kind](path, exists="replace") as sink:
        sink.write(one(2))
    assert "1" not in path.read_text()
    with pytest.raises(ArgumentError, match="exists"):
        KINDS[kind](path, exists="maybe")
    with KINDS[kind](path.with_name("new"), exists="error"):
        pass


def test_one_sink_a_file(path, kind):
    with KINDS[kind](path) as sink:
        sink.write(one(1))
        for exists in ("append", "replace"):
            with pytest.raises(StoreExistsError, match="being written to by another sink"):
                KINDS[kind](path, exists=exists)
        sink.write(one(2))
    assert len(lines_of(path, one(3))) == {"csv": 4, "jsonl": 3}[kind]


def test_a_forgotten_sink_lets_go_of_its_file(path, kind):
    KINDS[kind](path).write(one(1))
    assert len(lines_of(path, one(2))) == {"csv": 3, "jsonl": 2}[kind]


@pytest.mark.parametrize(
    "text",
    ["hello\n", "hello", '{"a": 1}\n', "[1, 2]\n", "a,b\n1,2\n", "name,x\nloss,2\n", "\0\n", "\n"],
)
def test_a_file_of_something_else_is_left_alone(path, kind, text):
    path.write_text(text)
    with pytest.raises(ForeignStoreError, match=r"is not a file that .*Sink wrote.*left as it"):
        KINDS[kind](path)
    assert path.read_text() == text


@pytest.mark.parametrize("kind", [CsvSink, JsonlSink])
def test_counts_of_nothing_are_no_news(kind, tmp_path):
    """How many entries did not fit is written if there are any."""
    about = {"logdict": {"role": "dropped", "key": "x"}}
    with kind(tmp_path / "file") as sink:
        for count in (0, 2, 0):
            dropped = Entries(np.array([count]), attrs=about)
            sink.write(Records({"x": Entries(np.array([1.5])), "x@dropped": dropped}))
    lines = (tmp_path / "file").read_text().splitlines()
    names = [name for line in lines for name in ("x@dropped", "x") if name in line]
    assert [name for name in names if name == "x@dropped"] == ["x@dropped"]
    assert sum("1.5" in line for line in lines) == 3
