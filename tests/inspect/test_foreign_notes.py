"""What sawlog notes in stores, as a stranger could write it: an answer, or damage that is named."""

import json
from pathlib import Path

import numpy as np
import pytest

import sawlog.store
from sawlog import curvature
from sawlog.curvature import Curvature, Diagonal
from sawlog.errors import DamagedStoreError, StoreError
from sawlog.influence import Scores, load_scores
from sawlog.inspect._coverage import coverage_of
from sawlog.records import Entries, Records
from sawlog.run_files import _checkpoint
from sawlog.run_files._blocks import Block
from sawlog.run_files._provenance import NOTES, Provenance, noted
from sawlog.run_files._saved_options import NAME as RUN_FILE
from sawlog.sinks import MemorySink, Prefix, Select
from sawlog.store._format._parse import Malformed
from tests.store.forge import sealed

ODD = [None, 1, 1.5, "x", [], ["x"], {}, {"a": []}]


@pytest.mark.parametrize("key", ["weights", "tensors", "projection"])
@pytest.mark.parametrize("value", [None, 1, [], ["x"], {"a": 1}])
def test_the_weights_of_rows(tmp_path, key, value):
    said = Provenance("w", {"a": "b"}, "p").to_json() | {key: value}
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.write(Records({NOTES: Entries(np.zeros((1, 16), np.uint8), attrs=said)}))
    with (
        sawlog.store.open(tmp_path / "s") as reader,
        pytest.raises(DamagedStoreError, match="notes of the weights"),
    ):
        noted(reader)


@pytest.mark.parametrize("missing", ["weights", "tensors", "projection"])
def test_the_weights_of_rows_with_a_key_missing(tmp_path, missing):
    said = Provenance("w", {"a": "b"}, "p").to_json()
    del said[missing]
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.write(Records({NOTES: Entries(np.zeros((1, 16), np.uint8), attrs=said)}))
    with sawlog.store.open(tmp_path / "s") as reader, pytest.raises(DamagedStoreError):
        noted(reader)


BLOCK = Block("fc.weight", ("fc.weight", "fc.bias"), (2, 4), "right", (None, 3))


def test_a_block_as_it_was_written():
    assert Block.from_json(json.loads(json.dumps(BLOCK.to_json()))) == BLOCK


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**400, 2]},
        {"shape": [2**40, 2**40]},
        {"shape": [-1, 2]},
        {"shape": [2]},
        {"shape": "ab"},
        {"ranks": [0, None]},
        {"ranks": [None]},
        {"ranks": [True, None]},
        {"name": None},
        {"parameters": "ab"},
        {"inputs": "up"},
        {"more": 1},
    ],
)
def test_a_block_of_a_stranger(tmp_path, change):
    said = BLOCK.to_json() | change
    with pytest.raises(Malformed):
        Block.from_json(said)
    (tmp_path / RUN_FILE).write_text(json.dumps({"options": {}, "blocks": [said]}))
    assert coverage_of(tmp_path) is None


@pytest.mark.parametrize("parameters", ["x", -1, 1.5, True, [], 10**400])
def test_the_parameters_of_a_run(tmp_path, parameters):
    said = {"options": {}, "blocks": [BLOCK.to_json()], "parameters": 16}
    (tmp_path / RUN_FILE).write_text(json.dumps(said))
    assert coverage_of(tmp_path).share == 0.5
    (tmp_path / RUN_FILE).write_text(json.dumps(said | {"parameters": parameters}))
    assert coverage_of(tmp_path) is None


@pytest.mark.parametrize("notes", [*ODD, {"key": 1}, {"key": ["x"], "types": 3, "role": []}])
def test_sinks_take_notes_of_any_form(notes):
    memory = MemorySink()
    entries = Entries(np.ones(1), {"step": np.zeros(1, int)}, attrs={"logdict": notes})
    with Select(Prefix(memory, "a/"), names="loss*") as sink:
        sink.write(Records({"loss": entries}))
    shown = [] if isinstance(notes, dict) and "role" in notes else ["a/loss"]
    assert [name for name in memory.records if name != "loss"] in (shown, ["a/loss"])


def with_meta(path: Path, **changes):
    """Change the meta of a store; None removes a key."""
    file = path / "store.json"
    said = json.loads(file.read_bytes())
    said["meta"] |= changes
    said["meta"] = {key: value for key, value in said["meta"].items() if value != "remove"}
    file.write_bytes(sealed(said))


@pytest.mark.parametrize("key", ["texts", "about", "validation"])
@pytest.mark.parametrize("value", ["remove", 1, "x", ["x"], {"a": 1}])
def test_scores(tmp_path, key, value):
    Scores(np.array(["q"]), np.array([1, 2]), np.ones((1, 2))).save(tmp_path / "s")
    with_meta(tmp_path / "s", **{key: value})
    if (key, value) in [("about", {"a": 1}), ("validation", "remove")]:
        assert load_scores(tmp_path / "s").values.tolist() == [[1.0, 1.0]]
        return
    with pytest.raises(DamagedStoreError, match="scores not as sawlog writes them"):
        load_scores(tmp_path / "s")


@pytest.mark.parametrize("key", ["layers", "notes", "joint"])
@pytest.mark.parametrize("value", ["remove", 1, {"a": 1}])
def test_curvatures(tmp_path, key, value):
    made = Curvature("diagonal", {"fc": Diagonal(np.ones((2, 3)))}, count=4)
    made.save(tmp_path / "s")
    with_meta(tmp_path / "s", **{key: value})
    if (key, value) in [("joint", "remove"), ("notes", {"a": 1})]:
        assert [*curvature.load(tmp_path / "s").layers] == ["fc"]
        return
    with pytest.raises(StoreError, match=r"a curvature not as sawlog writes|no log named"):
        curvature.load(tmp_path / "s")


@pytest.mark.parametrize("attrs", [{}, {"count": "x"}, {"count": -1}, {"count": None}])
def test_sums_of_a_pass(tmp_path, attrs):
    with sawlog.store.create(tmp_path / "s", meta={"about": {}}) as writer:
        writer.write(Records({"sum": Entries(np.ones((1, 3)), attrs=attrs)}))
    with pytest.raises(DamagedStoreError, match="counts"):
        _checkpoint._read(tmp_path / "s")
