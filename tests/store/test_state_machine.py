"""Random histories of a store against a model in memory.

Hypothesis interleaves writers, flushes, crashes, reopening, compaction and readers. The model knows
which rows and entries were accepted and which are durable, and what may therefore be seen: what is
durable must be there, what is only accepted may be, nothing else can. All values are functions of a
number that grows with each write, and are compared to the last bit.

A crash is a copy of the folder as it is at that moment, while its writers are still at work: what a
killed process leaves behind. A run is short; `SAWLOG_EXAMPLES=10` makes ten times as many, no
longer the same ones every time, and shrinks what fails.
"""

import os
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)

from sawlog import store
from sawlog.errors import UnknownIdError
from sawlog.testing import assert_same
from tests.thorough import seeded_examples

from .plain_reader import PlainStore
from .state_machine_writing import (
    DEAD,
    IDS,
    SIZES,
    Item,
    Seen,
    WritingMachine,
    acts,
    losses,
    masks,
    note,
)

pytestmark = pytest.mark.long


class StoreMachine(WritingMachine):
    """All rules; the profiles below say which policies."""

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
