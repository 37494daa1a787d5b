"""Example ids whose hashes are equal, and in which order rows count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DuplicateIdError, SchemaError, UnknownIdError
from sawlog.store._format import _ids
from sawlog.store._format._chunks import SeriesChunk
from sawlog.store._format._ids import StringIds
from sawlog.store._reading._id_index import IdIndex
from sawlog.store._reading._join_chunks import merged_attrs
from sawlog.store._reading._stored_ids import _are_texts
from sawlog.store._writing._id_set import IdSet, first_of_each

HASHES = {"all equal": lambda text: 7, "by length": len, "two kinds": lambda text: text[0] < 98}
IDS = ["b", "a", "dd", "c", "aa", "", "ccc", "é"]


@pytest.fixture(params=HASHES)
def clashing(request: Any, monkeypatch: Any) -> None:
    """Hashes that tell few strings apart; ``text`` is bytes, and empty ones are alike."""
    how = HASHES[request.param]
    monkeypatch.setattr(_ids, "hash_of", lambda text: int(how(text or b"a")))


@pytest.mark.usefixtures("clashing")
def test_equal_hashes(tmp_path: Path) -> None:
    path, numbers = tmp_path / "store", np.arange(len(IDS))
    with store.create(path, merge=False) as writer:
        for part in (slice(0, 3), slice(3, None)):
            writer.append(IDS[part], {"x": numbers[part]})
            writer.flush()
    reader = store.open(path)
    for order in (numbers, numbers[::-1], np.array([3, 3, 0])):
        asked = [IDS[i] for i in order]
        assert reader.gather(asked)["x"].tolist() == order.tolist()
    assert reader.ids() == IDS
    for unknown in ("zz", "zzz"):  # by length as one of the first segment, and of the second
        with pytest.raises(UnknownIdError, match=rf"1 of 2 ids: '{unknown}'"):
            reader.gather(["a", unknown])


@pytest.mark.usefixtures("clashing")
@pytest.mark.parametrize(("policy", "rows"), [("first", [0, 1, 2]), ("replace", [3, 1, 4])])
def test_equal_hashes_and_equal_ids(policy: str, rows: list[int]) -> None:
    chunks = [StringIds.of(["a", "b", "c"]), StringIds.of(["a", "c"])]
    index = IdIndex(chunks, policy, "'x'")
    assert index.find(["a", "b", "c"]).tolist() == rows
    assert index.find(["d", "a"]).tolist() == [-1, rows[0]]
    assert index.superseded is not None
    assert np.flatnonzero(~index.superseded).tolist() == sorted(rows)
    with pytest.raises(DuplicateIdError, match=r"2 ids more than once.*'a', 'c'"):
        IdIndex(chunks, "error", "'x'")


def test_a_string_with_the_hash_of_another_in_another_segment(monkeypatch: Any) -> None:
    monkeypatch.setattr(_ids, "hash_of", len)
    index = IdIndex([StringIds.of(["a"]), StringIds.of(["bb", "ccc"])], "error", "'x'")
    assert index.find(["zz", "a", "ccc", "z"]).tolist() == [-1, 0, 2, -1]


def test_strings_are_compared_in_full() -> None:
    """Of every length around a word and around the longest that is compared by words."""
    random = np.random.default_rng(0)
    sizes = [0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 71, 200]
    texts = ["".join(random.choice(list("ab\0é"), size)) for size in sizes for _ in range(3)]
    ids = StringIds.of(texts)
    others, rows = [], []
    for row, text in enumerate(texts):
        changed = [text[:at] + "z" + text[at + 1 :] for at in range(len(text))]
        same_hash = [text + "\0", text[:-1], "\0" + text, text[::-1], texts[0], text]
        for other in (*changed[:3], *changed[-3:], *changed[60:68], *same_hash):
            others.append(other)
            rows.append(row)
    order = random.permutation(len(rows))
    rows, others = np.array(rows)[order], [others[i] for i in order]
    expected = [texts[row] == other for row, other in zip(rows, others, strict=True)]
    assert 0 < sum(expected) < len(expected)
    assert ids.same(rows, others).tolist() == expected
    assert ids.same(np.zeros(0, np.int64), []).tolist() == []


def test_strings_that_begin_inside_a_character() -> None:
    data = np.frombuffer("aéb".encode(), np.uint8)

    def cut_at(*ends: int) -> bool:
        return _are_texts(StringIds.stored(data, np.array(ends), np.zeros(len(ends), np.uint64)))

    assert cut_at(1, 3, 4)
    assert cut_at(0, 1, 1, 4)
    assert not cut_at(2, 4)
    assert not cut_at(1, 2, 4)
    assert not cut_at(1, 3)  # bytes are left
    assert not cut_at(3, 1, 4)
    assert not cut_at(-1, 4)
    assert not cut_at()


def test_an_unsigned_id_that_does_not_fit(tmp_path: Path) -> None:
    with store.create(tmp_path / "store") as writer:
        for ids in ([2**63, 1], [1, 2**63]):
            with pytest.raises(SchemaError, match="9223372036854775808 does not fit into int64"):
                writer.append(np.array(ids, np.uint64), {"x": np.zeros(2)})
        writer.append(np.array([2**63 - 1, 1], np.uint64), {"x": np.zeros(2)})
    assert store.open(tmp_path / "store").ids().tolist() == [2**63 - 1, 1]


def test_attrs_that_are_equal_in_python_only() -> None:
    """1 == True == 1.0, and JSON tells them apart."""
    runs = [(2, {"a": 1}), (1, {"a": True}), (1, {"a": 1.0}), (1, {"a": 1.0}), (3, {})]
    chunks = [SeriesChunk("x", n, ("step",), attrs=((n, attrs),)) for n, attrs in runs]
    found = merged_attrs(chunks)
    assert [n for n, _ in found] == [2, 1, 2, 3]
    assert [type(attrs.get("a")) for _, attrs in found] == [int, bool, float, type(None)]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_parts_in_order_give_all_rows_in_order(tmp_path: Path, parts: int) -> None:
    with store.create(tmp_path / "store", merge=False, interval=None) as writer:
        for start in range(0, 35, 5):
            writer.append(np.arange(start, start + 5), {"x": np.arange(start, start + 5)})
            writer.flush()
    reader = store.open(tmp_path / "store")
    found = [[block.ids for block in reader.blocks(part=(i, parts))] for i in range(parts)]
    assert np.concatenate([ids for part in found for ids in part]).tolist() == [*range(35)]
    assert sum(map(len, found)) == 7  # each file once


def test_a_set_of_numbers_that_grows() -> None:
    known, there = IdSet("int"), set()
    edge = [-(2**63), 2**63 - 1, 0]
    for start in (5, 0, 100, 7, -3):
        ids = np.array([start, start + 2, start, *edge[: start % 3]], np.int64)
        known.add(ids)
        there |= set(ids.tolist())
        asked = np.array([*range(-10, 120), *edge], np.int64)
        assert known.has(asked).tolist() == [x in there for x in asked.tolist()]


@pytest.mark.parametrize("ids", [[3, 1, 3, 2, 1], [1, 2, 3], [2, 2], [1], [], [1, 2, 2]])
def test_first_of_each(ids: list[int]) -> None:
    expected = [x not in ids[:i] for i, x in enumerate(ids)]
    assert first_of_each(np.array(ids, np.int64)).tolist() == expected
    assert first_of_each([str(x) for x in ids]).tolist() == expected


EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]


@pytest.mark.parametrize("first", [0, -3, 2**63 - 7, -(2**63)])
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("policy", ["first", "replace"])
def test_integers_with_and_without_gaps(first: int, gap: bool, policy: str) -> None:
    """Ids of a range are computed, others are searched: both as a dict says."""
    random = np.random.default_rng(0)
    ids = [first + int(i) for i in random.permutation(7)]
    ids.remove(ids[3] if gap else ids[-1])
    ids += ids[:2]
    chunks = [np.array(part, np.int64) for part in (ids[:3], ids[3:])]
    known: dict[int, int] = {}
    for row, each in enumerate(ids):
        known[each] = row if policy == "replace" else known.get(each, row)
    asked = [*range(max(first - 2, -(2**63)), min(first + 9, 2**63 - 1)), *EXTREMES]
    found = IdIndex(chunks, policy, "'x'").find(np.array(asked, np.int64))
    assert found.tolist() == [known.get(each, -1) for each in asked]
