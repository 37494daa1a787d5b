"""Examples of every kind of data set, described and read back."""

import io
import json

import numpy as np
import pytest

import sawlog.store
from sawlog.errors import ArgumentError, DamagedStoreError, SawlogError
from sawlog.example_data import Example, check_described, describe, examples_of, load_examples
from sawlog.example_data._convert import MOST_ITEMS, MOST_TEXT


def pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def frame(**columns):
    import pandas

    return pandas.DataFrame(columns)


ROWS = [{"text": "one", "label": 1}, {"text": "two", "label": 0}]
EXPECTED = {0: Example("one", fields={"label": 1}), 1: Example("two", fields={"label": 0})}


def hf(rows):
    from datasets import Dataset

    return Dataset.from_list(rows)


def splits():
    from datasets import DatasetDict

    return DatasetDict(train=hf(ROWS))


SOURCES = {
    "list": lambda tmp: ROWS,
    "dict": lambda tmp: dict(enumerate(ROWS)),
    "generator": lambda tmp: iter(ROWS),
    "frame": lambda tmp: frame(text=["one", "two"], label=[1, 0]),
    "polars": lambda tmp: pytest.importorskip("polars").DataFrame(ROWS),
    "arrow": lambda tmp: pytest.importorskip("pyarrow").Table.from_pylist(ROWS),
    "record batch": lambda tmp: pytest.importorskip("pyarrow").RecordBatch.from_pylist(ROWS),
    "hugging face": lambda tmp: hf(ROWS),
    "json lines": lambda tmp: write(tmp / "a.jsonl", "\n".join(map(json.dumps, ROWS))),
    "csv": lambda tmp: write(tmp / "a.csv", "text,label\none,1\ntwo,0\n"),
    "tsv": lambda tmp: write(tmp / "a.tsv", "text\tlabel\none\t1\ntwo\t0\n"),
    "parquet": lambda tmp: parquet(tmp / "a.parquet"),
    "pairs": lambda tmp: [("one", 1), ("two", 0)],
}


def write(path, text):
    path.write_text(text)
    return path


def parquet(path):
    frame(text=["one", "two"], label=[1, 0]).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_examples(tmp_path, kind):
    assert describe(tmp_path / "run", SOURCES[kind](tmp_path)) == 2
    data = load_examples(tmp_path / "run")
    assert data.ids == [0, 1]
    assert data.get([1, 0, 7]) == {1: EXPECTED[1], 0: EXPECTED[0]}


def test_ids_are_chosen_by_column_index_list_function_and_position():
    rows = [{"id": 5, "text": "a", "name": "x"}, {"id": 6, "text": "b", "name": "y"}]
    found = {
        "column id": examples_of(rows),
        "position": examples_of(rows, "position"),
        "column": examples_of(rows, "name"),
        "list": examples_of(rows, np.array([8, 9])),
        "function": examples_of(rows, lambda row: row["text"]),
        "index": examples_of(frame(text=["a", "b"]).set_index(np.array([3, 4]))),
        "column of a frame": examples_of(frame(text=["a", "b"], id=[7, 8])),
        "frame": examples_of(frame(text=["a", "b"])),
        "column and index": examples_of(frame(text=["a", "b"], id=[7, 8]).iloc[::-1]),
        "series": examples_of(frame(text=["a", "b"])["text"]),
        "index of a series": examples_of(frame(text=["a", "b"])["text"].iloc[::-1]),
    }
    assert {kind: [each for each, _ in own] for kind, own in found.items()} == {
        "column id": [5, 6],
        "position": [0, 1],
        "column": ["x", "y"],
        "list": [8, 9],
        "function": ["a", "b"],
        "index": [3, 4],
        "column of a frame": [7, 8],
        "frame": [0, 1],
        "column and index": [8, 7],
        "series": [0, 1],
        "index of a series": [1, 0],
    }


def test_images_keep_their_pixels(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    colour = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)  # channels first
    unit = np.eye(8, dtype=np.float32)
    describe(tmp_path, [grey, {"image": colour, "label": "x"}, (unit, 4)])
    found = load_examples(tmp_path).get([0, 1, 2])
    assert np.array_equal(pixels(found[0].image), grey)
    assert np.array_equal(pixels(found[1].image), np.moveaxis(colour, 0, -1))
    assert found[1].fields == {"label": "x"}
    assert np.array_equal(pixels(found[2].image), (np.eye(8) * 255).astype(np.uint8))
    assert found[2].fields == {"label": 4}


@pytest.mark.parametrize("more", [0, 1])
def test_texts_and_lists_are_cut_where_they_are_longer(tmp_path, more):
    row = {"text": "x" * (MOST_TEXT + more), "numbers": list(range(MOST_ITEMS + more))}
    describe(tmp_path, [(row, "cat")])  # a pair of an example and its label
    (found,) = load_examples(tmp_path).get([0]).values()
    assert (len(found.text), found.cut) == (MOST_TEXT, bool(more))
    told = [f"... {MOST_ITEMS + 1} in all"] if more else []
    assert found.fields == {"numbers": [*range(MOST_ITEMS), *told], "label": "cat"}


def test_a_folder_of_images_and_encoded_images(tmp_path):
    from PIL import Image

    (tmp_path / "cats").mkdir()
    grey = np.full((4, 6, 3), 7, np.uint8)
    Image.fromarray(grey).save(tmp_path / "cats" / "a.png")
    ((name, folder),) = examples_of(tmp_path)
    assert name == "cats/a.png"
    assert np.array_equal(pixels(folder.image), grey)
    encoded = {"image": {"bytes": (tmp_path / "cats" / "a.png").read_bytes()}}
    ((_, example),) = examples_of([encoded])
    assert np.array_equal(pixels(example.image), grey)
    (tmp_path / "cats" / "b.png").write_text("<svg onload=alert(1)>")
    with pytest.raises(ArgumentError, match=r"b\.png cannot be read as an image"):
        list(examples_of(tmp_path))


def test_long_and_odd_values_are_cut_and_say_so(tmp_path):
    odd = {"text": "x" * (MOST_TEXT + 1), "ids": list(range(100)), "bad": float("nan")}
    odd |= {"half": "\ud800", "none": None, "tensor": np.ones((2, 2))}
    describe(tmp_path, [odd])
    found = load_examples(tmp_path).get([0])[0]
    assert found.cut
    assert len(found.text) == MOST_TEXT
    assert found.fields["ids"] == [*range(MOST_ITEMS), "... 100 in all"]
    assert found.fields["bad"] == "nan"
    assert found.fields["half"] == "\\ud800"
    assert found.fields["none"] is None
    assert found.fields["tensor"] == [[1.0, 1.0], [1.0, 1.0]]


def test_describing_again_replaces_also_with_another_length(tmp_path):
    describe(tmp_path, {1: "short", 2: "kept"})
    describe(tmp_path, {1: "long " * 500})
    describe(tmp_path, {1: "again"})
    found = load_examples(tmp_path)
    assert {each: e.text for each, e in found.get(found.ids).items()} == {1: "again", 2: "kept"}
    assert [len(batch) for batch in found.batches(1)] == [1, 1]


def test_ids_of_the_other_kind_start_over(tmp_path):
    describe(tmp_path, {"a": "wrong ids"})
    describe(tmp_path, {1: "right", 2: "ids"})
    assert load_examples(tmp_path).ids == [1, 2]
    assert describe(tmp_path, []) == 0
    assert load_examples(tmp_path).ids == [1, 2]


def test_refusals_tell_what_to_type(tmp_path):
    cases = {
        "must be a Hugging Face dataset": lambda: list(examples_of(7)),
        "does not exist": lambda: list(examples_of(tmp_path / "none.jsonl")),
        "unknown suffix": lambda: list(examples_of(write(tmp_path / "a.xml", ""))),
        "is not a file of JSON lines": lambda: list(examples_of(write(tmp_path / "a.json", "{"))),
        "has no images": lambda: list(examples_of(tmp_path)),
        "has no column 'key'": lambda: list(examples_of([{"text": "a"}], "key")),
        "of ids is 1, that of examples more": lambda: list(examples_of(["a", "b"], [1])),
        "of ids is 3, that of examples 2": lambda: list(examples_of(["a", "b"], [1, 2, 3])),
        r"examples 0 and 2 \(from 0 on\) have the same id, 7": lambda: describe(
            tmp_path / "y", ["a", "b", "c"], [7, 8, 7]
        ),
        "must be one of its splits; got .'train'": lambda: list(examples_of(splits())),
        "integers or strings": lambda: list(examples_of(["a"], [1.5])),
        "must be a column": lambda: list(examples_of([{"text": "a"}], text="body")),
        "all integers or all strings": lambda: describe(tmp_path / "x", {1: "a", "b": "c"}),
    }
    for message, call in cases.items():
        with pytest.raises(SawlogError, match=message):
            call()


def test_ids_that_the_run_does_not_store_are_refused(tmp_path):
    with sawlog.store.create(tmp_path / "logs" / "whole", interval=None) as writer:
        writer.append([10, 11], {"grad/w": np.ones((2, 3))})
    describe(tmp_path, ["a", "b"])
    with pytest.raises(ArgumentError, match=r"has ids such as 10, 11, and described are 0, 1"):
        check_described(tmp_path)
    describe(tmp_path, ["a", "b"], [10, 11])
    check_described(tmp_path)


@pytest.mark.parametrize("described", [[10], [11], [11, 12], [10, 11, 12]])
def test_not_all_examples_of_a_run_need_be_described_nor_the_reverse(tmp_path, described):
    with sawlog.store.create(tmp_path / "logs" / "whole", interval=None) as writer:
        writer.append([10, 11], {"grad/w": np.ones((2, 3))})
    describe(tmp_path, ["a"] * len(described), described)
    check_described(tmp_path)


def test_bytes_that_are_no_example_are_damage():
    good = Example("a", image=b"x", media_type="image/png").to_bytes()
    assert Example.from_bytes(good) == Example("a", image=b"x", media_type="image/png")
    svg = Example("a", image=b"<svg>", media_type="image/svg+xml").to_bytes()
    for bad in (b"", b"\xff" * 8, good[:6], b"\x02\0\0\0[]", svg):
        with pytest.raises(DamagedStoreError):
            Example.from_bytes(bad)


def test_a_text_is_not_shown_again_as_numbers(tmp_path):
    encoded = {"input_ids": [5, 6, 7], "attention_mask": np.ones(3), "labels": [5, 6, 7]}
    rows = [
        {"text": "one", **encoded, "source": "web"},
        {"text": "two", **encoded, "labels": [0, 3]},  # several classes: not the text
        {"text": "three", "input_ids": "a text"},
        {**encoded},
    ]
    describe(tmp_path / "run", rows)
    found = load_examples(tmp_path / "run").get(range(4))
    assert [list(found[i].fields) for i in range(4)] == [
        ["source"],
        ["labels"],
        ["input_ids"],
        ["input_ids", "attention_mask", "labels"],
    ]
