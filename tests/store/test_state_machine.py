"""Random histories of a store against a model in memory.

Hypothesis interleaves writers, flushes, crashes, reopening, compaction and readers. The model knows
which rows and entries were accepted and which are durable, and what may therefore be seen: what is
durable must be there, what is only accepted may be, nothing else can. All values are functions of a
number that grows with each write, and are compared to the last bit.

A crash is a copy of the folder as it is at that moment, while its writers are still at work: what a
killed process leaves behind. A run is short; `SAWLOG_EXAMPLES=10` makes ten times as many, no
longer the same ones every time, and shrinks what fails.
"""

import dataclasses
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sawlog import store
from sawlog.errors import DuplicateIdError, NanError, SchemaError, UnknownIdError
from sawlog.records import Entries, Records
from sawlog.testing import assert_same
from tests.thorough import seeded_examples

from .plain_reader import PlainStore

pytestmark = pytest.mark.long
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
IDS = 14
SIZES = [1, 400, 64 << 20]
DEAD = -1
"""The writer of all that was there after the last moment without writers."""


# ---- the values of a number


def grads(numbers):
    numbers = np.asarray(numbers, np.int64)
    return np.stack([numbers, -numbers, numbers * 3 % 7], 1).astype(np.float32) / 3


def losses(numbers):
    return np.asarray(numbers, np.float64) / 7


def acts(numbers):
    return np.stack([numbers, -np.asarray(numbers)], 1).astype(np.int32)


def masks(numbers):
    return np.stack([np.asarray(numbers) % 3 != 0, np.asarray(numbers) % 5 != 0], 1)


def note(number):
    return {"half": int(number) // 2} if number % 4 == 0 else {}


# ---- the model


@dataclasses.dataclass
class Item:
    """A row or an entry that was accepted."""

    writer: int
    number: int
    durable: bool = False
    sure: bool = True  # false: perhaps dropped, because somebody else's row was first


@dataclasses.dataclass
class Live:
    """A writer, what it had accepted, and what was durable when it was opened."""

    number: int
    handle: store.Writer
    before: set
    pending: list = dataclasses.field(default_factory=list)
    declared: set = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Seen:
    """What a reader shows: of each table id -> number, of each series the numbers in order."""

    tables: dict
    series: dict


class StoreMachine(RuleBasedStateMachine):
    """The rules; the profiles below say which policies."""

    duplicates = "error"
    nan = "allow"
    ids_of_tag, ids_of_side = "int", "str"

    def __init__(self):
        super().__init__()
        self.kinds = {"tag": self.ids_of_tag, "side": self.ids_of_side}
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.path = self.folder / "store-0"
        self.clock = 0
        self.befores = {DEAD: set()}  # writer -> numbers that were durable when it was opened
        self.live = []
        self.rows = {"tag": {}, "side": {}}  # table -> id -> [Item]
        self.entries = {"loss": [], "act": []}
        self.reader = self.snapshot = None

    @initialize(size=st.sampled_from(SIZES))
    def create(self, size):
        handle = store.create(
            self.path,
            duplicates=self.duplicates,
            nan=self.nan,
            segment_bytes=size,
            interval=None,
        )
        self._adopt(handle)

    def _adopt(self, handle):
        self.clock += 1
        before = {item.number for item in self._items() if item.durable}
        self.befores[self.clock] = before
        self.live.append(Live(self.clock, handle, before))

    def _writer(self, which):
        """One of the writers; a new one if there is none."""
        if not self.live:
            self.open(SIZES[which % len(SIZES)])
        return self.live[which % len(self.live)]

    def _items(self):
        for versions in (*self.rows["tag"].values(), *self.rows["side"].values()):
            yield from versions
        for entries in self.entries.values():
            yield from entries

    def _next(self, count):
        numbers = np.arange(self.clock + 1, self.clock + 1 + count)
        self.clock += count
        return numbers

    def _accept(self, live, number, sure=True):
        item = Item(live.number, int(number), sure=sure)
        live.pending.append(item)
        return item

    # ---- writing

    @rule(
        which=st.integers(0, 3),
        table=st.sampled_from(["tag", "tag", "side"]),
        places=st.lists(st.integers(0, IDS - 1), max_size=6) | st.just([0, 1, 2]),
    )
    def append(self, which, table, places):
        live = self._writer(which)
        ids = self._ids(table, self._allowed(live, table, places))
        if not ids and table not in live.declared:
            return  # an empty list does not say which kind of ids it has none of
        numbers = self._next(len(ids))
        known = [self._knows(live, table, id) for id in ids]
        repeated = len(set(ids)) < len(ids)
        if self.duplicates == "error" and (repeated or True in known):
            with pytest.raises(DuplicateIdError):
                live.handle.append(self._given(table, ids), self._values(table, numbers))
            return
        taken = live.handle.append(self._given(table, ids), self._values(table, numbers))
        live.declared.add(table)
        self._take(live, table, ids, numbers, known, taken)

    def _allowed(self, live, table, places):
        """With "error", leave out ids of which nobody can say whether this writer knows them."""
        if self.duplicates != "error":
            return places
        ids = self._ids(table, places)
        return [
            place
            for place, id in zip(places, ids, strict=True)
            if self._knows(live, table, id) is not None
        ]

    def _ids(self, table, places):
        return [self._id(table, place) for place in places]

    def _id(self, table, place):
        return place - 5 if self.kinds[table] == "int" else "ä" * (place % 3) + f"{place}"

    def _given(self, table, ids):
        return np.array(ids, np.int64) if self.kinds[table] == "int" else ids

    def _values(self, table, numbers):
        if table == "side":
            return {"side": numbers.astype("<M8[s]")}
        return {"tag": numbers, "grad": grads(numbers)}

    def _knows(self, live, table, id):
        """Whether a writer must know this id: True, False, or None if it may."""
        versions = self.rows[table].get(id, [])
        if any(v.writer == live.number or v.number in live.before for v in versions):
            return True
        return None if versions else False

    def _take(self, live, table, ids, numbers, known, taken):
        if self.duplicates == "first":
            self._take_first(live, table, ids, numbers, known, taken)
            return
        assert len(set(ids)) <= taken <= len(ids)
        for id, number in zip(ids, numbers, strict=True):
            self.rows[table].setdefault(id, []).append(self._accept(live, number))

    def _take_first(self, live, table, ids, numbers, known, taken):
        fresh = {}
        for id, number, knows in zip(ids, numbers, known, strict=True):
            if knows is not True and id not in fresh:
                fresh[id] = (number, knows is False)
        assert sum(sure for _, sure in fresh.values()) <= taken <= len(fresh)
        for id, (number, sure) in fresh.items():
            self.rows[table].setdefault(id, []).append(self._accept(live, number, sure))

    @rule(which=st.integers(0, 3), count=st.integers(0, 4))
    def log(self, which, count):
        live = self._writer(which)
        numbers = self._next(count)
        if count == 1:
            live.handle.log({"loss": losses(numbers)[0]}, step=numbers[0])
        else:
            live.handle.extend({"loss": losses(numbers)}, step=numbers)
        self.entries["loss"] += [self._accept(live, number) for number in numbers]

    @rule(which=st.integers(0, 3), count=st.integers(1, 3), masked=st.booleans())
    def write(self, which, count, masked):
        """With a mask, or entries of which the model says that they are whole."""
        live = self._writer(which)
        numbers = self._next(count)
        for number in numbers:
            one = np.array([number])
            mask = masks(one)
            given = mask if masked or not mask.all() else None
            entries = Entries(acts(one), {"step": one, "t": one / 2}, given, note(number))
            live.handle.write(Records({"act": entries}))
        self.entries["act"] += [self._accept(live, number) for number in numbers]

    @rule(which=st.integers(0, 3), seed=st.integers(0, 99), flush=st.booleans())
    def write_a_lot(self, which, seed, flush):
        """Rows of both tables and entries of both series, as a run would."""
        random = np.random.default_rng(seed)
        for _ in range(random.integers(1, 4)):
            for table in ("tag", "side"):
                places = random.permutation(IDS)[: random.integers(1, 5)].tolist()
                self.append(which=which, table=table, places=places)
            self.log(which=which, count=int(random.integers(1, 4)))
            self.write(which=which, count=1, masked=bool(random.integers(2)))
        if flush:
            self.flush(which=which)

    @rule(which=st.integers(0, 3), kind=st.sampled_from(["shape", "dtype", "name", "ids", "nan"]))
    def write_what_does_not_fit(self, which, kind):
        """Refused, and nothing of it stays."""
        live = self._writer(which)
        if "tag" not in live.declared or (kind == "nan" and self.nan != "error"):
            return
        one = self._next(1)
        ids, values = self._given("tag", [self._id("tag", 99)]), self._values("tag", one)
        if kind == "shape":
            values["grad"] = values["grad"][:, :2]
        elif kind == "dtype":
            values["tag"] = values["tag"].astype(np.int32)
        elif kind == "name":
            del values["grad"]
        elif kind == "ids":
            ids = ["99"] if self.kinds["tag"] == "int" else np.array([99])
        else:
            values["grad"][0, 1] = np.nan
        with pytest.raises(NanError if kind == "nan" else SchemaError):
            live.handle.append(ids, values)

    # ---- publishing, closing, opening, crashing

    @rule(which=st.integers(0, 3))
    def flush(self, which):
        live = self._writer(which)
        live.handle.flush()
        self._settle(live)

    def _settle(self, live):
        for item in live.pending:
            item.durable = True
        live.pending.clear()

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 3))
    def close(self, which):
        live = self.live.pop(which % len(self.live))
        live.handle.close()
        self._settle(live)
        if not self.live:
            self._collapse()

    @precondition(lambda self: len(self.live) < 3)
    @rule(size=st.sampled_from(SIZES))
    def open_another(self, size):
        self.open(size)

    def open(self, size):
        self._adopt(store.open(self.path, "append", segment_bytes=size, interval=None))

    @rule()
    def crash(self):
        path = self.path.with_name(f"store-{int(self.path.name[6:]) + 1}")
        copy_as_a_crash_leaves_it(self.path, path)
        self._forget_reader()
        while self.live:
            self.live.pop().handle.close()
        shutil.rmtree(self.path)
        self.path = path
        self._collapse()

    def _collapse(self):
        """Without writers there are no two ways: what is seen now is what there is."""
        seen = self._look()
        for table, found in seen.tables.items():
            self.rows[table] = {id: [Item(DEAD, n, True)] for id, n in found.items()}
        for name, numbers in seen.series.items():
            self.entries[name] = [Item(DEAD, number, True) for number in numbers]

    # ---- upkeep

    @rule()
    def compact(self):
        store.compact(self.path)
        self._look()

    @rule(
        which=st.integers(0, 3),
        table=st.sampled_from(["tag", "side"]),
        seed=st.integers(0, 9),
    )
    def missing(self, which, table, seed):
        live = self._writer(which)
        if table not in live.declared:
            return
        ids = self._ids(table, np.random.default_rng(seed).permutation(IDS).tolist())
        left = list(live.handle.missing(self._given(table, ids), table))
        assert left == [id for id in ids if id in set(left)]
        for id in ids:
            versions = self.rows[table].get(id, [])
            if any(v.durable or v.writer == live.number for v in versions):
                assert id not in left
            elif not versions:
                assert id in left

    # ---- reading

    @rule()
    def look(self):
        self._look()

    @rule()
    def keep_a_reader(self):
        """A reader is a snapshot: it shows the same until it is refreshed, whatever happens."""
        if self.reader is None:
            self.reader = store.open(self.path)
        else:
            assert self._observe(self.reader) == self.snapshot
            self.reader.refresh()
        self.snapshot = self._observe(self.reader)
        self._check(self.snapshot)

    @precondition(lambda self: self.reader)
    @rule()
    def read_the_kept_one(self):
        assert self._observe(self.reader) == self.snapshot

    def _forget_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = self.snapshot = None

    def _look(self):
        with store.open(self.path) as reader:
            seen = self._observe(reader)
        self._check(seen)
        return seen

    def _observe(self, reader):
        """All a reader shows, by every way of reading, as numbers; they have to agree."""
        tables = {name: self._observe_table(reader, name) for name in ("tag", "side")}
        series = {name: self._observe_series(reader, name) for name in ("loss", "act")}
        return Seen(tables, series)

    def _observe_table(self, reader, table):
        if table not in reader.names:
            return {}
        ids = list(reader.ids(table))
        numbers = reader.read(table).astype(np.int64)
        assert len(set(ids)) == len(ids) == len(numbers) == reader.count(table)
        expected = self._values(table, numbers)
        order = np.random.default_rng(len(ids)).permutation(2 * len(ids)) % max(len(ids), 1)
        gathered = reader.gather(self._given(table, [ids[i] for i in order]), list(expected))
        for name, values in expected.items():
            assert_same(reader.read(name), values, name)
            assert_same(gathered[name], values[order], name)
        place = 0
        for block in reader.blocks(list(expected), budget=100):
            stop = place + len(block.ids)
            assert list(block.ids) == ids[place:stop]
            for name, values in expected.items():
                assert_same(block.values[name], values[place:stop], name)
            place = stop
        assert place == len(ids)
        with pytest.raises(UnknownIdError):
            reader.gather(self._given(table, [self._id(table, 99)]), [table])
        return dict(zip(ids, numbers.tolist(), strict=True))

    def _observe_series(self, reader, name):
        if name not in reader.names:
            return []
        found = reader.entries(name)
        numbers = found.steps["step"]
        assert len(found) == len(numbers) == reader.count(name)
        assert_same(reader.read(name), found.values)
        notes = [dict(each) for rows, each in reader.attrs(name) for _ in range(rows)]
        if name == "loss":
            assert_same(found.values, losses(numbers))
            assert found.mask is None
            assert notes == [{}] * len(numbers)
        else:
            assert_same(found.values, acts(numbers))
            assert_same(found.steps["t"], numbers / 2)
            mask = np.ones((len(numbers), 2), bool) if found.mask is None else found.mask
            assert_same(mask, masks(numbers))
            assert notes == [note(number) for number in numbers.tolist()]
        return numbers.tolist()

    # ---- what may be seen

    def _check(self, seen):
        for table, found in seen.tables.items():
            self._check_table(self.rows[table], found)
        for name, numbers in seen.series.items():
            self._check_series(self.entries[name], numbers)

    def _check_table(self, rows, found):
        durable = {id for id, versions in rows.items() if any(v.durable for v in versions)}
        assert durable <= set(found) <= set(rows)
        for id, number in found.items():
            assert number in self._may_count(rows[id]), (id, number, rows[id])

    def _may_count(self, versions):
        """Numbers of the versions that may be the one that counts."""
        sure = [v for v in versions if v.durable and v.sure]
        if self.duplicates == "first":
            beaten = lambda v: any(self._precedes(w, v) for w in sure)
        else:
            beaten = lambda v: any(self._precedes(v, w) for w in sure)
        return {v.number for v in versions if not beaten(v)}

    def _precedes(self, one, other):
        """Whether an item certainly stands before another."""
        if one.writer == other.writer:
            return one.number < other.number
        return one.number in self.befores[other.writer]

    def _check_series(self, entries, numbers):
        assert max(Counter(numbers).values(), default=1) == 1
        assert {e.number for e in entries if e.durable} <= set(numbers)
        assert set(numbers) <= {e.number for e in entries}
        place = {number: at for at, number in enumerate(numbers)}
        visible = [e for e in entries if e.number in place]
        for writer in {e.writer for e in entries}:
            own = [e.number for e in entries if e.writer == writer]
            shown = [number for number in numbers if number in set(own)]
            assert shown == own[: len(shown)], f"not the first of what {writer} logged"
        for one in visible:
            for other in visible:
                if one.writer != other.writer and self._precedes(one, other):
                    assert place[one.number] < place[other.number]

    def teardown(self):
        try:
            self._finish()
        finally:
            self._forget_reader()
            shutil.rmtree(self.folder)

    def _finish(self):
        """In the end: everything accepted is there, the store is sound, and the page is right."""
        if not self.path.exists():
            return
        while self.live:
            live = self.live.pop()
            live.handle.close()
            self._settle(live)
        seen = self._look()
        report = store.verify(self.path)
        assert report.ok, report.problems
        plain = PlainStore(self.path)
        assert plain.missing == []
        for table, found in seen.tables.items():
            if table in plain.columns:
                rows = {id: int(value.astype(np.int64)) for id, value in plain.rows(table).items()}
                assert rows == found
        for name, numbers in seen.series.items():
            if name in plain.columns and numbers:
                assert plain.series(name)[1]["step"].tolist() == numbers


def copy_as_a_crash_leaves_it(source, target):
    """What was published last is copied first, so that the copy is a state that really was.

    It is begun anew where a writer merged segments meanwhile.
    """
    while not _is_copied(source, target):
        shutil.rmtree(target)


def _is_copied(source, target):
    try:
        _copy(source, target)
    except Merged:
        return False
    return True


class Merged(Exception):
    """A segment was merged into another one while the store was copied."""


def _copy(source, target):
    for folder in ("writers", "segments", "replaced", "schema", "tmp"):
        if (source / folder).exists():
            copy_folder(source / folder, target / folder)
    shutil.copy2(source / "store.json", target / "store.json")


def copy_folder(source, target):
    target.mkdir(parents=True, exist_ok=True)
    names, before = sorted(os.listdir(source)), None
    while names != before:  # a listing may miss a file while others are added
        names, before = sorted(os.listdir(source)), names
    for name in names:
        try:
            if (source / name).is_dir():
                shutil.copytree(source / name, target / name)
            else:
                shutil.copy2(source / name, target / name)
        except FileNotFoundError:
            if source.name in ("segments", "replaced"):
                raise Merged from None
            assert source.name in ("tmp", "writers"), name  # it has its name by now


class Replacing(StoreMachine):
    duplicates = "replace"


class Refusing(StoreMachine):
    duplicates, nan = "error", "error"
    ids_of_tag, ids_of_side = "str", "int"


class KeepingTheFirst(StoreMachine):
    duplicates = "first"


@pytest.mark.parametrize("machine", [Replacing, Refusing, KeepingTheFirst])
def test_histories(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(seeded_examples(12, 80), stateful_step_count=30),
    )


# ---- the model can see what is wrong


class Forgetful(StoreMachine):
    """As a store that loses what was flushed."""

    def _observe_series(self, reader, name):
        return super()._observe_series(reader, name)[:-1]


class Disorderly(StoreMachine):
    """As a store that mixes entries up."""

    def _observe_series(self, reader, name):
        return super()._observe_series(reader, name)[::-1]


class Outdated(Replacing):
    """As a store that shows rows which were replaced."""

    def _observe_table(self, reader, table):
        found = super()._observe_table(reader, table)
        return {id: min(v.number for v in self.rows[table][id]) for id in found}


@pytest.mark.parametrize("machine", [Forgetful, Disorderly, Outdated])
def test_the_model_can_fail(machine):
    quick = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
