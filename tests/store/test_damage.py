"""Files of a store that are cut, changed or gone."""

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
from sawlog.errors import SawlogError, UnknownIdError
from sawlog.testing import assert_same
from tests.thorough import MORE, often

from .crash_stores import QUESTIONS, assert_sound, check_all, check_numbers, lasting_folder
from .numbers import expected, text_id, write_numbers
from .plain_reader import PlainStore

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
    pytest.mark.long,
]


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
