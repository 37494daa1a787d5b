"""Files that commands read and write: texts of examples, and tables."""

import csv

import pytest

from sawlog.cli import _out_file
from sawlog.cli._texts import texts_of
from sawlog.errors import StoreExistsError


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("t.jsonl", '{"id": 2, "text": "a"}\n{"id": 0, "text": "b"}\n', {"2": "a", "0": "b"}),
        ("t.jsonl", '{"text": "a"}\n\n{"text": "b"}\n  \n"c"\n', {"0": "a", "1": "b", "2": "c"}),
        ("t.ndjson", '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', {"1": "a"}),  # the first
        ("t.csv", "id,text\n2,a\n0,\n", {"2": "a", "0": ""}),
        ("t.csv", 'text\n"a, b"\nc\n', {"0": "a, b", "1": "c"}),
        ("t.tsv", "text\tid\na, b\t1\n", {"1": "a, b"}),
        ("t.TSV", "text\tid\na, b\t1\n", {"1": "a, b"}),
        ("t.txt", "a\n\nc\r\nd", {"0": "a", "1": "", "2": "c", "3": "d"}),
    ],
)
def test_texts(tmp_path, name, text, found):
    (tmp_path / name).write_bytes(text.encode())
    assert texts_of(tmp_path / name, range(4)) == found
    assert texts_of(tmp_path / name, [1]) == {k: v for k, v in found.items() if k == "1"}


def test_a_sheet_is_no_formula(tmp_path):
    _out_file.write(tmp_path / "s.csv", {"id": ["=1+1", "plain"], "=name": [1.5, -2.0]})
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "'=name"]
    assert rows[1:] == [["'=1+1", "1.5"], ["plain", "-2.0"]]


def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "s.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreExistsError, match="--overwrite replaces it"):
        _out_file.check(tmp_path / "s.csv", overwrite=False)
    _out_file.check(tmp_path / "s.csv", overwrite=True)
    _out_file.check(tmp_path / "new.csv", overwrite=False)
    _out_file.check(None, overwrite=False)
    for name, what in (("folder.csv", "a folder"), ("other", "not a folder of scores")):
        with pytest.raises(StoreExistsError, match=what):
            _out_file.check(tmp_path / name, overwrite=True)
