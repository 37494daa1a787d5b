"""Stores on disk are what FORMAT.md says: read back by a reader written from that page alone.

`plain_reader.py` knows json, struct and numpy, and nothing of sawlog. Each test writes a store with
`sawlog.store`, knows itself what should be in it, and looks at it through the plain reader and,
segment by segment, through the official safetensors library.
"""

import numpy as np
import pytest

from sawlog import store
from sawlog.testing import assert_same, sample
from sawlog.testing._dtypes import DTYPES

from .format_helpers import COUNT, SEED, check_numbers, raw, write_in_segments
from .numbers import write_numbers
from .plain_reader import PlainStore
from .xxh3 import xxh3_64


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def filled(path):
    return write_in_segments(path)


# ---- the plain reader finds what was written


def test_several_segments_of_several_writers(filled):
    plain = check_numbers(filled)
    assert len(plain.segments) >= 8
    assert len({segment.description["writer"] for segment in plain.segments}) == 2


def test_without_a_hash_function(filled):
    check_numbers(filled, hash=None)


def test_with_the_package_xxhash(filled):
    check_numbers(filled, hash=pytest.importorskip("xxhash").xxh3_64_intdigest)


def test_after_compaction(filled):
    before = len(PlainStore(filled).segments)
    store.compact(filled)
    plain = check_numbers(filled)
    assert len(plain.segments) < before
    assert plain.replaced


def test_compaction_after_compaction(path):
    for start in range(0, COUNT, 10):
        with store.create(path, exists="append") as writer:
            for begin in range(start, start + 10, 5):
                write_numbers(writer, range(begin, begin + 5))
                writer.flush()
        store.compact(path)
        check_numbers(path, start + 10)


def test_before_replaced_segments_are_removed(filled, tmp_path):
    """A crash between publishing the merged segment and removing the others changes nothing."""
    old = {file.name: file.read_bytes() for file in (filled / "segments").iterdir()}
    store.compact(filled)
    for name, data in old.items():
        (filled / "segments" / name).write_bytes(data)
    check_numbers(filled)
    with store.open(filled) as reader:
        assert reader.ids("grad").tolist() == list(range(COUNT))
        assert_same(reader.read("loss"), np.arange(COUNT) / 2)


def test_two_writers_at_once(path):
    with store.create(path) as one, store.open(path, "append") as two:
        for begin in range(0, 20, 4):
            one.append([begin, begin + 1], {"x": np.array([begin, begin + 1])})
            two.append([begin + 2, begin + 3], {"x": np.array([begin + 2, begin + 3])})
            one.log({"s": begin})
            two.log({"s": -begin})
            one.flush()
            two.flush()
    for _ in range(2):
        plain = PlainStore(path, xxh3_64)
        assert {id: int(value) for id, value in plain.rows("x").items()} == {
            number: number for number in range(20)
        }
        values = plain.series("s")[0]
        assert [value for value in values if value > 0] == [4, 8, 12, 16]
        assert [value for value in values if value < 0] == [-4, -8, -12, -16]
        store.compact(path)


@pytest.mark.parametrize("policy", ["first", "replace"])
def test_duplicates(path, policy):
    with store.create(path, duplicates=policy) as writer:
        for number in range(6):
            writer.append([number, 0, 1], {"x": np.array([number, 10 + number, 20 + number])})
            writer.flush()
    for _ in range(2):
        plain = PlainStore(path, xxh3_64)
        rows = plain.rows("x")
        with store.open(path) as reader:
            ids = reader.ids().tolist()
            assert sorted(ids) == sorted(rows) == list(range(6))
            assert reader.read("x").tolist() == [rows[id] for id in ids]
        assert rows[0] == (0 if policy == "first" else 15)
        assert rows[5] == 5
        store.compact(path)


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
def test_every_dtype(path, dtype, shape):
    rows, entries = sample(dtype, (5, *shape), SEED), sample(dtype, (4, *shape), SEED + 1)
    with store.create(path) as writer:
        writer.append(np.arange(3), {"row": rows[:3]})
        writer.flush()
        writer.append(np.arange(3, 5), {"row": rows[3:]})
        writer.extend({"entry": entries}, step=entries)
    plain = PlainStore(path, xxh3_64)
    assert plain.ids("row") == list(range(5))
    assert_same(np.array(list(plain.rows("row").values()), raw(rows).dtype), raw(rows))
    values, steps, _, _ = plain.series("entry")
    assert_same(values, raw(entries))
    assert_same(steps["step"], raw(entries))


def test_large_values_have_many_blocks_and_spans(path):
    """A row that is larger than a block, and a tensor of more than one span."""
    wide, long = sample("f8", (3, 2000), SEED), sample("f4", (500_000,), SEED)
    texts = [f"{number:040d}" for number in range(3000)]
    with store.create(path) as writer:
        writer.append([0, 1, 2], {"wide": wide})
        writer.extend({"long": long})
        writer.append(texts, {"text": np.arange(3000)})
    hash = pytest.importorskip("xxhash").xxh3_64_intdigest
    plain = PlainStore(path, hash)
    assert_same(np.stack(list(plain.rows("wide").values())), wide)
    assert_same(plain.series("long")[0], long)
    assert plain.ids("text") == texts
    segment = next(s for s in plain.segments if "long" in s.tensors)
    block, span = segment.description["checksums"]["long"]
    assert 1024 <= 4 * block <= 64 << 10, "about 4 KiB"
    assert 256 << 10 <= 4 * span <= 8 << 20, "about 1 MiB"


def test_declared_schema(path):
    column = store.Column("x", np.dtype("float32"), (2,))
    step = store.Column("step", np.dtype("int64"), ())
    series = store.Series(store.Column("loss", np.dtype("float64"), ()), (step,))
    store.create(path, schema=[store.Table((column,), "str"), series]).close()
    plain = PlainStore(path)
    assert plain.info["config"]["fixed"] is True
    assert plain.schema == [
        {
            "kind": "table",
            "ids": "str",
            "columns": [{"name": "x", "dtype": "float32", "shape": [2]}],
        },
        {
            "kind": "series",
            "column": {"name": "loss", "dtype": "float64", "shape": []},
            "steps": [{"name": "step", "dtype": "int64", "shape": []}],
        },
    ]
