"""Files of a store, one by one: descriptions, the official safetensors library, the hash."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from sawlog import store
from sawlog.errors import DamagedStoreError, ForeignStoreError, NewerStoreError, SawlogError
from sawlog.records import Entries, Records
from sawlog.testing import assert_same, sample
from sawlog.testing._dtypes import DTYPES

from .format_helpers import COUNT, SEED, check_numbers, raw, write_in_segments
from .numbers import write_numbers
from .plain_reader import SCHEMA, SEGMENT, WRITER, FormatError, PlainStore, Segment
from .xxh3 import xxh3_64


def sealed(said, **layout):
    """An object as the text of a file whose last key is its checksum."""
    said = {key: value for key, value in said.items() if key != "checksum"}
    text = json.dumps(said | {"checksum": "0" * 16}, **layout)
    before, zeros, after = text.rpartition("0" * 16)
    assert zeros
    return f"{before}{xxh3_64(text.encode()):016x}{after}"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def filled(path):
    return write_in_segments(path)


# ---- files and descriptions


def test_files_of_a_store(filled):
    folders = {"store.json", "schema", "segments", "writers", "tmp"}
    assert {file.name for file in filled.iterdir()} <= folders
    for folder, pattern in (("schema", SCHEMA), ("segments", SEGMENT), ("writers", WRITER)):
        names = [file.name for file in (filled / folder).iterdir()]
        assert names
        assert all(pattern.fullmatch(name) for name in names), names
    assert not (filled / "tmp").exists() or list((filled / "tmp").iterdir()) == []


def test_store_json(filled):
    info = json.loads((filled / "store.json").read_bytes())
    assert info["format"] == "sawlog-store"
    assert info["version"] == 2
    assert re.fullmatch(r"[0-9a-f]{32}", info["id"])
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", info["created"])
    assert info["config"] == {"duplicates": "error", "nan": "allow", "fixed": False}
    assert info["meta"] == {"owner": "ann"}


@pytest.mark.parametrize("seal", [sealed, json.dumps], ids=["sealed", "without checksum"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": "other"}, ForeignStoreError),
        ({"format": None}, ForeignStoreError),
        ({"version": 3}, NewerStoreError),
        ({"version": 1000, "config": "different"}, NewerStoreError),
    ],
)
def test_foreign_and_newer_stores(filled, change, error, seal):
    """Refused as what they are; a later version may have other keys and other checksums."""
    said = json.loads((filled / "store.json").read_bytes())
    del said["checksum"]
    (filled / "store.json").write_text(seal(said | change))
    for mode in ("read", "append"):
        with pytest.raises(error):
            store.open(filled, mode)
    with pytest.raises(error):
        store.create(filled, exists="append")


@pytest.mark.parametrize("name", ["store.json", "schema/00000001.json"])
def test_json_without_its_checksum(filled, name):
    """The last key has to be there: without it nobody knows whether the rest is right."""
    said = json.loads((filled / name).read_bytes())
    del said["checksum"]
    (filled / name).write_text(json.dumps(said))
    with pytest.raises(DamagedStoreError, match=Path(name).name), store.open(filled) as reader:
        reader.read("loss")


def test_descriptions(filled):
    plain = PlainStore(filled)
    orders = [segment.description["order"] for segment in plain.segments]
    assert orders == sorted(orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    for segment in plain.segments:
        clock, writer, sequence = segment.description["order"]
        assert isinstance(clock, int)
        assert [writer, sequence] == [segment.description[key] for key in ("writer", "sequence")]
    for writer, published in plain.published.items():
        clocks = [order[0] for order in orders if order[1] == writer]
        assert published == len(clocks)
        assert clocks == sorted(set(clocks))


def test_json_is_what_other_languages_can_read(path):
    """No NaN or Infinity, which are Python's own: refused, or written in another way."""

    def write():
        with store.create(path, meta={"a": 1.0}) as writer:
            note = {"a": float("nan"), "b": float("inf")}
            writer.write(Records({"x": Entries(np.zeros(1), attrs=note)}))

    with contextlib.suppress(SawlogError):
        write()
    for file in path.rglob("*.safetensors"):
        data = file.read_bytes()
        header = json.loads(data[8 : start_of(data)], parse_constant=pytest.fail)
        json.loads(header["__metadata__"]["sawlog"], parse_constant=pytest.fail)


def test_order_of_a_merged_segment_is_that_of_the_first(filled):
    first = PlainStore(filled).segments[0].description["order"]
    store.compact(filled)
    merged = PlainStore(filled).segments[0]
    assert merged.description["replaces"]
    assert merged.description["order"] == first


def test_writers_tell_how_far_they_got(filled):
    for file in (filled / "writers").iterdir():
        state = json.loads(file.read_bytes())
        assert state["closed"] is True
        assert state["published"] == 4


def test_unknown_keys_and_files_are_ignored(filled):
    """A reader ignores what later versions may add."""
    for file in (filled / "store.json", *(filled / "schema").iterdir()):
        file.write_text(sealed(json.loads(file.read_bytes()) | {"later": [1]}, indent=1))
    segments = filled / "segments"
    for name in ("notes.txt", "A-00000001.safetensors", "a-1.safetensors", ".nfs0000", "x.json"):
        (segments / name).write_text("something else")
        (filled / "schema" / name).write_text("something else")
        (filled / "writers" / f"_{name}").write_text("something else")
    (filled / "tmp").mkdir(exist_ok=True)
    (filled / "tmp" / "a-00000001.safetensors").write_text("half a segm")
    check_numbers(filled)
    with store.open(filled) as reader:
        assert reader.ids("grad").tolist() == list(range(COUNT))
        assert reader.verify().ok
    with store.open(filled, "append") as writer:
        write_numbers(writer, range(COUNT, COUNT + 5))
    store.compact(filled)
    check_numbers(filled, COUNT + 5)


# ---- the official safetensors library


def test_each_segment_opens_with_safetensors(filled):
    store.compact(filled)
    with store.open(filled, "append") as writer:
        write_numbers(writer, range(COUNT, COUNT + 5))
    files = sorted((filled / "segments").iterdir())
    assert len(files) >= 2
    for file in files:
        _compare_with_safetensors(file)


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
def test_each_dtype_opens_with_safetensors(path, dtype):
    with store.create(path) as writer:
        writer.append(["a", "b"], {"row": sample(dtype, (2, 3), SEED)})
        writer.log({"entry": sample(dtype, (), SEED)}, step=sample(dtype, (), SEED))
    (file,) = (path / "segments").iterdir()
    _compare_with_safetensors(file)


def _compare_with_safetensors(file: Path):
    ours = Segment(file, xxh3_64)
    with safetensors.safe_open(file, "numpy") as theirs:
        assert json.loads(theirs.metadata()["sawlog"]) == ours.description
        assert set(theirs.keys()) == set(ours.tensors)
        for name, tensor in ours.tensors.items():
            part = theirs.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == (tensor.dtype, tensor.shape)
    for name, tensor in safetensors.deserialize(file.read_bytes()):
        assert tensor["dtype"] == ours.tensors[name].dtype
        assert bytes(tensor["data"]) == ours.stored(name).tobytes(), name
    if any(tensor.dtype.startswith("F8") for tensor in ours.tensors.values()):
        return  # safetensors.numpy looks for float8 in numpy, and fails
    loaded = safetensors.numpy.load_file(file)
    assert set(loaded) == set(ours.tensors)
    for name in ours.tensors:
        assert_same(raw(loaded[name]), ours.stored(name), name)


# ---- the hash, and the reader itself


def test_the_hash():
    xxhash = pytest.importorskip("xxhash")
    for size in (*range(260), 511, 512, 513, 1024, 1025, 4096, 65537):
        data = np.random.default_rng(size).bytes(size)
        assert xxh3_64(data) == xxhash.xxh3_64_intdigest(data), size


def test_the_plain_reader_can_fail(filled):
    """Each rule of the page that it checks is one it can see broken."""
    file = sorted((filled / "segments").iterdir())[0]
    sound = file.read_bytes()
    for damaged in (sound[:-1], sound + b"\0", sound[:100], b"", sound[:-9] + b"\0" + sound[-8:]):
        file.write_bytes(damaged)
        with pytest.raises(FormatError):
            PlainStore(filled, xxh3_64)
    place = start_of(sound)
    for offset in (20, place, (place + len(sound)) // 2, len(sound) - 1):
        flipped = bytearray(sound)
        flipped[offset] ^= 1
        file.write_bytes(flipped)
        with pytest.raises((FormatError, ValueError, KeyError)):
            PlainStore(filled, xxh3_64)
    file.unlink()
    assert PlainStore(filled).missing == [(file.name[:-21], 1)]


def start_of(data):
    return int.from_bytes(data[:8], "little") + 8
