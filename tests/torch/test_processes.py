"""Statistics and rows of several processes, of programs that were killed, and of wrapped models."""

import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import sawlog
from sawlog.errors import ArgumentError, DuplicateIdError
from sawlog.run_files import _checkpoint as checkpoint
from sawlog.run_files._statistics import RunStatistics, added
from tests.thorough import THOROUGH
from tests.torch.programs import mlp
from tests.torch.test_run import go, start
from tests.torch.test_statistics import close

OPTIONS = {"statistic": ["mean", "variance", "covariance", "kfac"], "precision": "float64"}
SIZE = 7


def assert_same_statistics(run, expected):
    ours, theirs = run.statistics, expected.statistics
    assert ours.examples == theirs.examples == SIZE
    assert set(ours.names) == set(theirs.names)
    for key, (array, count) in theirs._arrays.items():
        assert ours._arrays[key][1] == count, key
        close(ours._arrays[key][0], array, rtol=1e-7, atol=1e-10)
    for block in ("0.weight", "3.weight"):
        for one, other in zip(ours.kfac(block), theirs.kfac(block), strict=True):
            close(one, other, rtol=1e-7, atol=1e-10)


@pytest.fixture
def alone(tmp_path):
    """The same by one process in one pass."""
    program = mlp(size=SIZE)
    run, _ = start(tmp_path / "alone", program, **OPTIONS)
    go(run, program)
    run.finalize()
    return run


def some(run, program, ids):
    go(run, program, np.asarray(ids), program.part(list(ids)))


def test_several_writers_add_up(tmp_path, alone):
    program = mlp(size=SIZE)
    runs = [start(tmp_path, program, **OPTIONS)[0] for _ in range(3)]
    for run, ids in zip(runs, ([0, 3], [1, 2, 6], [4, 5]), strict=True):
        for each in ids:
            some(run, program, [each])
    for run in (runs[1], runs[0], runs[2]):
        run.finalize()
    assert_same_statistics(runs[0], alone)
    with sawlog.store.open(runs[0].store_path) as reader:
        assert sorted(reader.ids("grad/0.weight").tolist()) == list(range(SIZE))


def test_a_later_program_leaves_out_what_others_counted(tmp_path, alone):
    program = mlp(size=SIZE)
    for _ in range(3):
        run, _ = start(tmp_path, program, **OPTIONS)
        some(run, program, range(SIZE))
        run.finalize()
    assert_same_statistics(run, alone)


def test_an_example_in_two_parts_is_an_error(tmp_path):
    program = mlp(size=SIZE)
    runs = [start(tmp_path, program, **OPTIONS)[0] for _ in range(2)]
    some(runs[0], program, [0, 1])
    some(runs[1], program, [1, 2])  # which does not know of the other
    for run in runs:
        run.finalize()
    with pytest.raises(
        DuplicateIdError, match=r"1 examples are in the statistics of two processes .* such as 1, "
    ):
        runs[0].statistics  # noqa: B018


def test_parts_are_joined_as_if_they_were_one():
    random = np.random.default_rng(0)
    rows = 3000 + random.normal(size=(30, 2, 3))
    parts = []
    for own in (rows[:1], rows[1:20], rows[20:]):
        one = RunStatistics("float64")
        one.add_rows("x", own)
        one.add("y", own.sum(0), len(own))
        parts.append(one.arrays())
    joined = added(added(parts[0], parts[1]), parts[2])
    np.testing.assert_allclose(joined["mean/x"][0], rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(joined["squares/x"][0] / 30, rows.var(0), rtol=1e-9)
    np.testing.assert_allclose(joined["sum/y"][0], rows.sum(0), rtol=1e-13)
    assert {count for _, count in joined.values()} == {30}


# -- killed ---------------------------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    import numpy as np, torch
    from tests.torch.programs import mlp
    from tests.torch.test_processes import OPTIONS, SIZE, some
    from tests.torch.test_run import start

    program = mlp(size=SIZE)
    run, _ = start(sys.argv[1], program, **OPTIONS)
    for place, each in enumerate(run.missing(np.arange(SIZE)).tolist()):
        some(run, program, [each])
        if place == int(sys.argv[2]) - 1:
            run.flush()
        if place == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    run.finalize()
"""


def test_killed_again_and_again(tmp_path, alone, forks):
    kept, kills = (2, 3) if THOROUGH else (5, 1)  # so many are on disk each time
    codes = [forks.start(KILLED, tmp_path, kept).wait(300) for _ in range(kills + 1)]
    assert codes == [-signal.SIGKILL] * kills + [0]
    run, _ = start(tmp_path, mlp(size=SIZE), **OPTIONS)
    assert_same_statistics(run, alone)


def test_a_part_that_is_being_replaced_is_read(tmp_path):
    for value in (1.0, 2.0):
        checkpoint.save(tmp_path, {"sum/x": (np.array([value]), 1)}, np.arange(2), {})
    (tmp_path / "00000001").mkdir()  # an older one that was not removed
    found = checkpoint.load(tmp_path)
    assert found.arrays["sum/x"][0].tolist() == [2.0]
    assert checkpoint.load(tmp_path / "nothing") is None


# -- names ----------------------------------------------------------------------------------------


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.filterwarnings("ignore::sawlog.errors.CompiledModelWarning")
@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled], ids=["parallel", "compiled"])
def test_names_are_those_of_the_bare_model(tmp_path, wrap):
    inner = nn.Sequential(nn.Linear(3, 3), wrap(nn.Sequential(nn.Linear(3, 2))))
    run = sawlog.init(project="run", root=tmp_path)
    for model in (inner, wrap(inner), nn.DataParallel(wrap(inner))):
        report = run.watch(model, quiet=True)
        assert [block.name for block in report.blocks] == ["0.weight", "1.0.weight"]
        assert report.blocks[1].parameters == ("1.0.weight", "1.0.bias")
        report = run.watch(model, names=["1.0.*"], quiet=True)
        assert [block.name for block in report.blocks] == ["1.0.weight"]
        assert set(run._backend.provenance().tensors) == {
            f"{name}.{what}" for name in ("0", "1.0") for what in ("weight", "bias")
        }


def test_a_module_of_ones_own_that_is_called_module(tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

    report = sawlog.init(project="run", root=tmp_path).watch(Holder(), quiet=True)
    assert [block.name for block in report.blocks] == ["module.weight"]


# -- the order of a loader ------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, place):
        return {"x": torch.tensor([float(place)]), "name": f"n{place}"}


def seen(loader, tmp_path, **options):
    run, _ = start(tmp_path, mlp())
    found = {}
    for ids, batch in run.batches(loader, quiet=True, **options):
        found.update(zip(ids.tolist(), batch["x"][:, 0].int().tolist(), strict=True))
    run.finalize()
    return found


# Workers are forked, and processes that have loaded JAX had rather not fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("workers", [0, 2] if THOROUGH else [0])
def test_shuffled_batches_are_numbered_by_their_place_in_the_data(tmp_path, workers):
    data = Numbers()
    generator = torch.Generator().manual_seed(1)
    loaders = [
        DataLoader(data, 4, shuffle=True, num_workers=workers, generator=generator),
        DataLoader(data, 4, sampler=torch.utils.data.SubsetRandomSampler([9, 2, 5])),
        DataLoader(data, 3, sampler=DistributedSampler(data, 2, 1, shuffle=True)),
        DataLoader(data, batch_sampler=[[3, 1], [0], [10, 9, 8]]),
        DataLoader(data, 4, num_workers=workers, persistent_workers=workers > 0),
    ]
    for loader in loaders:
        for _ in range(2):
            found = seen(loader, tmp_path)
            assert found
            assert all(each == place for each, place in found.items())
    assert set(seen(loaders[0], tmp_path)) == set(range(11))
    assert set(seen(loaders[1], tmp_path)) == {9, 2, 5}
    with pytest.raises(ArgumentError, match=r"in_order=False.* Hint: run\.batches"):
        seen(DataLoader(data, 4, num_workers=1, in_order=False), tmp_path)
    by_key = seen(loaders[0], tmp_path, data_id="name")
    assert all(name == f"n{place}" for name, place in by_key.items())
    assert len(by_key) == 11


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Numbers()[i] for i in range(11))


def test_streams_and_batches_are_numbered_in_their_order(tmp_path):
    whole = [{"x": torch.arange(4.0)[:, None]}, {"x": torch.arange(4.0, 7.0)[:, None]}]
    loaders = [(DataLoader(Stream(), 4), 11), (DataLoader(whole, batch_size=None), 7), (whole, 7)]
    for loader, size in loaders:
        found = seen(loader, tmp_path)
        assert list(found) == list(range(size))
        assert all(each == place for each, place in found.items())
    with pytest.raises(ArgumentError, match="which the loader shuffles"):
        seen(DataLoader(whole, batch_size=None, shuffle=True), tmp_path)


def test_a_loader_of_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    data = Numbers()
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(data, 4, shuffle=True))
    for _ in range(2):
        found = seen(loader, tmp_path)
        assert set(found) == set(range(11))
        assert all(each == place for each, place in found.items())
