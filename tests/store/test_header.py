"""Tensors that are placed all at once, as one by one, and refused where those are refused."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store._format import _header, _header_cache, _parse, _segment
from sawlog.store._format._header import Document, document_of
from sawlog.store._format._layout import Folder

from .forge import Forged


@pytest.fixture(scope="module")
def document(tmp_path_factory: Any) -> Document:
    path: Path = tmp_path_factory.mktemp("header") / "store"
    with store.create(path) as writer:
        writer.append([1, 2], {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 0))})
        writer.log({"x": 1.0, "y/z": np.zeros((2, 2), np.int8), "é": True}, step=0)
    data = next((path / "segments").iterdir()).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return document_of(data[8 : 8 + length], len(data))


def test_all_at_once_is_as_one_by_one(document: Document) -> None:
    cuts = document.said["checksums"]
    fast = _header._all_plain(document.entries, cuts, document.base)
    slow = {
        name: _header._placed(name, entry, None, cuts[name], document.base)
        for name, entry in _header._in_order(document.entries)
    }
    assert fast == slow
    assert fast is not None
    assert list(fast) == list(slow)
    assert len(fast) == 9
    assert all(type(x) is int for placed in fast.values() for x in placed.shape)


def entry(document: Document) -> dict[str, Any]:
    return document.entries["a"]


WRONG = {
    "no object": lambda d: d.entries.update(a=3),
    "no shape": lambda d: entry(d).pop("shape"),
    "a shape that is no list": lambda d: entry(d).update(shape="23"),
    "true": lambda d: d.entries["x"].update(shape=[True]),
    "a float": lambda d: d.entries["x"].update(shape=[1.0]),
    "no axes": lambda d: d.entries["x"].update(shape=[]),
    "negative": lambda d: entry(d).update(shape=[-2, -3]),
    "another size": lambda d: entry(d).update(shape=[2, 4]),
    "another type": lambda d: entry(d).update(dtype="F64"),
    "an unknown type": lambda d: entry(d).update(dtype="F7"),
    "a type that is no text": lambda d: entry(d).update(dtype=["F32"]),
    "three offsets": lambda d: entry(d)["data_offsets"].append(0),
    "offsets of another kind": lambda d: entry(d).update(data_offsets=[0.0, 24.0]),
    "an offset beyond": lambda d: entry(d).update(data_offsets=[2**63, 2**63 + 24]),
    "a gap": lambda d: entry(d).update(data_offsets=[x + 8 for x in entry(d)["data_offsets"]]),
    "no cut": lambda d: d.said["checksums"].pop("a"),
    "a cut that is none": lambda d: d.said["checksums"].update(a=[2, 3]),
    "blocks of nothing": lambda d: d.said["checksums"].update(a=[0, 0]),
    "an empty name": lambda d: d.entries.update({"": d.entries.pop("é")}),
    "no Unicode": lambda d: d.entries.update({"\ud800": d.entries.pop("é")}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_one_by_one_is_not_taken_at_once(document: Document, wrong: str) -> None:
    changed = copy.deepcopy(document)
    WRONG[wrong](changed)
    cuts = changed.said["checksums"]
    if "é" not in changed.entries:
        cuts |= dict.fromkeys(changed.entries, cuts["é"]) | cuts
    assert _header._all_plain(changed.entries, cuts, changed.base) is None
    with pytest.raises(_parse.Malformed):
        _header._tensors(changed)


def _plain(segment: Any) -> dict[str, Any]:
    parts = {k: v for k, v in vars(segment).items() if k not in ("_disk", "_map", "kind")}
    return {**parts, "replaces": segment.replaces.to_json()}


def test_a_header_that_is_recalled_is_the_one_that_would_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = _header_cache.HeaderCache()
    monkeypatch.setattr(_segment, "_read_before", recall)
    for _ in range(2):
        with store.create(tmp_path, merge=False, interval=None, exists="append") as writer:
            for rows in (1, 1, 2, 1, 12):
                writer.extend({"a": np.zeros((rows, 3))}, step=np.arange(rows))
                writer.extend({"b": np.zeros((rows, 300))})
                writer.flush()
    disk = Folder(tmp_path).disk
    names = sorted(path.name for path in (tmp_path / "segments").iterdir())
    recall._known.clear()
    known = [_segment.Segment(disk, name) for name in names]
    assert 3 <= len({id(segment.kind) for segment in known}) < 6 < len(known)
    for segment in known:
        recall._known.clear()
        assert _plain(_segment.Segment(disk, segment.name)) == _plain(segment)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"\"sequence\": 1,", r"\"sequence\": 0,"),
        (r"\"sequence\": 1,", r"\"sequence\": 01,"),
        (r"\"sequence\": 1,", r"\"sequence\": true,"),
        (r"\"sequence\": 1,", r"\"sequence\": 1, \"sequence\": 1,"),
        (r"\"order\": [", r"\"order\": [-"),
        (r"\"order\": [", r"\"order\": [00"),
        (r"\"version\": 2", r"\"version\": 0"),
    ],
)
def test_a_header_is_recalled_only_if_its_own_part_is_good(
    tmp_path: Path, old: str, new: str
) -> None:
    with store.create(tmp_path, merge=False) as writer:
        writer.log({"a": 0.5})
    file = next((tmp_path / "segments").iterdir())
    store.open(tmp_path)
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size].decode().rstrip()
    assert old in text
    file.write_bytes(Forged.of(file).bytes(text.replace(old, new, 1).ljust(size)))
    with pytest.raises(DamagedStoreError):
        store.open(tmp_path)


@pytest.mark.parametrize("first", [8, 100, 1 << 14])
def test_a_header_that_is_longer_than_the_first_read(
    tmp_path: Path, monkeypatch: Any, first: int
) -> None:
    values = {f"layer/{number}": float(number) for number in range(200)}
    with store.create(tmp_path / "store") as writer:
        writer.log(values, step=3)
    (file,) = (tmp_path / "store" / "segments").iterdir()
    assert struct.unpack("<Q", file.read_bytes()[:8])[0] > 1 << 14
    monkeypatch.setattr(_segment, "_FIRST_READ", first)
    reader = store.open(tmp_path / "store")
    assert {name: reader.read(name).item() for name in reader.names} == values
