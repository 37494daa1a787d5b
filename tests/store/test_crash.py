"""Writers and compaction that are killed, and several processes at once."""

# ruff: noqa: F401, F811  (fixtures are imported)

import dataclasses
import functools
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import StoreError
from sawlog.testing import assert_same
from tests.thorough import MORE, often

from .crash_stores import assert_sound, check_all, check_numbers, lasting_folder, path, server
from .crash_writer import Plan, losses
from .numbers import expected, write_numbers
from .plain_reader import PlainStore
from .processes import PATIENCE

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
    pytest.mark.long,
]


STORES = often(4, 20)

KILLS = often(4, 10)  # of each store: 200 in all, if thorough

WRITERS = 4


def soon():
    """A moment that processes started now can wait for."""
    return time.time() + 0.15


# ---- writers that are killed


@dataclasses.dataclass
class Found:
    """What a store had when it was last looked at."""

    ids: list = dataclasses.field(default_factory=list)
    entries: int = 0


def plan_of(seed):
    """Small segments and large ones, a few values and kilobytes a row, both kinds of ids."""
    kind = ("int", "str")[seed % 2]
    if seed % 4 < 2:
        return Plan(seed, kind=kind)
    return Plan(seed, rows=400, width=1500, kind=kind, segment_bytes=50_000, flush=0.15)


def check(path, plan, durable):
    """Everything durable is there, everything there is right; return what there is."""
    try:
        reader = store.open(path)
    except StoreError:  # killed before store.json had its name
        assert not (path / "store.json").exists()
        assert not durable.ids
        assert not durable.entries
        return Found()
    with reader:
        ids = list(reader.ids()) if "grad" in reader.names else []
        entries = reader.count("loss") if "loss" in reader.names else 0
        assert set(durable.ids) <= set(ids)
        assert durable.entries <= entries
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(plan.ids)
        if ids:
            check_rows(reader, plan, ids)
        if entries:
            found = reader.entries("loss")
            assert_same(found.values, losses(range(entries)))
            assert_same(found.steps["step"], np.arange(entries))
        assert_sound(path)
        return Found(ids, entries)


def check_rows(reader, plan, ids):
    for name, values in plan.values(ids).items():
        assert_same(reader.read(name), values, name)
        assert_same(reader.gather(ids[::-1], [name])[name], values[::-1], name)
    seen = []
    for block in reader.blocks(["grad"], budget=20_000):
        assert_same(block.values["grad"], plan.values(block.ids)["grad"])
        seen += list(block.ids)
    assert seen == ids


def after(events, plan, before):
    """What must be there after a process reported this."""
    present = set(before.ids)
    todo = [id for id in plan.ids if id not in present]
    for event in events:
        if "todo" in event:
            assert event == {"todo": len(todo), "entry": before.entries}
    reports = [event for event in events if "rows" in event]
    if not reports:
        return before
    return Found(before.ids + todo[: reports[-1]["rows"]], reports[-1]["entries"])


@pytest.mark.parametrize("seed", range(STORES * MORE))
def test_killed_writers(server, tmp_path, seed):
    """Killed, reopened and killed again, ten times; who was done before is not counted."""
    random, kills, stores, found = np.random.default_rng(seed), 0, 0, Found()
    plan, path = plan_of(seed), tmp_path / "store-0"
    while kills < KILLS:
        delay = 0.15 * random.random() ** 2
        child = server.start("fill", path=path, plan=dataclasses.asdict(plan))
        events = child.kill_after(delay)
        durable = after(events, plan, found)
        print(f"seed {seed}, kill {kills} after {delay * 1000:.0f} ms: {len(durable.ids)} rows")
        found = check(path, plan, durable)
        kills += events[-1] != {"done": True}
        if events[-1] == {"done": True}:  # too late: begin another one
            finish(server, path, plan, found)
            stores, found = stores + 1, Found()
            path = tmp_path / f"store-{stores}"
    finish(server, path, plan, found)


def finish(server, path, plan, found):
    """A writer that nobody kills goes on and writes exactly the rest."""
    events = server.start("fill", path=path, plan=dataclasses.asdict(plan)).rest()
    assert events[-1] == {"done": True}
    found = check(path, plan, after(events, plan, found))
    assert sorted(found.ids) == sorted(plan.ids)
    assert found.entries == plan.entries
    with store.open(path, "append") as writer:
        assert len(writer.missing(plan.ids)) == 0


@pytest.mark.parametrize("kind", ["int", "str"])
def test_killed_before_each_change_of_the_file_system(server, tmp_path, kind):
    """Deterministic: die before the first mkdir, open, rename, link, remove, then the next, ..."""
    plan = Plan(0, rows=20, entries=10, kind=kind, segment_bytes=400, flush=0.5)
    first = often(2, 1) if kind == "str" else 1  # by default the two kinds share the moments
    for number in range(first, 500, often(2, 1)):
        path = tmp_path / f"store-{number}"
        child = server.start("fill", number, path=path, plan=dataclasses.asdict(plan))
        events = child.rest()
        found = check(path, plan, after(events, plan, Found()))
        if events[-1] == {"done": True}:
            break
        print(f"died before change {number} with {len(found.ids)} rows")
        finish(server, path, plan, found)
        shutil.rmtree(path)
    assert 10 < number < 500


def test_many_kills_of_one_young_store(server, path):
    """Again and again before the tenth change: nothing that the dead leave piles up as damage."""
    plan, found = Plan(0, rows=20, entries=10, segment_bytes=400), Found()
    for number in range(1, 20):
        child = server.start("fill", number, path=path, plan=dataclasses.asdict(plan))
        found = check(path, plan, after(child.rest(), plan, found))
    finish(server, path, plan, found)


def test_a_file_is_synced_before_it_gets_its_name(path, monkeypatch):
    """What SIGKILL cannot show: a power failure. Every publication is preceded by its fsync."""
    synced, named = set(), []

    def sync(original):
        def wrapped(fd):
            number = fd if isinstance(fd, int) else fd.fileno()
            original(fd)
            synced.add(os.fstat(number).st_ino)

        return wrapped

    def move(original):
        def wrapped(source, target, **options):
            inode = os.stat(source).st_ino
            named.append((Path(target), inode in synced))
            return original(source, target, **options)

        return wrapped

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, sync(getattr(os, name)))
    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, move(getattr(os, name)))
    with store.create(path) as writer:
        for number in range(3):
            write_numbers(writer, [number])
            writer.flush()
            assert any(file.parent.name == "segments" for file, _ in named[-3:])
    store.compact(path)
    published = {file for file, _ in named}
    inside = {"segments", "schema"}
    wanted = {file for file in path.rglob("*") if file.parent.name in inside}
    assert wanted | {path / "store.json"} <= published
    unsynced = [file for file, was in named if not was and file.parent.name != "writers"]
    assert unsynced == []
    assert (path / "segments").stat().st_ino in synced, "the folder has to be synced as well"


# ---- compaction that is killed


@functools.cache
def scattered():
    """A store of a dozen small segments of three writers, copied for each test."""
    path = lasting_folder() / "store"
    for start in (0, 8, 16):
        with store.create(path, exists="append", interval=None) as writer:
            for begin in range(start, start + 8, 2):
                write_numbers(writer, [begin, begin + 1])
                writer.flush()
    return path


@pytest.mark.parametrize("seed", range(often(4, 20) * MORE))
def test_killed_compaction(server, path, seed):
    delay = 0.03 * np.random.default_rng(seed).random()
    while True:
        shutil.copytree(scattered(), path)
        done = server.start("compact", path=path).kill_after(delay)[-1] == {"done": True}
        print(f"seed {seed}, after {delay * 1000:.1f} ms {'it was done' if done else 'killed'}")
        recover(server, path)
        if not done:
            break
        shutil.rmtree(path)
        delay *= 0.7


def test_compaction_killed_before_each_change(server, tmp_path):
    for number in range(1, 500, often(2, 1)):
        path = tmp_path / f"store-{number}"
        shutil.copytree(scattered(), path)
        events = server.start("compact", number, path=path).rest()
        print(f"died before change {number}")
        recover(server, path)
        shutil.rmtree(path)
        if events[-1] == {"done": True}:
            break
    assert 3 < number < 500


def recover(server, path):
    check_numbers(path, 24)
    with store.open(path, "append") as writer:
        write_numbers(writer, [24, 25])
    check_numbers(path, 26)
    assert server.start("compact", path=path).rest()[-1] == {"done": True}
    check_numbers(path, 26)
    assert len(PlainStore(path).segments) < 12


# ---- several processes at once


@pytest.mark.parametrize("round", range(3))
def test_four_writers(server, path, round):
    """They create, declare and write at the same moment."""
    at = soon()
    children = [server.start("share", path=path, who=who, rows=50, at=at) for who in range(WRITERS)]
    for child in children:
        assert child.rest()[-1] == {"done": True}
    ids = np.arange(50 * WRITERS)
    for _ in range(2):
        with store.open(path) as reader:
            assert sorted(reader.ids("grad").tolist()) == ids.tolist()
            assert sorted(reader.ids("text")) == sorted(f"row {id}" for id in ids)
            found = reader.gather(ids, ["grad", "label"])
            assert_same(found["grad"], expected(ids).columns["grad"])
            assert_same(found["label"], ids * 7)
            texts = [f"row {id}" for id in ids]
            assert_same(reader.gather(texts, ["text"])["text"], ids)
            who, number = reader.read("who"), reader.read("number")
            for each in range(WRITERS):
                assert number[who == each].tolist() == ids[ids % 4 == each].tolist()
        assert_sound(path)
        assert PlainStore(path).missing == []
        store.compact(path)


@pytest.mark.parametrize("round", range(3))
def test_four_writers_declare_the_same_names(server, path, round):
    store.create(path).close()
    at, fresh = soon(), [f"{number}" for number in range(8)]
    children = [
        server.start("declare", path=path, who=who, dtype="float32", names=fresh, at=at)
        for who in range(WRITERS)
    ]
    for child in children:
        assert child.rest()[-1] == {"done": True}
    assert len(PlainStore(path).columns) == 16, "each name is declared once"
    with store.open(path) as reader:
        for name in fresh:
            who = np.arange(WRITERS, dtype=np.float32)
            rows = reader.gather(np.arange(WRITERS), [f"row {name}"])[f"row {name}"]
            assert_same(rows, np.stack([who, who], 1))
            assert sorted(reader.read(f"entry {name}")[:, 0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("round", range(3))
def test_four_writers_declare_a_name_differently(server, path, round):
    """One wins; the others are told, and what the winner wrote is there."""
    store.create(path).close()
    at, dtypes = soon(), ["float32", "float64", "int32", "int64"]
    children = [
        server.start("declare", path=path, who=who, dtype=dtype, names=["x"], at=at)
        for who, dtype in enumerate(dtypes)
    ]
    failures = [child.outcome() for child in children]
    winners = [who for who, failure in enumerate(failures) if failure is None]
    assert len(winners) == 1, failures
    assert all("SchemaError" in failure["kinds"] for failure in failures if failure), failures
    with store.open(path) as reader:
        expected_row = np.full((1, 2), winners[0], dtypes[winners[0]])
        assert reader.ids("row x").tolist() == winners
        assert_same(reader.read("row x"), expected_row)
        assert_same(reader.read("entry x"), expected_row)
    assert len(PlainStore(path).columns) == 2


def test_reading_while_others_write_and_compact(server, path):
    """Everything reported is found after a refresh, nothing wrong ever, and nothing goes away."""
    with store.create(path) as writer:
        write_numbers(writer, range(2))
    child = server.start("write", path=path, start=2, stop=302, at=0.0, every=2)
    churn = server.start("churn", path=path, seconds=2.0)
    reader, known, looks, deadline = store.open(path), 2, 0, time.monotonic() + 5 * PATIENCE
    while time.monotonic() < deadline:
        event = child.next()
        reader.refresh()
        count = len(reader.ids("grad"))
        assert count >= known
        if event is not None and "flushed" in event:
            assert count >= event["flushed"]
        known, looks = count, looks + 1
        if looks % 5 == 0 or event is None:
            check_all(reader, expected(np.arange(reader.count("grad"))))
        if looks % 20 == 0:
            with store.open(path) as fresh:
                check_all(fresh, expected(np.arange(fresh.count("grad"))))
        if event is None:
            break
    assert known == 302
    assert looks > 50
    assert child.events[-1] == {"done": True}
    assert churn.rest()[-1] == {"done": True}
    reader.close()
    check_numbers(path, 302)


def test_a_writer_in_a_forked_child(server, path):
    """It says so, instead of writing what its parent will write as well."""
    events = server.start("forked", path=path).rest()
    (said,) = [event for event in events if "append" in event]
    for failure in said.values():
        assert failure is not None
        assert "SawlogError" in failure["kinds"], failure
    check_numbers(path, 6)
