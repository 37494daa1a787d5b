"""Ids of examples, rows in few bits, blocks and their ranks."""

import hypothesis.extra.numpy as some
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from sawlog import store
from sawlog.capture._batches import size_of
from sawlog.capture._data_ids import data_ids
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.run_files import _checkpoint as checkpoint
from sawlog.run_files import ragged
from sawlog.run_files._blocks import Block, Report, compressed
from sawlog.run_files._encode import decode, encode
from sawlog.run_files._options import Compression

# -- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 2],
        (3, 1, 2),
        range(3),
        np.array([3, 1], np.int32),
        torch.tensor([5, 6]),
        np.uint8([1, 2]),
    ],
)
def test_numbers_are_ids(ids):
    found = data_ids(ids)
    assert found.dtype == np.int64
    assert found.tolist() == [int(each) for each in ids]


def test_texts_are_ids():
    assert data_ids(["b", "a"]).tolist() == ["b", "a"]
    assert data_ids(np.array(["b", "a"])).tolist() == ["b", "a"]
    assert data_ids([]).tolist() == []


def test_the_content_is_an_id():
    x = torch.arange(12.0).reshape(3, 4)
    ids = data_ids(x)
    assert ids.tolist() == data_ids(x.numpy()).tolist()
    assert data_ids(x[1:]).tolist() == ids[1:].tolist()
    assert data_ids(x + 1).tolist() != ids.tolist()
    both = {"x": x, "y": torch.tensor([1, 2, 3])}
    assert data_ids(both).tolist() == data_ids(dict(reversed(both.items()))).tolist()
    assert (
        data_ids({"x": x, "y": torch.tensor([1, 2, 4])})[:2].tolist() == data_ids(both)[:2].tolist()
    )
    tokens = torch.tensor([[1, 2], [3, 4]])
    assert len(data_ids(tokens)) == 2
    assert data_ids(x.bfloat16()).shape == (3,)
    assert data_ids({"x": np.arange(3.0)}).shape == (3,)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 1], "same id twice in one batch: 1"),
        (["a", "a"], "same id twice in one batch: 'a'"),
        (torch.zeros(2, 3), "same id twice"),
        (7, "must name every example"),
        ("abc", "must name every example"),
        (["a", 1], "mixes strings with other types"),
        (["a", 1, "b"], "mixes strings with other types"),
        (None, "cannot be made of"),
        ({"x": np.zeros((2, 3)), "y": np.zeros((3, 3))}, "different numbers of examples"),
        ([object()], "cannot be made of"),
        (np.array([2**63], np.uint64), "int64"),
        (np.arange(3.0), "one float64 for each example.*Hint: ids.astype"),
        ([0.5, 1.5], "one float64 for each example"),
        (torch.tensor([1.0, 2.0]).bfloat16(), "for each example"),
        ([True, False], "one bool for each example"),
        ([b"a", b"b"], "for each example"),
    ],
)
def test_bad_ids(ids, message):
    with pytest.raises(ArgumentError, match=message):
        data_ids(ids)


def test_the_number_of_examples_of_a_batch():
    x, y = np.zeros((5, 2)), np.zeros(5)
    for batch in (
        x,
        [x, y],
        (x, 3),
        {"x": x, "y": y},
        ({"x": x}, y),
        [{"a": 1}] * 5,
        list("abcde"),
    ):
        assert size_of(batch) == 5
    with pytest.raises(ArgumentError, match="number of examples in a int"):
        size_of(7)


# -- bits -----------------------------------------------------------------------------------------

ROWS = some.arrays(
    np.float32,
    some.array_shapes(min_dims=2, max_dims=4, max_side=5),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(ROWS, st.sampled_from(["float32", "bfloat16", "float16", "int8"]), st.booleans())
def test_rows_come_back(rows, dtype, in_torch):
    columns = encode("x", torch.from_numpy(rows.copy()) if in_torch else rows, dtype)
    assert all(len(column) == len(rows) for column in columns.values())
    back = decode(columns, "x")
    assert back.shape == rows.shape
    most = np.abs(rows).reshape(len(rows), -1).max(1).reshape(-1, *(1,) * (rows.ndim - 1))
    if dtype == "float32":
        assert np.array_equal(back, rows)
    elif dtype == "bfloat16":
        assert (np.abs(back - rows) <= np.abs(rows) * 2**-8 + 1e-38).all()
    elif dtype == "float16":
        fits = np.abs(rows) < 65504
        assert (np.abs(back - rows)[fits] <= np.abs(rows)[fits] * 2**-11 + 2**-25).all()
    else:
        assert (np.abs(back - rows) <= most / 254 * 1.001 + 1e-40).all()


def test_the_dtype_of_rows_that_come_back():
    rows = np.array([[1 / 3, 2.0]])
    for dtype, back in (("float64", np.float64), ("float32", np.float32), ("bfloat16", np.float32)):
        found = decode(encode("a", rows, dtype), "a")
        assert found.dtype == back
        np.testing.assert_allclose(found, rows, rtol={"bfloat16": 1e-2}.get(dtype, 1e-7))
    assert decode(encode("a", rows, "float64"), "a")[0, 0] == 1 / 3


def test_rows_without_elements():
    for dtype in ("float32", "int8"):
        assert decode(encode("x", np.zeros((3, 0), np.float32), dtype), "x").shape == (3, 0)


# -- blocks ---------------------------------------------------------------------------------------

BLOCKS = (
    Block("a.weight", ("a.weight", "a.bias"), (512, 785), "right"),
    Block("n.weight", ("n.weight",), (512, 1), "right"),
    Block("c.weight", ("c.weight",), (4, 8, 9), "right"),
)


def test_ranks():
    a, n, c = compressed(BLOCKS, Compression(rank=16), "float32")
    assert (a.stored, n.stored, c.stored) == ((16, 16), (256, 1), (4, 8, 9))
    assert compressed(BLOCKS, None, "float32") == list(BLOCKS)


@given(st.integers(8, 20_000), st.sampled_from(["float32", "int8", "bfloat16"]))
def test_bytes_are_kept_to_and_used(nbytes, dtype):
    blocks = BLOCKS[:1]
    try:
        found = compressed(blocks, Compression(bytes=nbytes), dtype)
    except ArgumentError:
        assert nbytes < 16
        return
    assert Report(tuple(found), dtype).bytes_per_example <= nbytes
    rank = found[0].stored[0]
    more = compressed(blocks, Compression(rank=rank + 1), dtype)
    assert Report(tuple(more), dtype).bytes_per_example > nbytes


def test_what_cannot_be_that_small():
    with pytest.raises(ArgumentError, match=r"3 layers take 24 bytes .* compress.bytes is 20"):
        compressed(BLOCKS, Compression(bytes=20), "float32")


def test_the_report_says_it_all():
    blocks = compressed(BLOCKS, Compression(rank=4), "float32")
    text = str(Report(tuple(blocks), "float32", (("x.weight", "frozen"),)))
    for part in (
        "a.weight + bias",
        "512 x 785",
        "4 x 4",
        "4 x 8 x 9",
        "x.weight (frozen)",
        "total",
    ):
        assert part in text
    assert f"{4 * (16 + 16 + 64):,}" in text


def test_parts_of_a_block():
    rows = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    right = Block("w", ("w", "b"), (3, 4), "right").parts(rows)
    assert np.array_equal(right["w"], rows[:, :, :3])
    assert np.array_equal(right["b"], rows[:, :, 3])
    left = Block("w", ("w", "b"), (3, 4), "left").parts(rows)
    assert np.array_equal(left["w"], rows[:, :2])
    assert np.array_equal(left["b"], rows[:, 2])
    assert np.array_equal(Block("w", ("w",), (3, 4), "left").parts(rows)["w"], rows)


def test_ids_of_texts_do_not_depend_on_the_longest_of_the_batch():
    rows = [["a", "b"], ["cc", "d"], ["long", "e"]]
    whole = data_ids({"t": np.array(rows)})
    assert [data_ids({"t": np.array([row])})[0] for row in rows] == whole.tolist()
    assert len({*whole}) == 3


def test_ids_of_content_tell_dtypes_shapes_and_names_apart():
    """The same bytes mean other things as another dtype, shape or name."""
    values = np.arange(8, dtype=np.int32).reshape(2, 4)
    several = [
        {"x": values},
        {"x": values.view(np.float32)},
        {"x": values.reshape(2, 2, 2)},
        {"x": values.view(np.int64)},
        {"y": values},
        {"x": values[:, :2], "y": values[:, 2:]},
    ]
    named = [data_ids(each).tolist() for each in several]
    assert all(len(each) == 2 for each in named)
    assert len({name for each in named for name in each}) == 2 * len(several)
    assert data_ids({"x": values.copy()}).tolist() == named[0]


def test_the_newest_state_counts_after_a_death_before_the_older_was_removed(tmp_path, monkeypatch):
    def dies(path):
        raise OSError("killed")

    monkeypatch.setattr(checkpoint, "remove_store", dies)
    for value in (1.0, 2.0, 3.0):
        checkpoint.save(tmp_path, {"sum/x": (np.array([value]), 1)}, np.arange(int(value)), {})
    assert len(list(tmp_path.iterdir())) == 3
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.arrays["sum/x"][0].tolist() == [3.0]
    assert len(found.ids) == 3
    monkeypatch.undo()
    checkpoint.save(tmp_path, {"sum/x": (np.array([4.0]), 1)}, np.arange(4), {})
    assert [path.name for path in tmp_path.iterdir()] == ["00000004"]


def test_a_row_that_is_replaced_by_one_of_the_first_length(tmp_path):
    with store.create(tmp_path / "logs", duplicates="replace") as writer:
        for number, (example, length) in enumerate([(0, 3), (1, 5), (1, 3)]):
            rows = np.full((1, length, 2), 1.0 + number)
            ragged.append(writer, np.array([example]), {"forward/a": rows})
    with store.open(tmp_path / "logs") as reader:
        assert ragged.lengths_of(reader, "forward/a", [0, 1]).tolist() == [3, 3]
        found = ragged.gather(reader, [0, 1], ["forward/a"])["forward/a"]
    np.testing.assert_array_equal(found, np.stack([np.full((3, 2), 1.0), np.full((3, 2), 3.0)]))


def test_a_state_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    """The newer one counts; what cannot be read and is not replaced stays an error."""
    save = lambda number: checkpoint.save(
        tmp_path, {"sum/x": (np.full(2, number), 3)}, np.arange(int(number)), {"made": number}
    )
    save(1.0)
    plain, seen = checkpoint._read, []

    def read(path):
        seen.append(path.name)
        if len(seen) == 1:
            save(2.0)
            raise StoreNotFoundError("replaced")
        return plain(path)

    monkeypatch.setattr(checkpoint, "_read", read)
    found = checkpoint.load(tmp_path)
    assert (found.arrays["sum/x"][0].tolist(), found.about) == ([2.0, 2.0], {"made": 2.0})
    assert found.ids.tolist() == [0, 1]
    assert seen == ["00000001", "00000002"]

    def lost(path):
        raise StoreNotFoundError("gone")

    monkeypatch.setattr(checkpoint, "_read", lost)
    with pytest.raises(StoreNotFoundError, match="gone"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "part"),
    [("forward/a+1", True), ("backward/a+12", True), ("forward/a.positions", True),
     ("forward/a", False), ("forward/a+1b", False), ("forward/a+", False), ("grad/a+1", False),
     ("grad/a.positions", False)],
)  # fmt: skip
def test_columns_of_further_positions(name, part):
    assert ragged.is_part(name) == part
