"""Names of logs and step axes: whatever they are, every series keeps its own steps.

Also stores of version 1, which were written before the names of tensors told all of them apart.
"""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import store
from sawlog.errors import ArgumentError, DamagedStoreError, SchemaError
from sawlog.records import Entries
from tests.thorough import seeded_examples

from .forge import Forged, sealed
from .plain_reader import PlainStore
from .xxh3 import xxh3_64


def write(path, pairs, **options):
    """A series for each (name, axis), with values and steps that tell whose they are."""
    with store.create(path, interval=None, **options) as writer:
        for turn in range(2):
            for number, (name, axis) in enumerate(pairs):
                at = np.arange(3) + 100 * number + 10 * turn
                writer.write({name: Entries(at / 2, {axis: at})})
            writer.flush()


def check(path, pairs):
    with store.open(path) as reader:
        plain = PlainStore(path, xxh3_64)
        assert set(reader.names) == {name for name, _ in pairs}
        for number, (name, axis) in enumerate(pairs):
            at = np.concatenate([np.arange(3), np.arange(3) + 10]) + 100 * number
            found = reader.entries(name)
            assert found.values.tolist() == (at / 2).tolist()
            assert {key: steps.tolist() for key, steps in found.steps.items()} == {
                axis: at.tolist()
            }
            values, steps, _, _ = plain.series(name)
            assert values.tolist() == (at / 2).tolist()
            assert steps[axis].tolist() == at.tolist()
        assert reader.verify().ok


SHARED = [("loss", "epoch/train"), ("train/loss", "epoch")]
ODD = [
    SHARED,
    [("c", "a/b"), ("b/c", "a"), ("a/b/c", "x")],
    [("x", "a%2Fb"), ("b/x", "a"), ("x/y", "a%"), ("y", "a%25")],
    [("/", "/"), ("//", "/"), ("a", "//")],
    [("loss", "ids"), ("ids/loss", "x"), ("mask/loss", "x")],
    [("text/loss", "é/ü"), ("nul\0", "a\0b"), (" ", " ")],
]


@pytest.mark.parametrize("pairs", ODD, ids=str)
def test_names_with_anything_in_them(tmp_path, pairs):
    path = tmp_path / "store"
    write(path, pairs)
    check(path, pairs)
    store.compact(path)
    check(path, pairs)
    assert store.export(store.open(path), tmp_path / "all.safetensors")


words = st.text("ab/%2F5", min_size=1, max_size=6)


@seeded_examples(15, 200)
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=5, unique_by=lambda p: p[0]))
def test_random_names(tmp_path_factory, pairs):
    path = tmp_path_factory.getbasetemp() / "random-names"
    shutil.rmtree(path, ignore_errors=True)
    write(path, pairs)
    check(path, pairs)


@pytest.mark.parametrize("axis", ["", "sawlog.step", "__metadata__", "\ud800"], ids=ascii)
def test_axes_that_cannot_be_stored(tmp_path, axis):
    """Refused as names are, and nothing of them stays."""
    with store.create(tmp_path / "store") as writer:
        with pytest.raises(SchemaError, match="step axis of 'loss'"):
            writer.log({"loss": 1.0}, **{axis: 3})
        writer.log({"loss": 1.0}, step=3)
    with store.open(tmp_path / "store") as reader:
        assert reader.entries("loss").steps["step"].tolist() == [3]


# ---- version 1


def as_version_1(path):
    """Make a store what an older sawlog would have written."""
    said = json.loads((path / "store.json").read_bytes())
    (path / "store.json").write_bytes(sealed(said | {"version": 1}))
    for file in (path / "segments").iterdir():
        forged = Forged.of(file)
        forged.said["version"] = 1
        for where in (forged.document, forged.said["checksums"], forged.said["types"]):
            renamed = {unescaped(name): entry for name, entry in where.items()}
            where.clear()
            where.update(renamed)
        file.write_bytes(forged.bytes())


def unescaped(name):
    if not name.startswith("sawlog.step/"):
        return name
    axis, _, series = name.removeprefix("sawlog.step/").partition("/")
    return f"sawlog.step/{axis.replace('%2F', '/').replace('%25', '%')}/{series}"


@pytest.mark.parametrize("pairs", [[("loss", "step")], [("loss", "a/b"), ("x", "50%")]], ids=str)
def test_stores_of_version_1(tmp_path, pairs):
    """Read as they are, appended to, and compacted with segments of this version."""
    path = tmp_path / "store"
    write(path, pairs)
    as_version_1(path)
    assert {s.description["version"] for s in PlainStore(path).segments} == {1}
    check(path, pairs)
    with store.open(path, "append", interval=None) as writer:
        for name, axis in pairs:
            writer.write({name: Entries(np.array([-1.0]), {axis: np.array([-1])})})
    plain = PlainStore(path, xxh3_64)
    assert plain.info["version"] == 1
    assert {s.description["version"] for s in plain.segments} == {1, 2}
    for _ in range(2):
        with store.open(path) as reader:
            for name, axis in pairs:
                assert reader.entries(name).values[-1] == -1
                assert reader.entries(name).steps[axis][-1] == -1
                assert len(reader.read(name)) == 7
        store.compact(path)
    assert [s.description["version"] for s in PlainStore(path, xxh3_64).segments] == [2]


def test_a_tensor_that_two_series_share_is_refused(tmp_path):
    """An old sawlog wrote the steps of one over those of the other: both are in doubt."""
    path = tmp_path / "store"
    write(path, SHARED)
    for file in (path / "segments").iterdir():
        forged = Forged.of(file)
        forged.said["version"] = 1
        lost = "sawlog.step/epoch%2Ftrain/loss"
        assert lost in forged.document
        del forged.said["checksums"][lost], forged.document[lost]
        file.write_bytes(forged.bytes())
    with pytest.raises(DamagedStoreError, match="two series share the tensor"):
        store.open(path)
    assert not store.verify(path).ok


# ---- what users note


@pytest.mark.parametrize(
    "meta",
    [
        {"checksum": "0" * 16},
        {"a": {"checksum": "0" * 16}, "checksum": "0" * 16},
        {"note": '"checksum": "0000000000000000"\n}\n'},
        {'"checksum": "': "f" * 16},
        {"checksum": {"checksum": "0" * 16}},
    ],
    ids=str,
)
def test_meta_that_looks_like_a_checksum(tmp_path, meta):
    store.create(tmp_path / "store", meta=meta).close()
    with store.open(tmp_path / "store") as reader:
        assert reader.meta == meta
        assert PlainStore(tmp_path / "store", xxh3_64).info["meta"] == meta
        assert reader.verify().ok


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_notes_that_could_not_be_read_again_are_refused(tmp_path):
    cycle = []
    cycle.append(cycle)
    for meta in (nested(5000), {"a": cycle}, {"a": "\ud800"}, {"\ud800": 1}, {"a": 10**5000}):
        with pytest.raises(ArgumentError, match="meta"):
            store.create(tmp_path / "refused", meta=meta)
    store.create(tmp_path / "store", meta=nested(200)).close()
    assert store.open(tmp_path / "store").meta == nested(200)
