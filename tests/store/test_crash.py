"""Whatever happens to a writer or to its files: nothing published is lost, no wrong value is read.

Writers are killed with SIGKILL at 16 random moments, 200 with `SAWLOG_THOROUGH=1`, and before each
of their changes to the file system in turn; compaction likewise. `crash_writer.py` has the
processes that get killed. All values are functions of their ids, so that they can be checked.
What is random is seeded by the parameter of the test, but for the moment at which a process happens
to be killed; `SAWLOG_EXAMPLES=10` makes ten times as many.
"""

import atexit
import dataclasses
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import SawlogError, StoreError, UnknownIdError
from sawlog.testing import assert_same
from tests.thorough import MORE, often

from .crash_writer import Plan, check_put, losses
from .numbers import expected, text_id, write_numbers
from .plain_reader import PlainStore
from .processes import PATIENCE, ROOT, Server, environment

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
    pytest.mark.long,
]

STORES = often(4, 20)
KILLS = often(4, 10)  # of each store: 200 in all, if thorough
WRITERS = 4


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def assert_sound(path):
    report = store.verify(path)
    assert report.ok, report.problems


def lasting_folder():
    """A folder for what several tests copy from."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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


def check_numbers(path, count, **options):
    """Reader and plain reader agree on exactly the first so many numbers, in order."""
    truth = expected(np.arange(count))
    with store.open(path, **options) as reader:
        check_all(reader, truth)
    assert_sound(path)
    plain = PlainStore(path)
    assert plain.missing == []
    assert plain.ids("grad") == truth.numbers.tolist()
    assert plain.ids("text") == truth.texts
    assert_same(plain.series("loss")[0], truth.columns["loss"])


def check_all(reader, truth):
    for ask in QUESTIONS.values():
        ask(reader, truth)


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


# ---- files that are cut, changed or gone


def ask_ids(reader, truth):
    assert_same(reader.ids("grad"), truth.numbers)
    assert reader.count("grad") == len(truth.numbers)


def ask_texts(reader, truth):
    assert list(reader.ids("text")) == truth.texts


def ask_count(reader, truth):
    assert reader.count("loss") == len(truth.numbers)


def ask_read(name):
    return lambda reader, truth: assert_same(reader.read(name), truth.columns[name], name)


def ask_gather(reader, truth):
    order = np.random.default_rng(0).permutation(len(truth.numbers))
    found = reader.gather(truth.numbers[order], ["label", "grad"])
    for name in ("grad", "label"):
        assert_same(found[name], truth.columns[name][order], name)


def ask_gather_texts(reader, truth):
    order = np.random.default_rng(1).permutation(len(truth.numbers))
    found = reader.gather([truth.texts[place] for place in order], ["text"])["text"]
    assert_same(found, truth.columns["text"][order], "text")


def ask_blocks(reader, truth):
    ids = []
    for block in reader.blocks(["grad", "label"], budget=200):
        some = expected(block.ids)
        assert_same(block.values["grad"], some.columns["grad"])
        assert_same(block.values["label"], some.columns["label"])
        ids += block.ids.tolist()
    assert ids == truth.numbers.tolist()


def ask_entries(name):
    def ask(reader, truth):
        found = reader.entries(name)
        assert_same(found.values, truth.columns[name], name)
        assert list(found.steps) == list(truth.steps[name])
        for axis, steps in truth.steps[name].items():
            assert_same(found.steps[axis], steps, f"{axis} of {name}")
        if name == "act":
            assert_same(found.mask, truth.mask, "mask")
        notes = [dict(note) for rows, note in reader.attrs(name) for _ in range(rows)]
        assert notes == truth.notes[name]

    return ask


def ask_records(reader, truth):
    found = reader.records()
    assert sorted(found) == ["act", "loss"]
    assert_same(found["loss"].values, truth.columns["loss"])


def ask_meta(reader, truth):
    assert reader.meta == {}
    assert sorted(reader.names) == ["act", "grad", "label", "loss", "text"]


QUESTIONS = {
    "ids": ask_ids,
    "texts": ask_texts,
    "count": ask_count,
    "read grad": ask_read("grad"),
    "read text": ask_read("text"),
    "gather": ask_gather,
    "gather by text": ask_gather_texts,
    "blocks": ask_blocks,
    "entries of loss": ask_entries("loss"),
    "entries of act": ask_entries("act"),
    "records": ask_records,
    "meta": ask_meta,
}


@dataclasses.dataclass(frozen=True)
class Pristine:
    """A sound store of one merged segment and three of another writer, and who has what."""

    path: Path
    files: dict  # name -> bytes
    numbers: dict  # name of a segment -> the numbers in it

    @property
    def count(self):
        return sum(map(len, self.numbers.values()))


@functools.cache
def pristine():
    path = lasting_folder() / "store"
    with store.create(path, interval=None) as writer:
        for begin in range(0, 12, 4):
            write_numbers(writer, range(begin, begin + 4))
            writer.flush()
    store.compact(path)
    with store.open(path, "append", interval=None) as writer:
        for begin in range(12, 24, 4):
            write_numbers(writer, range(begin, begin + 4))
            writer.flush()
    files = {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    numbers = {
        f"segments/{segment.file.name}": [
            number
            for chunk in segment.description["chunks"]
            if "grad" in chunk.get("table", ())
            for number in segment.ids(chunk)
        ]
        for segment in PlainStore(path).segments
    }
    assert [len(each) for each in numbers.values()] == [12, 4, 4, 4]
    return Pristine(path, files, numbers)


def flips_of(name, random):
    """(offset, what to xor) all over a file, and densely where the format is densest."""
    size = len(pristine().files[name])
    start = int.from_bytes(pristine().files[name][:8], "little") + 8
    offsets = set(random.integers(0, size, often(3, 12)).tolist())
    if name.startswith("segments/"):
        offsets |= {0, 1, 2, 7, 8, start - 1, start, size - 8, size - 1}
        offsets |= set(random.integers(8, start, often(2, 6)).tolist())
        offsets |= set(random.integers(start, size, often(4, 10)).tolist())
    return [(offset, int(random.integers(1, 256))) for offset in sorted(offsets)]


def damages(name, seed):
    """(what, the bytes of the file then or None if it is gone)."""
    sound = pristine().files[name]
    random = np.random.default_rng(seed)
    yield "removed", None
    yield "emptied", b""
    yield "a byte more", sound + b"\0"
    yield "all zero", bytes(len(sound))
    for length in {len(sound) - 1, *random.integers(0, len(sound), often(2, 6)).tolist()}:
        yield f"cut to {length} of {len(sound)}", sound[:length]
    for offset, mask in flips_of(name, random):
        flipped = bytearray(sound)
        flipped[offset] ^= mask
        yield f"byte {offset} changed by {mask}", bytes(flipped)


KINDS = ["store.json", "schema", "segment 0", "segment 1", "segment 2", "segment 3", "writers"]


def files_of(kind):
    if kind.startswith("segment "):
        return [list(pristine().numbers)[int(kind[8:])]]
    found = sorted(name for name in pristine().files if name.startswith(kind))
    assert found, kind
    return found


@pytest.fixture
def impatient(monkeypatch):
    """Nobody else is at work, so there is no use in waiting for a file that is not there."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", range(MORE))
@pytest.mark.parametrize(
    "kind",
    # segments 1 to 3 are alike
    [pytest.param(kind, marks=[pytest.mark.thorough][: kind[-1] in "23"]) for kind in KINDS],
)
def test_damage(tmp_path, kind, seed):
    for name in files_of(kind):
        assert_harmless_alone(tmp_path, name)
        for what, data in damages(name, seed):
            path = damaged_copy(tmp_path, name, data)
            try:
                inspect(path, name)
            except AssertionError as error:
                raise AssertionError(f"{name} {what}: {error}") from error
            shutil.rmtree(path)


def assert_harmless_alone(tmp_path, name):
    """The check can pass: it does on the sound store."""
    path = damaged_copy(tmp_path, name, pristine().files[name])
    check_numbers(path, pristine().count)
    shutil.rmtree(path)


def damaged_copy(tmp_path, name, data):
    path = tmp_path / "store"
    shutil.copytree(pristine().path, path)
    if data is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(data)
        os.utime(path / name, (time.time() - 3600,) * 2)  # not a file that is just being written
    return path


def inspect(path, name):
    truth = expected(np.arange(pristine().count))
    refused = refusal(lambda: store.open(path).close(), name)
    calls = [asking(path, ask, truth) for ask in QUESTIONS.values()]
    raised = refused or sum(refusal(call, name) for call in calls) > 0
    harmless = name.startswith("writers/")
    assert raised or harmless, "nobody noticed"
    check_verify(path, name, raised)
    if name.startswith("segments/"):
        check_skip(path, name, refused)
    elif harmless:
        with store.open(path, damaged="skip") as reader:
            check_all(reader, truth)


def asking(path, ask, truth):
    """A question that a reader of its own is asked, so that nothing has been checked before."""

    def call():
        with store.open(path) as reader:
            ask(reader, truth)

    return call


def refusal(call, name):
    """Whether sawlog refuses; if so the error has to name the file."""
    try:
        call()
    except SawlogError as error:
        text = str(error)
    else:
        return False
    assert names(text, name), f"{text!r} does not name the file"
    return True


def names(text, name):
    """Whether a text names a file; of a writer, one of its segments that are not there will do."""
    if name.startswith("writers/"):
        return Path(name).stem in text
    return Path(name).name in text


def check_verify(path, name, damaged):
    reports = []
    if refusal(lambda: reports.append(store.verify(path)), name) or not damaged:
        return
    assert not reports[0].ok, "verify finds it sound"
    files = [str(problem.file) for problem in reports[0].problems]
    assert any(names(file, name) for file in files), f"verify names {files}"


def complaint(ask, reader, numbers):
    """What is wrong about the answer if exactly these numbers should be there; None if nothing."""
    try:
        ask(reader, expected(numbers))
    except (AssertionError, UnknownIdError) as error:
        return str(error)
    return None


def check_skip(path, name, at_once):
    """All of the other segments is readable and right, with or without what is left of this one:
    of every table and series all or nothing.

    A reader of its own for each question, unless the damage shows as soon as the store is opened.
    """
    everything = np.arange(pristine().count)
    others = np.array([n for n in everything if n not in pristine().numbers[name]])
    reader = store.open(path, damaged="skip")
    for question, ask in QUESTIONS.items():
        answers = [others, everything]
        complaints = [complaint(ask, reader, numbers) for numbers in answers]
        assert None in complaints, f"skip, {question}: {complaints}"
        if not at_once:
            reader.close()
            reader = store.open(path, damaged="skip")
    reader.read("grad"), reader.read("text"), reader.records()
    assert any(names(str(problem.file), name) for problem in reader.problems), reader.problems
    assert_same(reader.gather(others, ["grad"])["grad"], expected(others).columns["grad"])
    texts = [text_id(number) for number in others]
    assert_same(reader.gather(texts, ["text"])["text"], expected(others).columns["text"])
    reader.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["store.json", "schema"])
def test_every_byte_of_the_json(tmp_path, kind):
    """No byte of it can change unnoticed: names, shapes, dtypes, policies, the user's own."""
    for name in files_of(kind):
        sound = pristine().files[name]
        path = damaged_copy(tmp_path, name, sound)
        for offset in range(0, len(sound), often(3, 1)):
            flipped = bytearray(sound)
            flipped[offset] ^= 1 << offset % 7
            (path / name).write_bytes(flipped)
            os.utime(path / name, (time.time() - 3600,) * 2)
            call = asking(path, QUESTIONS["records"], expected(np.arange(pristine().count)))
            assert refusal(call, name), f"{bytes(flipped)} for {sound}"
        shutil.rmtree(path)


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_a_change_after_a_check_is_noticed(tmp_path, how):
    """A process may remember what it has checked, but not for longer than it is true."""
    name = next(iter(pristine().numbers))
    sound = pristine().files[name]
    path = damaged_copy(tmp_path, name, sound)
    check_numbers(path, pristine().count)
    known = (path / name).stat()
    at = sound.index(expected(np.arange(12)).columns["grad"].tobytes())
    if how == "in place":
        with open(path / name, "r+b") as file:
            file.seek(at)
            file.write(b"\1")
    else:
        (path / name).unlink()
        (path / name).write_bytes(sound[:at] + b"\1" + sound[at + 1 :])
    os.utime(path / name, ns=(known.st_atime_ns, known.st_mtime_ns))
    inspect(path, name)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_segments_of_a_writer_are_gone(tmp_path, count):
    """Nothing comes after them, and still somebody has to notice."""
    names_of_segments = list(pristine().numbers)[-count:]
    path = damaged_copy(tmp_path, names_of_segments[0], None)
    for name in names_of_segments[1:]:
        (path / name).unlink()
    with pytest.raises(SawlogError) as caught, store.open(path) as reader:
        reader.read("grad")
    assert any(Path(name).name in str(caught.value) for name in names_of_segments)
    found = {Path(str(problem.file)).name for problem in store.verify(path).problems}
    assert found >= {Path(name).name for name in names_of_segments}
    with store.open(path, damaged="skip") as reader:
        check_all(reader, expected(np.arange(pristine().count - 4 * count)))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", [2, 3])
def test_several_damaged_segments_are_all_named(tmp_path, count):
    path = tmp_path / "store"
    shutil.copytree(pristine().path, path)
    chosen = list(pristine().numbers)[:count]
    for name in chosen:
        data = bytearray(pristine().files[name])
        data[-20] ^= 1
        (path / name).write_bytes(data)
    report = store.verify(path)
    assert {Path(str(problem.file)).name for problem in report.problems} >= {
        Path(name).name for name in chosen
    }


@pytest.mark.usefixtures("impatient")
def test_appending_to_a_damaged_store_makes_it_no_worse(tmp_path):
    """A run may go on beside a damaged segment, or be refused; the sound ones stay as they are."""
    name = list(pristine().numbers)[2]
    data = bytearray(pristine().files[name])
    data[len(data) // 2] ^= 1
    path = damaged_copy(tmp_path, name, bytes(data))

    def append():
        with store.open(path, "append", interval=None) as writer:
            writer.log({"loss": 12.0}, step=24, epoch=2)

    refusal(append, name)
    for other, sound in pristine().files.items():
        if other.startswith("segments/") and other != name:
            assert (path / other).read_bytes() == sound
    with store.open(path, damaged="skip") as reader:
        assert_same(reader.read("loss")[:16], expected(np.arange(16)).columns["loss"])


@pytest.mark.usefixtures("impatient")
def test_compaction_never_drops_a_damaged_segment(tmp_path):
    """What cannot be read is not merged away: it stays reported until somebody gives it up."""
    for name in pristine().numbers:
        data = bytearray(pristine().files[name])
        data[len(data) // 2] ^= 1
        path = damaged_copy(tmp_path, name, bytes(data))
        refusal(functools.partial(store.compact, path), name)
        assert (path / name).read_bytes() == data
        inspect(path, name)
        shutil.rmtree(path)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("gone", [False, True])
def test_repair_gives_up_what_is_damaged(tmp_path, gone):
    name = list(pristine().numbers)[2]
    data = bytearray(pristine().files[name])
    data[len(data) // 2] ^= 1
    path = damaged_copy(tmp_path, name, None if gone else bytes(data))
    store.repair(path)
    others = [n for n in range(pristine().count) if n not in pristine().numbers[name]]
    with store.open(path) as reader:
        check_all(reader, expected(others))
    assert_sound(path)
    plain = PlainStore(path)
    assert plain.missing == []
    assert plain.ids("grad") == others


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


# ---- a full disk, a read-only folder


def assert_write_error(failure):
    assert failure is not None, "no error"
    assert "StoreWriteError" in failure["kinds"], failure["trace"]


def merged(events):
    return {key: value for event in events for key, value in event.items()}


def test_limit_on_the_size_of_files_lifted(server, path):
    said = merged(server.start("limited", path=path, ending="flush").rest())
    assert len(said["failures"]) == 2
    for failure in (*said["failures"], said["flush"]):
        assert_write_error(failure)
    assert said["durable"] == 50
    assert set(said["left"]) >= set(range(said["rows"], said["finished"]))
    assert said["published"] == said["finished"] - len(said["left"])
    assert [id for id in said["left"] if id < said["rows"]] == [], "accepted, and then lost"
    check_put(path, said["finished"])


def test_limit_on_the_size_of_files_until_the_end(server, path):
    said = merged(server.start("limited", path=path, ending="close").rest())
    for failure in (*said["failures"], said["close"]):
        assert_write_error(failure)
    with store.open(path) as reader:
        ids = reader.ids()
        assert set(ids.tolist()) >= set(range(said["durable"]))
        check_put(path, len(ids))


def test_full_disk(tmp_path):
    """On a file system of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    request = {
        "job": "full_disk",
        "die_before": 0,
        "args": {"path": str(disk / "store"), "filler": str(disk / "filler")},
    }
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 77; shift; exec "$@"'
    python = [sys.executable, "-m", "tests.store.crash_writer", "run", json.dumps(request)]
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(disk)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run(
        [*alone, *python], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"may not mount: {done.stderr}")
    said = merged([json.loads(line) for line in done.stdout.splitlines()])
    assert "failure" not in said, said["failure"]["trace"]
    for failure in (*said["failures"], said["flush"]):
        assert_write_error(failure)
        assert "StoreFullError" in failure["kinds"], failure["trace"]
    assert said["readable"] >= said["durable"]
    assert [id for id in said["left"] if id < said["rows"]] == [], "accepted, and then lost"
    assert said["done"] is True


def test_read_only_folder(server):
    """Not below tmp_path: that one is closed to other users, and root may write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with store.create(path) as writer:
            write_numbers(writer, range(5))
        store.open(path).close()
        readable(Path(folder))
        said = merged(server.start("as_nobody", path=path).rest())
        writable(Path(folder))
    if not said["refused"]:
        pytest.skip("this user may write everywhere")
    for what in ("append", "create"):
        assert said[what] is not None, f"{what} worked"
        assert "StorePermissionError" in said[what]["kinds"], said[what]["trace"]
        assert Path(folder).name in said[what]["text"]
    if said["compact"] is not None:  # one segment: there may be nothing to do
        assert "StorePermissionError" in said["compact"]["kinds"], said["compact"]["trace"]
    assert said["read"] == list(range(5))
    assert said["ok"] is True


def readable(folder):
    for file in (folder, *folder.rglob("*")):
        file.chmod(0o555 if file.is_dir() else 0o444)


def writable(folder):
    for file in (folder, *folder.rglob("*")):
        file.chmod(stat.S_IRWXU)
