"""Hostile files, links, numbers and ids in a store."""

# ruff: noqa: F401, F811  (fixtures are imported)

import contextlib
import copy
import json
import os
import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import store
from sawlog.cli import main
from sawlog.errors import DamagedStoreError
from tests.thorough import seeded_examples

from .forge import Forged, sealed
from .hostile_stores import HUGE, ask, ask_everything, ask_open, path, segment_of, sound

# ---- much said, little there


def huge_sequence(path):
    file = segment_of(path)
    file.with_name(f"{file.name.partition('-')[0]}-{2**62}.safetensors").write_bytes(b"x")


def huge_count(path):
    (file, *_) = (path / "writers").iterdir()
    file.write_text(json.dumps({"published": 2**62, "closed": True}))


def huge_replaces(path):
    file = segment_of(path)
    forged = Forged.of(file)
    forged.said["replaces"] = {"zz": [[1, 2**62]]}
    file.write_bytes(forged.bytes())


def huge_schema_number(path):
    (path / "schema" / f"{10**18}.json").write_bytes(sealed({"add": []}))


def huge_digits(path):
    (path / "schema" / ("9" * 200 + ".json")).write_text("x")
    (path / "segments" / ("a-" + "9" * 200 + ".safetensors")).write_text("x")


def many_gaps(path):
    for number in range(10, 500, 3):
        (path / "segments" / f"gaps-{number:08d}.safetensors").write_bytes(b"")


def from_the_future(path):
    (path / "store.json").write_bytes(b'{"format": "sawl')
    os.utime(path / "store.json", (time.time() + 1e6,) * 2)


@pytest.mark.parametrize(
    "change",
    [
        huge_sequence,
        huge_count,
        huge_replaces,
        huge_schema_number,
        huge_digits,
        many_gaps,
        from_the_future,
    ],
    ids=lambda change: change.__name__,
)
def test_work_is_bounded_by_what_is_there(path, change, capsys):
    change(path)
    refused = ask_everything(path)
    if change not in (huge_digits, huge_replaces):
        assert refused["open"] is not None
    assert refused["skip"] is None or change is from_the_future
    assert refused["repair"] is None
    assert refused["open again"] is None
    with store.open(path) as reader:
        assert reader.read("loss").tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


# ---- pipes, links and other things that are no files


def make_fifo(place, _):
    os.mkfifo(place)


def make_folder(place, _):
    place.mkdir()
    (place / "x").write_text("x")


def make_link(place, outside):
    place.symlink_to(outside / "precious.bin")


def make_loop(place, _):
    place.symlink_to(place.name)


def make_folder_link(place, outside):
    place.symlink_to(outside)


MADE = [make_fifo, make_folder, make_link, make_loop, make_folder_link]


@pytest.fixture
def outside(sound, tmp_path):
    """What must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    file = segment_of(sound)
    for name in ("precious.bin", file.name, "a-00000001.safetensors", "x.part", "compact.lock"):
        (folder / name).write_bytes(file.read_bytes())
        os.utime(folder / name, (1e9, 1e9))
    return folder


def fingerprint(folder):
    found = {}
    for place in sorted(folder.rglob("*")):
        status = place.lstat()
        content = place.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(place)] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


FILES = [
    "store.json",
    "schema/00000001.json",
    "schema/00000009.json",
    "writers/x.json",
    "segments/a-00000001.safetensors",
    "tmp/x.part",
    "tmp/compact.lock",
    "replaced/1",
    "replaced/1/a-00000001.safetensors",
    "damaged/store.json",
    "damaged/segments-a-00000001.safetensors",
]


@pytest.mark.turns
@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file(path, outside, name, made, capsys):
    before = fingerprint(outside)
    place = path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    made(place, outside)
    with contextlib.suppress(NotImplementedError):
        os.utime(place, (1e9, 1e9), follow_symlinks=False)
    ask_everything(path)
    ask(path, lambda path: store.compact(path, grace=0))
    assert fingerprint(outside) == before


@pytest.mark.parametrize("name", ["segments", "schema", "writers", "tmp", "replaced", "damaged"])
@pytest.mark.parametrize("broken", [False, True])
def test_a_folder_that_leads_outside(path, outside, name, broken, capsys):
    """Neither an old segment there nor a lock nor a leftover is touched, and nothing is added."""
    if name == "replaced":
        (outside / "1").mkdir()
        shutil.copy(outside / "precious.bin", outside / "1" / "a-00000001.safetensors")
    if broken:
        segment_of(path).write_bytes(b"broken")
    before = fingerprint(outside)
    shutil.rmtree(path / name, ignore_errors=True)
    (path / name).symlink_to(outside)
    refused = ask_everything(path)
    assert fingerprint(outside) == before
    if name == "segments":
        assert isinstance(refused["open"], DamagedStoreError)
        assert "link" in str(refused["open"])


def test_a_store_may_be_reached_by_a_link(path, tmp_path):
    """The user named it; it is what lies inside that is not trusted."""
    (tmp_path / "link").symlink_to(path)
    ask_open(tmp_path / "link")
    store.compact(tmp_path / "link")
    ask_open(path)


def test_one_bad_store_does_not_hide_the_others(tmp_path, sound, capsys):
    for number in range(3):
        shutil.copytree(sound, tmp_path / f"store-{number}")
    file = segment_of(tmp_path / "store-1")
    forged = Forged.of(file)
    forged.said["chunks"][0]["rows"] = HUGE
    file.write_bytes(forged.bytes())
    assert main(["ls", "--json", str(tmp_path)]) != 0
    found = {Path(each["path"]).name: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert found == {"store-0": "closed", "store-1": "damaged", "store-2": "closed"}


def test_two_segments_that_replace_each_other(path):
    """Neither would count, and nobody would know."""
    for file in (path / "segments").iterdir():
        forged = Forged.of(file)
        said = forged.said
        said["replaces"] = {said["writer"]: [[3 - said["sequence"], 3 - said["sequence"]]]}
        file.write_bytes(forged.bytes())
    with pytest.raises(DamagedStoreError, match="do not count themselves"):
        store.open(path)


# ---- ids that are no strings


@pytest.mark.parametrize("change", ["back", "beyond", "cut", "within", "hash"])
def test_texts_that_are_none(path, change, capsys):
    """The bytes have right checksums, and still cannot be ids."""
    with store.create(path.with_name("texts"), interval=None) as writer:
        writer.append(["ä", "b"], {"x": np.zeros(2)})
    (file,) = (path.with_name("texts") / "segments").iterdir()
    forged = Forged.of(file)
    where = {part: forged.document[f"sawlog.ids.{part}/x"]["data_offsets"] for part in PARTS}
    values = {
        "back": ("ends", np.array([3, 2])),
        "beyond": ("ends", np.array([2, 99])),
        "cut": ("text", np.frombuffer(b"\xc3\xc3b", np.uint8)),
        "within": ("ends", np.array([1, 3])),
        "hash": ("hash", np.array([1, 2], np.uint64)),
    }
    part, array = values[change]
    begin, end = where[part]
    data = bytearray(forged.data)
    data[begin:end] = array.tobytes()
    forged.data = bytes(data)
    forged.hashes = hashes_of(forged)
    file.write_bytes(forged.bytes())
    if change != "hash":
        with pytest.raises(DamagedStoreError, match="not valid strings"):
            ask_open(path.with_name("texts"))
    assert not store.verify(path.with_name("texts")).ok
    ask_everything(path.with_name("texts"))


PARTS = ("text", "ends", "hash")


def hashes_of(forged):
    """The hashes of tensors of one block."""
    import struct

    from .forge import hash_of

    out = b""
    for entry in sorted(forged.document.values(), key=lambda entry: entry["data_offsets"]):
        begin, end = entry["data_offsets"]
        if end > begin:
            out += struct.pack("<Q", hash_of(forged.data[begin:end])) * 2
    return out


# ---- random ones


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)

anything = st.recursive(
    leaves, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=6), x, max_size=4)
)


def places_of(value, here=()):
    """Every place within a value."""
    found = [here] if here else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places_of(item, (*here, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += places_of(item, (*here, number))
    return found


def changed(value, place, new):
    out = copy.deepcopy(value)
    where = out
    for key in place[:-1]:
        where = where[key]
    where[place[-1]] = new
    return out


def check_random(sound, folder, kind, number, new):
    """One value of one file is something else; every question is answered, or refused."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    if kind == "segment":
        file = segment_of(folder)
        forged = Forged.of(file)
        both = {"said": forged.said, "document": forged.document}
        places = [place for place in places_of(both) if len(place) > 1]
        both = changed(both, places[number % len(places)], new)
        forged.said, forged.document = both["said"], both["document"]
        with contextlib.suppress(UnicodeEncodeError):
            file.write_bytes(forged.bytes())
    else:
        file = folder / kind if kind == "store.json" else sorted((folder / kind).iterdir())[0]
        said = json.loads(file.read_bytes())
        said.pop("checksum", None)
        places = places_of(said)
        said = changed(said, places[number % len(places)], new)
        file.write_bytes(json.dumps(said).encode() if kind == "writers" else sealed(said))
    ask_everything(folder)


@seeded_examples(8, 400)
@given(
    kind=st.sampled_from(["segment", "segment", "store.json", "schema", "writers"]),
    number=st.integers(0, 10_000),
    new=anything,
)
def test_random_values(sound, kind, number, new):
    check_random(sound, sound.parent / "random", kind, number, new)


@seeded_examples(5, 200)
@given(
    files=st.dictionaries(
        st.sampled_from(
            [
                "store.json",
                "schema/00000001.json",
                "schema/00000002.json",
                "segments/a-00000001.safetensors",
                "segments/a-00000003.safetensors",
                "writers/a.json",
                "tmp/a.part",
                "replaced/1/a-00000001.safetensors",
            ]
        ),
        st.binary(max_size=40) | st.text(max_size=20).map(lambda text: json.dumps(text).encode()),
    )
)
def test_random_folders(sound, files):
    folder = sound.parent / "junk"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    ask_everything(folder)
