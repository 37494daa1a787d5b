"""``exists="replace"`` removes what is ours, and nothing else."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import sawlog
from sawlog import store
from sawlog.curvature import Curvature, Diagonal
from sawlog.errors import (
    ArgumentError,
    StoreError,
    StoreExistsError,
    StorePermissionError,
    StoreWriteError,
)
from sawlog.influence import Scores
from sawlog.sinks import StoreSink
from sawlog.store._format import _layout
from sawlog.store._maintenance import _remove


def fill(path, number=1, **options):
    with store.create(path, **options) as writer:
        writer.append([number], {"x": np.array([float(number)])})
        writer.log({"loss": 0.5}, step=number)


def ids(path):
    with store.open(path) as reader:
        return reader.ids().tolist()


def everything(folder):
    """What lies in a folder: names, and what files and links hold."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(at, name)
            if os.path.islink(path):
                found[path] = os.readlink(path)
            else:
                found[path] = Path(path).read_bytes() if os.path.isfile(path) else None
    return found


def test_a_store_is_replaced(tmp_path):
    fill(tmp_path / "s", 1)
    store.compact(tmp_path / "s")
    fill(tmp_path / "s", 2, exists="replace")
    assert ids(tmp_path / "s") == [2]
    assert store.verify(tmp_path / "s").ok


OTHERS = {
    "a file": lambda path: (path / "notes.txt").write_text("mine"),
    "in a folder": lambda path: (path / "segments" / "notes.txt").write_text("mine"),
    "a folder": lambda path: (path / "src").mkdir(),
    "a link": lambda path: (path / "segments" / "a-00000001.safetensors").symlink_to("/etc"),
    "a link for a folder": lambda path: (path / "replaced").symlink_to(path.parent),
    "hidden": lambda path: (path / "tmp" / ".keep").write_text("mine"),
    "of another kind": lambda path: os.mkfifo(path / "writers" / "aa.json"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_files_are_in_the_way(tmp_path, what):
    path = tmp_path / "s"
    fill(path)
    OTHERS[what](path)
    before = {k: v for k, v in everything(tmp_path).items() if what != "of another kind"}
    with pytest.raises(StoreExistsError, match=r"(?s)Nothing was removed"):
        store.create(path, exists="replace")
    if before:
        assert everything(tmp_path) == before


@pytest.mark.parametrize("text", ['{"name": "my app"}', "", '{"format": "sawlog-store"}'])
def test_a_store_json_of_somebody_else(tmp_path, text):
    path = tmp_path / "app"
    path.mkdir()
    (path / "store.json").write_text(text)
    (path / "precious.txt").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(StoreError):
        store.create(path, exists="replace")
    assert everything(tmp_path) == before


def test_links_here_and_above(tmp_path, monkeypatch):
    """A link to a store is that store; it stays a link."""
    real, link = tmp_path / "real", tmp_path / "link"
    fill(real)
    link.symlink_to(real)
    fill(link, 2, exists="replace")
    assert link.is_symlink()
    assert ids(real) == [2]
    monkeypatch.chdir(real)
    fill(".", 3, exists="replace")
    assert ids(real) == ids(".") == [3]
    fill("../real/", 4, exists="replace")
    assert ids(real) == [4]
    deep = tmp_path / "elsewhere" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "to_deep").symlink_to(deep)
    fill(f"{tmp_path}/to_deep/../s", 5)  # beside `deep`, as the system has it
    assert ids(tmp_path / "elsewhere" / "s") == [5]


def test_a_read_only_parent(tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    fill(parent / "s")
    parent.chmod(0o555)
    try:
        fill(parent / "s", 2, exists="replace")
    finally:
        parent.chmod(0o755)
    assert ids(parent / "s") == [2]


def test_a_store_that_is_being_written(tmp_path):
    path = tmp_path / "s"
    with store.create(path) as writer:
        writer.append([1], {"x": np.zeros(1)})
        with pytest.raises(StoreWriteError, match="being written"):
            store.create(path, exists="replace")
        writer.append([2], {"x": np.zeros(1)})
    assert ids(path) == [1, 2]
    fill(path, 3, exists="replace")
    assert ids(path) == [3]


def test_a_sink_that_replaces(tmp_path):
    fill(tmp_path / "s")
    (tmp_path / "s" / "mine.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match=r"mine\.txt"):
        StoreSink(tmp_path / "s", exists="replace")


@pytest.mark.parametrize(
    "saved",
    [
        Scores(np.array([1]), np.array([1, 2]), np.ones((1, 2))),
        Curvature("diagonal", {"w": Diagonal(np.array([1.0]))}),
    ],
)
def test_what_is_saved_replaces_only_its_like(tmp_path, saved):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    with pytest.raises(StoreExistsError):
        saved.save(mine)
    fill(tmp_path / "s")
    (tmp_path / "s" / "thesis.tex").write_text("mine")
    with pytest.raises((StoreError, ArgumentError)):
        saved.save(tmp_path / "s")
    (tmp_path / "s" / "thesis.tex").rename(tmp_path / "s.tex")
    with pytest.raises(ArgumentError, match="does not contain"):
        saved.save(tmp_path / "s")
    (tmp_path / "s.tex").rename(tmp_path / "s" / "thesis.tex")
    assert (tmp_path / "s" / "thesis.tex").read_text() == (mine / "thesis.tex").read_text()
    for _ in range(2):
        saved.save(tmp_path / "new")
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_run_that_is_replaced(tmp_path):
    logs = tmp_path / "run" / "logs" / "whole-float32"
    logs.mkdir(parents=True)
    fill(logs)
    fill(tmp_path / "run" / "statistics" / "whole" / "kfac" / "00000001")
    assert sawlog.init("run", root=tmp_path, exists="replace").path == tmp_path / "run"
    assert not logs.exists()
    fill(logs)
    (tmp_path / "run" / "model.pt").write_text("mine")
    (tmp_path / "run" / "logs" / "mine.txt").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(StoreExistsError, match=r"(?s)mine\.txt.*model\.pt"):
        sawlog.init("run", root=tmp_path, exists="replace")
    assert everything(tmp_path) == before


def test_a_run_where_something_else_is(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreExistsError, match="thesis"):
        sawlog.init("home", root=tmp_path, exists="replace")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    with pytest.raises(StoreExistsError, match="thesis"):
        sawlog.init("link", root=tmp_path, exists="replace")


RANK = """
    import sys, time, numpy as np
    from sawlog import store
    rank, path = int(sys.argv[1]), sys.argv[2]
    time.sleep(0.3 * float(sys.argv[3]))
    writer = store.create(path, exists="replace")
    writer.append([100 + rank], {"x": np.array([1.0 * rank])})
    writer.close()
"""


RUN = """
    import sys, time, numpy as np, sawlog
    from sawlog import store
    rank, root = int(sys.argv[1]), sys.argv[2]
    run = sawlog.init("run", root=root, exists="replace")
    with store.create(run.path / "logs" / "whole-float32", exists="append") as writer:
        writer.append([100 + rank], {"x": np.array([1.0 * rank])})
"""


def test_runs_of_processes_that_start_together(tmp_path):
    path = tmp_path / "run" / "logs" / "whole-float32"
    fill(path, 7)
    old = os.stat(path / "store.json").st_mtime - 3600
    os.utime(path / "store.json", (old, old))
    running = []
    for rank in (0, 1):
        env = {**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"}
        command = [sys.executable, "-c", textwrap.dedent(RUN), str(rank), str(tmp_path)]
        running.append(subprocess.Popen(command, env=env))
    assert [process.wait(120) for process in running] == [0, 0]
    assert sorted(ids(path)) == [100, 101]


@pytest.mark.parametrize("first", [0, 1])
def test_processes_that_start_together(tmp_path, first):
    path = tmp_path / "s"
    fill(path, 7)
    old = os.stat(path / "store.json").st_mtime - 3600
    os.utime(path / "store.json", (old, old))
    running = []
    for rank in (0, 1, 2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
        wait = 0 if rank == first else 1
        command = [sys.executable, "-c", textwrap.dedent(RANK), str(rank), str(path), str(wait)]
        running.append(subprocess.Popen(command, env=env))
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert sorted(ids(path)) == [100, 101, 102]


@pytest.mark.parametrize("looks", [1, 2])
def test_another_process_removes_the_store_first(tmp_path, monkeypatch, looks):
    """Between any two looks at the old store it may be gone: that is no error."""
    path, seen, is_new = tmp_path / "s", [], _remove._is_new
    fill(path, 7)

    def removed_after_a_look(place, here):
        answer = is_new(place, here)
        seen.append(place)
        if len(seen) == looks:
            _remove._remove(place)
        return answer

    monkeypatch.setattr(_remove, "_is_new", removed_after_a_look)
    fill(path, 8, exists="replace")
    assert len(seen) >= looks
    assert ids(path) == [8]


def test_the_same_process_of_a_launch_replaces_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for number in range(3):
        fill(tmp_path / "s", number, exists="replace")
        assert ids(tmp_path / "s") == [number]


@pytest.mark.parametrize("folder", ["store", "store/segments"])
def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch, folder):
    fill(tmp_path / "store")
    before, listed = everything(tmp_path), os.listdir

    def denied(path):
        if str(path) == str(tmp_path / folder):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(_remove.os, "listdir", denied)
    with pytest.raises(StorePermissionError, match=rf"replacing .*/{folder}: Permission denied"):
        store.create(tmp_path / "store", exists="replace")
    monkeypatch.undo()
    assert everything(tmp_path) == before


def test_a_folder_in_the_way_is_not_entered(tmp_path):
    fill(tmp_path / "store")
    deep = tmp_path / "store" / "tmp" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    with pytest.raises(StoreExistsError, match=r"not part of a store:\n  '.*/tmp/d'\n"):
        store.create(tmp_path / "store", exists="replace")
    assert deep.is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "segments/abc-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661.safetensors",  # digits, too
        "segments/abc-\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff11.safetensors",
        "segments/abc-00000000000000000001.safetensors",  # more digits than a number has
        "segments/abc-00000009.safetensors\n",
        "schema/0000000\u0662.json",
        "schema/00000001-0000000\u0662.json",
        "replaced/\u0661/abc-00000001.safetensors",
        "damaged/store.json.\u0662",
    ],
)
def test_names_that_look_like_ours(tmp_path, name):
    fill(tmp_path / "store")
    file = tmp_path / "store" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("the user's")
    before = everything(tmp_path)
    with pytest.raises(StoreExistsError, match="not part of a store"):
        store.create(tmp_path / "store", exists="replace")
    assert everything(tmp_path) == before
    assert ids(tmp_path / "store") == [1]
    store.compact(tmp_path / "store", grace=0)
    store.repair(tmp_path / "store")
    assert file.read_text() == "the user's"
    assert ids(tmp_path / "store") == [1]


@pytest.mark.parametrize("exists", ["error", "append", "replace"])
def test_a_folder_called_store_json_stays_as_it_is(tmp_path, exists):
    (tmp_path / "store" / "store.json" / "deep").mkdir(parents=True)
    before = everything(tmp_path)
    with pytest.raises(StoreExistsError, match="is not a sawlog store"):
        store.create(tmp_path / "store", exists=exists)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("exists", ["append", "replace"])
def test_a_store_that_appears_meanwhile_is_no_foreign_folder(tmp_path, monkeypatch, exists):
    fill(tmp_path / "store")
    (tmp_path / "store" / "replaced").mkdir()
    looks = iter([False])
    real = store.is_store
    monkeypatch.setattr(store, "is_store", lambda path: next(looks, None) is None and real(path))
    store.create(tmp_path / "store", exists=exists).close()
    assert len(ids(tmp_path / "store")) > 0


def test_a_folder_that_cannot_be_looked_into(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(_remove.os, "listdir", denied)
    with pytest.raises(StorePermissionError, match=r"creating .*/store: Permission denied"):
        store.create(tmp_path / "store", exists="replace")


@pytest.mark.parametrize("damaged", ["error", "skip"])
def test_a_store_that_was_away_for_a_moment_is_not_damaged(tmp_path, monkeypatch, damaged):
    """Replacing renames twice; who reads in between looks again, and finds the new store."""
    with store.create(tmp_path / "s", meta={"of": "the new one"}) as writer:
        writer.log({"loss": 0.5}, step=1)
    read, tries = _layout.complete_json, []

    def away_at_first(disk, name):
        tries.append(name)
        if len(tries) == 1:
            raise FileNotFoundError(2, "moved away", name)
        return read(disk, name)

    monkeypatch.setattr(_layout, "complete_json", away_at_first)
    with store.open(tmp_path / "s", damaged=damaged) as reader:
        assert reader.meta == {"of": "the new one"}
    assert tries == ["store.json"] * 2
