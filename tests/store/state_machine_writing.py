"""The writing half of the machine in `test_state_machine.py`: rules, and a model in memory."""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from sawlog import store
from sawlog.errors import DuplicateIdError, NanError, SchemaError
from sawlog.records import Entries, Records

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


class WritingMachine(RuleBasedStateMachine):
    """Writers of one store, and what they were given; subclasses say which policies."""

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
