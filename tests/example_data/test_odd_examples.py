"""Examples at the edges: bytes that end with zeros, shapes that could be two things, gaps."""

import csv

import numpy as np
import pytest

import sawlog.store
from sawlog.errors import ArgumentError
from sawlog.example_data import Example, describe, examples_of, load_examples
from sawlog.example_data._convert import _as_picture
from sawlog.example_data._files import rows_of_file


def test_an_image_that_ends_with_zeros(tmp_path):
    """Rows are padded with zeros to the width of their column; the length says what counts."""
    images = [b"\x89PNG" + bytes(n) for n in (0, 1, 7, 60, 200)]
    examples = [Example(image=image, media_type="image/png") for image in images]
    describe(tmp_path, examples)
    data = load_examples(tmp_path)
    found = data.get(data.ids)
    assert [found[i].image for i in data.ids] == images
    data.close()


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((3, 8, 9), (8, 9, 3)),  # channels first
        ((1, 8, 9), (8, 9)),
        ((3, 8, 3), (3, 8, 3)),  # a picture of three rows
        ((4, 8, 1), (4, 8)),
        ((8, 9, 4), (8, 9, 4)),
        ((8, 9), (8, 9)),
    ],
)
def test_where_the_channels_are(shape, wanted):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    found = _as_picture(array)
    assert found.shape == wanted
    first = array[:, 0, 0] if wanted == (8, 9, 3) else None
    if first is not None:
        assert found[0, 0].tolist() == first.tolist()


@pytest.mark.parametrize(
    ("length", "width"), [(60, 64), (64, 64), (65, 128), (128, 128), (129, 256), (1024, 1024)]
)
def test_bytes_are_in_the_narrowest_column_that_is_wide_enough(tmp_path, length, width):
    """Other versions look for them there."""
    rest = len(Example(image=b"x", media_type="image/png").to_bytes()) - 1
    example = Example(image=bytes(length - rest), media_type="image/png")
    assert len(example.to_bytes()) == length
    describe(tmp_path, [example])
    with sawlog.store.open(tmp_path / "data") as reader:
        assert sorted(reader.names) == [f"bytes/{width}", "length"]


def test_lines_of_json_with_gaps(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1}\n\n  \n{"id": 2}\n\n')
    assert list(rows_of_file(path)) == [(None, {"id": 1}), (None, {"id": 2})]


def test_numbers_of_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,text\n7,-3\n007,\n7.5,-0\n")
    found = [row for _, row in rows_of_file(path)]
    assert found == [
        {"id": 7, "text": -3},
        {"id": "007", "text": ""},
        {"id": "7.5", "text": 0},
    ]


def test_examples_are_in_the_order_in_which_they_are_asked_for(tmp_path):
    """Short and long ones are stored apart."""
    texts = {1: "a", 2: "b" * 500, 3: "c", 4: "d" * 500}
    describe(tmp_path, texts)
    found = load_examples(tmp_path).get([4, 1, 9, 2, 3, 1])
    assert [(each, example.text) for each, example in found.items()] == [
        (each, texts[each]) for each in (4, 1, 2, 3)
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id,text\n7,caf\u00e9\n8,b\n"),
        ("a.tsv", "id\ttext\n7\tcaf\u00e9\n8\tb\n"),
        ("a.jsonl", '{"id": 7, "text": "caf\u00e9"}\n{"id": 8, "text": "b"}\n'),
    ],
)
def test_a_mark_of_the_encoding_does_not_hide_the_ids(tmp_path, name, text, encoding):
    """Spreadsheets put a mark first, and the column of ids would then have another name."""
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    (tmp_path / name).write_bytes((mark + text).encode(encoding))
    found = {each: example.text for each, example in examples_of(tmp_path / name)}
    assert found == {7: "caf\u00e9", 8: "b"}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.csv", "id;text\n7;a\n", "has one column, 'id;text'. Hint: separate columns by ','"),
        ("a.csv", "id\ttext\n7\ta\n", r"one column, 'id\\ttext'"),
        ("a.tsv", "id,text\n7,a\n", r"one column, 'id,text'. Hint: separate columns by '\\t'"),
        ("a.csv", "text,id,text\na,7,b\n", "several columns have the name 'text'"),
    ],
)
def test_a_header_that_would_hide_columns_is_refused(tmp_path, name, text, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=why):
        list(examples_of(tmp_path / name))


def test_one_column_of_texts_may_have_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text("text\na; b\n")
    assert [example.text for _, example in examples_of(tmp_path / "a.csv")] == ["a; b"]


def test_the_limit_of_csv_is_not_lowered(tmp_path):
    (tmp_path / "a.csv").write_text("text\na\n")
    before = csv.field_size_limit(1 << 31)
    try:
        assert len(list(examples_of(tmp_path / "a.csv"))) == 1
        assert csv.field_size_limit() == 1 << 31
    finally:
        csv.field_size_limit(before)
