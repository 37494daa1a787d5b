"""Jobs of ``torch.distributed``: DDP, FSDP2, uneven ranks, a rank that is killed.

One launch of two processes checks many things, since starting them is what takes time; see
``rank_program.py`` for what they run. Thorough tests use three processes, and torchrun itself.
"""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import sawlog
from sawlog.capture._ranks import Ranks, is_gone
from sawlog.errors import ArgumentError, ProcessLostError
from tests.launched import environment, free_port
from tests.thorough import THOROUGH
from tests.torch import rank_program
from tests.torch.rank_program import LORA, OPTIONS, SIZE, alone

STEPS = (
    "ddp",
    "fsdp",
    "extract",
    "late",
    "shares",
    "repeated",
    "engine",
    *(("trained", "fsdp1") if THOROUGH else ()),
)

MORE = ("trained", "fsdp1", "killed", "go_on")


PROGRAM = """
    import sys
    from tests.torch.rank_program import main
    main(*sys.argv[1:])
"""


def launch(forks, folder, size, *steps):
    """Run some steps of ``rank_program`` in processes; return their exit codes."""
    port = str(free_port())
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        forks.start(PROGRAM, folder, *steps, env={"RANK": str(rank), **job}) for rank in range(size)
    ]
    codes = [rank.wait(300) for rank in ranks]
    for rank, code in zip(ranks, codes, strict=True):
        if code:
            print(rank.output())
    return codes


def rows_of(path):
    with sawlog.store.open(path) as reader:
        names = [name for name in reader.names if name.startswith("grad/")]
        assert sorted(np.asarray(reader.ids(names[0])).tolist()) == list(range(SIZE))
        return {name: reader.gather(range(SIZE))[name] for name in names}


def assert_same_run(folder, project, other):
    """Rows, statistics and scores are those of one process."""
    ours, theirs = (sawlog.init(each, root=folder) for each in (project, other))
    found, expected = rows_of(ours.store_path), rows_of(theirs.store_path)
    assert set(found) == set(expected)
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=1e-7, atol=1e-10)
    ours, theirs = ours.statistics, theirs.statistics
    assert ours.examples == theirs.examples == SIZE
    assert set(ours.names) == set(theirs.names)
    for key, (array, count) in theirs._arrays.items():
        assert ours._arrays[key][1] == count, key
        np.testing.assert_allclose(ours._arrays[key][0], array, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3] if THOROUGH else [2])
def test_ranks_give_what_one_process_gives(tmp_path, forks, size):
    assert launch(forks, tmp_path, size, *STEPS) == [0] * size
    scores = {
        "fsdp": alone(tmp_path, "alone", OPTIONS),
        "extract": alone(tmp_path, "alone-extract", LORA),
    }
    assert_same_run(tmp_path, "ddp", "alone")
    assert_same_run(tmp_path, "fsdp", "alone")
    assert_same_run(tmp_path, "extract", "alone-extract")
    for rank in range(size):
        assert json.loads((tmp_path / f"done-{rank}.json").read_text()) == list(STEPS)
        for name, expected in scores.items():
            assert_same_scores(tmp_path / f"{name}-{rank}.npz", expected)


def assert_same_scores(path, expected):
    found = dict(np.load(path))
    order = np.argsort(found["ids"])
    for place, query in enumerate(expected.queries.tolist()):
        pairs = sorted(expected[query])
        assert found["ids"][order].tolist() == [each for each, _ in pairs]
        np.testing.assert_allclose(
            found["values"][place][order], [score for _, score in pairs], rtol=1e-6
        )


@pytest.mark.thorough
def test_a_killed_rank(tmp_path, forks):
    codes = launch(forks, tmp_path, 3, "killed")
    assert codes == [7, 7, -signal.SIGKILL]
    said = [(tmp_path / f"killed-{rank}.txt").read_text() for rank in range(2)]
    assert all("with any number of processes" in each for each in said)
    # The one that notices first ends as well, and may be the one that keeps what ranks agree on.
    assert any("Rank 2 of this job ended before run.finalize()" in each for each in said)
    assert launch(forks, tmp_path, 2, "go_on") == [0, 0]
    expected = alone(tmp_path, "alone", OPTIONS)
    assert_same_run(tmp_path, "killed", "alone")
    for rank in range(2):
        assert_same_scores(tmp_path / f"go_on-{rank}.npz", expected)


@pytest.mark.thorough
def test_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.torch.rank_program", str(tmp_path), "ddp", "fsdp"]
    assert subprocess.run(command, env=environment(), timeout=300, check=False).returncode == 0
    alone(tmp_path, "alone", OPTIONS)
    assert_same_run(tmp_path, "ddp", "alone")
    assert_same_run(tmp_path, "fsdp", "alone")


# -- meeting, without processes -------------------------------------------------------------------


class Shared:
    """The processes of a job that share a dict; ``rank`` is that of the one who looks."""

    def __init__(self, rank, size, values):
        self.rank, self.size, self._values = rank, size, values

    def claim(self, key):
        return self._values.setdefault(("claim", key), self.rank) == self.rank

    def put(self, key, value):
        self._values[key] = value

    def get(self, key):
        return self._values.get(key)


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two ranks of a job, as if each were in a process of its own."""
    monkeypatch.setattr(Ranks, "_opened", {str(tmp_path): 0})
    values, ranks = {}, []
    for rank in range(2):
        Ranks._opened[str(tmp_path)] = 0
        ranks.append(Ranks(Shared(rank, 2, values), tmp_path, timeout=0.05))
    return ranks


def test_the_first_decides_for_all(two):
    done = []
    for rank in two:
        rank.decide(lambda: done.append(1))
    assert done == [1]


def test_all_ranks_raise_what_the_first_raises(two):
    def refuse():
        raise ArgumentError("It exists.")

    for rank in two:
        with pytest.raises(ArgumentError, match=r"^It exists\.$"):
            rank.decide(refuse)


def test_ranks_wait_for_each_other(two):
    two[1].group.put(two[1]._key("finished", 0, 1), "")
    two[0].meet("run.finalize()")
    with pytest.raises(ProcessLostError, match=r"Rank 1 .* 0\.05 seconds.*distributed=False"):
        two[0].meet("run.finalize()")


def test_passes_have_names_of_their_own(two):
    assert not two[1].has_begun()
    two[0].begin()
    assert two[1].has_begun()
    first = two[0].name
    assert first == two[1].name
    two[1].group.put(two[1]._key("finished", 0, 1), "")
    two[0].meet("run.finalize()")
    assert two[0].name != first
    assert not two[0].has_begun()


def test_a_process_that_is_gone(two):
    ended = subprocess.Popen(["true"])
    key = two[0]._key("process", 1)
    known = json.loads(two[0].group.get(key))
    assert not is_gone(known)
    ended.wait()
    two[0].group.put(key, json.dumps({**known, "process": ended.pid}))
    with pytest.raises(ProcessLostError, match=r"Rank 1 of this job ended before run.finalize"):
        two[0].meet("run.finalize()")
    assert not is_gone({**known, "machine": "another", "process": ended.pid})


def test_the_program_is_what_the_tests_name():
    assert all(callable(getattr(rank_program, step)) for step in (*STEPS, *MORE))
