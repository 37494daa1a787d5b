"""Very many series alike: described together, and read as if each had been described by itself."""

import json

import ml_dtypes
import numpy as np
import pytest

import sawlog.store
from sawlog.errors import DamagedStoreError
from sawlog.records import Entries
from sawlog.store._format import _chunks, _schema_json, _tensor_groups
from sawlog.store._reading import _catalog

from .forge import Forged
from .plain_reader import PlainStore
from .xxh3 import xxh3_64


@pytest.fixture
def few(monkeypatch):
    """Four series are very many."""
    for module, name in (
        (_tensor_groups, "_MANY"),
        (_schema_json, "_MANY"),
        (_chunks, "_MANY"),
        (_catalog, "_FEW"),
    ):
        monkeypatch.setattr(module, name, 4)


def records(rows, shift=0):
    """Series of several kinds: some are enough for a group, some cannot be in one."""
    steps = {"step": np.arange(rows) + shift, "a/b%": np.full((rows, 2), shift + 0.5)}
    plain = np.arange(rows, dtype=np.float64) + shift
    out = {f"f64/é{n}": Entries(plain * n, steps) for n in range(6)}
    out |= {f"odd/{n}": Entries((plain + n).astype(ml_dtypes.bfloat16)) for n in range(5)}
    out |= {f"c128/{n}": Entries(np.full((rows, 2), n + 1j * shift)) for n in range(4)}
    out |= {f"few/{n}": Entries(np.full(rows, n, np.int8), steps) for n in range(3)}
    out |= {f"empty/{n}": Entries(np.zeros((rows, 0))) for n in range(5)}
    out |= {f"mask/{n}": Entries(plain, steps, np.arange(rows) % 2 == 0) for n in range(5)}
    out |= {f"note/{n}": Entries(plain, steps, None, {"group": n}) for n in range(5)}
    return out


def same(path, parts):
    """Both readers have what was written, and all of it is intact."""
    reader, plain = sawlog.store.open(path), PlainStore(path, xxh3_64)
    assert sawlog.store.verify(path).ok
    assert list(reader.schema) == list(parts[0]) == list(plain.columns)
    for name in parts[0]:
        values = np.concatenate([part[name].values for part in parts])
        entries = reader.entries(name)
        assert entries.values.tobytes() == values.tobytes() == plain.series(name)[0].tobytes()
        assert entries.values.dtype == values.dtype
        for axis, array in entries.steps.items():
            expected = np.concatenate([part[name].steps[axis] for part in parts])
            assert np.array_equal(array, expected)
            assert np.array_equal(plain.series(name)[1][axis], expected)
    return plain


def test_both_readers_see_what_was_written(tmp_path, few):
    path = tmp_path / "store"
    parts = [records(3), records(2, 10)]
    with sawlog.store.create(path, merge=False, interval=None) as writer:
        for part in parts:
            writer.write(part)
            writer.flush()
    plain = same(path, parts)
    said = [segment.description for segment in plain.segments]
    assert [each["version"] for each in said] == [3, 3]
    assert len(said[0]["groups"]) == 5  # f64 and its two axes, odd, c128
    kinds = [log["kind"] for log in json.loads((path / "schema/00000001.json").read_text())["add"]]
    assert kinds.count("many") == 5
    sawlog.store.compact(path)
    assert len(same(path, parts).segments) == 1


def test_few_series_are_described_one_by_one(tmp_path):
    path = tmp_path / "store"
    with sawlog.store.create(path) as writer:
        writer.write(records(3))
    plain = same(path, [records(3)])
    assert [segment.description["version"] for segment in plain.segments] == [2]


def written(path):
    with sawlog.store.create(path, interval=None) as writer:
        writer.write({name: e for name, e in records(2).items() if name.startswith("f64")})
    return next((path / "segments").iterdir())


def test_a_changed_byte_is_noticed_in_the_series_that_has_it(tmp_path, few):
    file = written(tmp_path / "store")
    data = bytearray(file.read_bytes())
    at = Forged.of(file).document["sawlog.group/0"]["data_offsets"][0]
    begin = 8 + int.from_bytes(data[:8], "little") + at
    data[begin + 16 * 3] ^= 1  # six series of sixteen bytes each
    file.write_bytes(data)
    reader = sawlog.store.open(tmp_path / "store")
    assert reader.read("f64/é2").tolist() == [0, 2]
    with pytest.raises(DamagedStoreError, match="f64"):
        reader.read("f64/é3")


WRONG = {
    "names twice": lambda f: f.said["groups"]["sawlog.group/0"].update(names=["x"] * 6),
    "a name is empty": lambda f: f.said["groups"]["sawlog.group/0"].update(names=[*"abcde", ""]),
    "too few names": lambda f: f.said["groups"]["sawlog.group/0"].update(names=[*"abcde"]),
    "no names": lambda f: f.said["groups"]["sawlog.group/0"].update(names=[]),
    "names of no group": lambda f: f.said["groups"]["sawlog.group/1"].update(
        names="sawlog.group/9"
    ),
    "names of itself": lambda f: f.said["groups"]["sawlog.group/1"].update(names="sawlog.group/1"),
    "names in a circle": lambda f: f.said["groups"]["sawlog.group/0"].update(
        names="sawlog.group/1"
    ),
    "names are a number": lambda f: f.said["groups"]["sawlog.group/0"].update(names=6),
    "a surrogate": lambda f: f.said["groups"]["sawlog.group/0"].update(names=[*"abcde", "\ud800"]),
    "a prefix that is taken": lambda f: f.said["groups"]["sawlog.group/1"].update(prefix=""),
    "a prefix that is no text": lambda f: f.said["groups"]["sawlog.group/1"].update(prefix=1),
    "a group without a tensor": lambda f: f.said["groups"].update(
        {"sawlog.group/7": {"names": ["x"]}}
    ),
    "a group of another name": lambda f: f.said["groups"].update(
        {"loss": f.said["groups"].pop("sawlog.group/0")}
    ),
    "no object": lambda f: f.said.update(groups=[]),
    "a group is no object": lambda f: f.said["groups"].update({"sawlog.group/0": []}),
    "groups are gone": lambda f: f.said.pop("groups"),
    "of version 2": lambda f: f.said.update(version=2),
    "a chunk twice": lambda f: f.said["chunks"].append(f.said["chunks"][0]),
    "a chunk of the steps": lambda f: f.said["chunks"][0].update(group="sawlog.group/1"),
    "a chunk of no group": lambda f: f.said["chunks"][0].update(group="x"),
    "a chunk of a list": lambda f: f.said["chunks"][0].update(group=[]),
    "other rows": lambda f: f.said["chunks"][0].update(rows=1),
    "true rows": lambda f: f.said["chunks"][0].update(rows=True),
    "other axes": lambda f: f.said["chunks"][0].update(steps=["step"]),
    "unknown axes": lambda f: f.said["chunks"][0].update(steps=["step", "x"]),
    "another cut": lambda f: f.said["checksums"].update({"sawlog.group/0": [1, 1]}),
    "one axis": lambda f: f.document["sawlog.group/0"].update(shape=[12]),
    "rows and names changed": lambda f: f.document["sawlog.group/0"].update(shape=[2, 6]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_groups_of_a_stranger_are_refused(tmp_path, few, wrong):
    file = written(tmp_path / "store")
    forged = Forged.of(file)
    WRONG[wrong](forged)
    file.write_bytes(forged.bytes())
    with pytest.raises(DamagedStoreError):
        sawlog.store.open(tmp_path / "store")
    assert not sawlog.store.verify(tmp_path / "store").ok
    assert sawlog.store.open(tmp_path / "store", damaged="skip").count("f64/é0") == 0


def test_the_work_is_bounded_by_the_bytes(tmp_path, few):
    """Groups without bytes that share a list of names would cost more than they weigh."""
    file = written(tmp_path / "store")
    forged = Forged.of(file)
    size = len(forged.data)
    for number in range(3, 9):
        group = f"sawlog.group/{number}"
        forged.said["groups"][group] = {"names": "sawlog.group/0", "prefix": f"{number}/"}
        forged.said["checksums"][group] = [1, 1]
        forged.document[group] = {"dtype": "U8", "shape": [6, 0], "data_offsets": [size, size]}
    file.write_bytes(forged.bytes())
    with pytest.raises(DamagedStoreError, match="group"):
        sawlog.store.open(tmp_path / "store")
