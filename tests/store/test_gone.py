"""A store that is gone, or half of it, is an error; one that is being made is neither."""

import json
import os
import shutil
import threading

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import (
    DamagedStoreError,
    SawlogError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from sawlog.store._format import _layout


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with store.create(path, interval=None) as writer:
        writer.append([1, 2], {"x": np.arange(2)})
        writer.log({"loss": 0.5}, step=0)
    return path


def test_the_folder_is_gone(path):
    """Moved, or no longer mounted: nobody says that nothing was ever there."""
    reader = store.open(path)
    writer = store.open(path, "append", interval=None)
    path.rename(path.with_name("moved"))
    for ask in (reader.refresh, lambda: writer.missing([1, 7], "x"), lambda: store.open(path)):
        with pytest.raises(StoreNotFoundError, match="store"):
            ask()
    for ask in (store.verify, store.repair, store.compact):
        with pytest.raises(StoreNotFoundError):
            ask(path)
    assert not path.exists()
    path.with_name("moved").rename(path)
    assert reader.refresh() is False
    assert writer.missing([1, 7], "x").tolist() == [7]
    writer.close()


def test_an_empty_folder_is_in_its_place(path):
    """What a mount point looks like without its disk."""
    reader, writer = store.open(path), store.open(path, "append", interval=None)
    path.rename(path.with_name("moved"))
    path.mkdir()
    for ask in (reader.refresh, lambda: writer.missing([1], "x"), lambda: store.open(path)):
        with pytest.raises(StoreError):
            ask()
    path.rmdir()
    path.with_name("moved").rename(path)
    writer.close()


def test_a_file_is_in_its_place(path):
    """The first look at each file fails as if its folder were a file."""
    with store.open(path, "append", interval=None) as writer:
        writer.append([3], {"wide": np.ones((1, 1 << 17))})
    reader, writer = store.open(path), store.open(path, "append", interval=None)
    path.rename(path.with_name("moved"))
    path.write_text("a file")
    questions = {
        "refresh": reader.refresh,
        "ids": lambda: reader.ids("wide"),
        "gather": lambda: reader.gather([3], ["wide"]),
        "missing": lambda: writer.missing([3], "wide"),
        "append": lambda: writer.append([4], {"wide": np.ones((1, 1 << 17))}),
        "open": lambda: store.open(path),
        "create": lambda: store.create(path, exists="append"),
        "verify": lambda: store.verify(path),
        "compact": lambda: store.compact(path),
        "repair": lambda: store.repair(path),
    }
    for name, ask in questions.items():
        with pytest.raises(StoreError):
            pytest.fail(f"{name}: {ask()!r}")
    path.unlink()
    path.with_name("moved").rename(path)
    assert reader.ids("wide").tolist() == [3]
    writer.append([4], {"wide": np.ones((1, 1 << 17))})
    writer.close()
    assert reader.refresh()
    assert sorted(reader.ids("wide").tolist()) == [3, 4]


@pytest.mark.parametrize("damaged", ["error", "skip"])
@pytest.mark.parametrize("filled", [True, False])
def test_another_store_is_in_its_place(path, filled, damaged):
    """Who refreshes is told, and keeps what was read: an empty store would look like lost data."""
    reader = store.open(path, damaged=damaged)
    before = (reader.id, reader.ids("x").tolist(), reader.names)
    path.rename(path.with_name("moved"))
    with store.create(path) as other:
        if filled:
            other.append([5], {"x": np.arange(1)})
    for _ in range(2):
        with pytest.raises(StoreNotFoundError, match="replaced by another"):
            reader.refresh()
        assert (reader.id, reader.ids("x").tolist(), reader.names) == before
    assert len(store.open(path).names) == filled
    shutil.rmtree(path)
    path.with_name("moved").rename(path)
    assert reader.refresh() is False


def test_the_segments_are_gone(path):
    reader, writer = store.open(path), store.open(path, "append", interval=None)
    shutil.rmtree(path / "segments")
    questions = {
        "refresh": reader.refresh,
        "missing": lambda: writer.missing([1], "x"),
        "open": lambda: store.open(path),
        "skip": lambda: store.open(path, damaged="skip"),
        "append": lambda: store.open(path, "append"),
        "create": lambda: store.create(path, exists="append"),
        "verify": lambda: store.verify(path),
        "compact": lambda: store.compact(path),
    }
    for name, ask in questions.items():
        with pytest.raises(DamagedStoreError, match="segments"):
            pytest.fail(f"{name}: {ask()!r}")
    assert not (path / "segments").exists()
    writer.abort()
    given_up = {problem.file for problem in store.repair(path)}
    assert "segments" in given_up
    assert any(file.startswith("segments/") for file in given_up)
    with store.open(path) as reader:
        assert reader.ids("x").tolist() == []
        assert set(reader.names) == {"x", "loss"}


# ---- being made


def half_made(path):
    """What the other process has done so far: folders, and no store.json."""
    _layout.Folder(path).make_all()
    return path


def test_a_store_in_the_making_is_not_damaged(tmp_path):
    path = half_made(tmp_path / "store")
    for ask in (store.open, store.verify, store.repair, store.compact):
        with pytest.raises(StoreNotFoundError, match="making"):
            ask(path)
    assert not (path / "store.json").exists()
    with store.create(path) as writer:
        writer.log({"loss": 1.0})
    assert len(json.loads((path / "store.json").read_bytes())["id"]) == 32


def test_repair_beside_the_making(tmp_path):
    """However they meet, the store has an id, and both its maker and its readers agree on it."""
    for number in range(8):
        path = tmp_path / f"store-{number}"
        done = threading.Event()

        def repair(path=path, done=done):
            while not done.is_set():
                try:
                    store.repair(path)
                except SawlogError:
                    continue

        thread = threading.Thread(target=repair)
        thread.start()
        try:
            with store.create(path, interval=None, meta={"n": number}) as writer:
                writer.log({"loss": 1.0})
        finally:
            done.set()
            thread.join()
        with store.open(path) as reader:
            assert len(reader.id) == 32
            assert reader.meta == {"n": number}
            assert reader.read("loss").tolist() == [1.0]


def test_repair_of_a_store_without_segments_gives_it_an_id(tmp_path):
    """A cut store.json, and nothing that knows the id any more."""
    path = tmp_path / "store"
    store.create(path).close()
    (path / "store.json").write_bytes(b'{"format": "sawlog-')
    os.utime(path / "store.json", (1e9, 1e9))
    store.repair(path)
    assert len(store.open(path).id) == 32
    with store.open(path, "append") as writer:
        writer.log({"loss": 1.0})
    assert store.verify(path).ok


def test_many_make_one_store(tmp_path):
    """All that start together come by the same store, while it is being made."""
    path, ids, failures = tmp_path / "store", [], []
    start = threading.Barrier(6)

    def work(number):
        try:
            start.wait()
            with store.create(path, exists="append", interval=None) as writer:
                writer.log({"n": number})
            ids.append(store.open(path).id)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(ids)) == 1
    assert sorted(store.open(path).read("n").tolist()) == list(range(6))


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreExistsError):
        store.create(tmp_path, exists="append")
    with pytest.raises(SawlogError):
        store.repair(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["x" * 300, "loop", "loop/store", "y/" * 3000])
def test_a_path_that_no_store_can_have_is_not_damage(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = f"{tmp_path}/{name}"
    for ask in (store.open, store.verify, store.repair, store.compact):
        with pytest.raises(StoreNotFoundError, match="Hint: check the path"):
            ask(path)
    with pytest.raises(StoreNotFoundError):
        store.open(path, damaged="skip")
    with pytest.raises(StoreError, match="choose"):
        store.create(path)
