"""Tensors that are placed all at once, as one by one, and refused where those are refused."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.store import _header, _parse
from sawlog.store._header import Document, document_of


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
