"""What every rank of a ``torch.distributed`` job runs in ``test_ranks``; started as a script.

``python -m tests.torch.rank_program FOLDER STEP...`` runs some of the functions below, in a job
whose ranks are told by the variables that torchrun sets.
"""

import contextlib
import json
import os
import pickle
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sawlog
from sawlog.errors import ArgumentError
from sawlog.influence import Logs
from sawlog.torch import TrainingCapture

TOKENS, WIDTH, LENGTH, SIZE = 11, 6, 4, 11
OPTIONS = {"statistic": ["kfac", "mean"], "precision": "float64", "dtype": "float64"}
LORA = {
    "statistic": "ekfac",
    "compress": {"kind": "pca", "rank": 3},
    "precision": "float64",
    "dtype": "float64",
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 8),
            nn.Linear(8, WIDTH, bias=False),
        )

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """A language model without attention."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model_and_data():
    torch.manual_seed(0)
    model = Model().double()
    return model, torch.randint(TOKENS, (SIZE, LENGTH + 1))


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def batches(rank, size):
    """Uneven batches of this rank, in no order: all ranks have the same number of them."""
    mine = np.random.default_rng(0).permutation(SIZE)[rank::size]
    return np.array_split(mine, 3)


def alone(folder, project, options):
    """The same by one process."""
    model, data = model_and_data()
    with sawlog.init(project, root=folder) as run:
        run.setup(options)
        run.watch(model, quiet=True)
        run.extract(loss_of, [data[:4], data[4:]], quiet=True)
        return queried(run, model, data)


def queried(run, model, data, **options):
    run.eval()
    with run(data_id=["first", "second"]):
        loss_of(model, data[[2, 5]]).backward()
    return run.influence.compute_influence_all(run.get_log(), **options)


def keep(path, scores):
    np.savez(path, ids=scores.ids, values=scores.values)


# -- the steps ------------------------------------------------------------------------------------


def ddp(folder, rank, size):
    """A loop of the user: uneven batches, an example in common; one decides about what exists."""
    model, data = model_and_data()
    model = DistributedDataParallel(model)
    run = sawlog.init("ddp", root=folder, exists="error")
    run.setup(OPTIONS)
    run.watch(model, quiet=True)
    common = batches(0, size)[0][:1]  # samplers repeat examples
    for turn, ids in enumerate(batches(rank, size)):
        model.zero_grad()
        ids = np.union1d(ids, common) if turn == 0 else ids
        with run(data_id=ids):
            loss_of(model, data[ids]).backward()
    run.finalize()
    assert run.statistics.examples == SIZE  # at once, in every rank
    with pytest.raises(ArgumentError, match="exists='append' continues it"):
        sawlog.init("ddp", root=folder, exists="error")


def fsdp(folder, rank, size):
    """The same, sharded: rows are those of the whole model, and gradients are averaged."""
    plain, data = model_and_data()
    model = sharded(model_and_data()[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = sawlog.init("fsdp", root=folder, exists="replace")
    run.setup(OPTIONS)
    run.watch(model, quiet=True)
    every = [batches(each, size) for each in range(size)]
    for turn, ids in enumerate(batches(rank, size)):
        optimizer.zero_grad()
        with run(data_id=ids) if turn != 1 else contextlib.nullcontext():  # the second: not logged
            loss_of(model, data[ids]).backward()
        (sum(loss_of(plain, data[each[turn]]) for each in every) / size).backward()
        for (name, p), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), other.grad, msg=name)
        plain.zero_grad()
    with run(data_id=every[rank][1]):
        run.backward(loss_of(model, data[every[rank][1]]))
    scores = queried(run, model, data)
    same = [None] * size
    dist.all_gather_object(same, scores.values)
    assert all((each == same[0]).all() for each in same)
    keep(folder / f"fsdp-{rank}", scores)
    optimizer.step()
    run.setup(OPTIONS)
    with pytest.raises(sawlog.errors.WeightsMismatchError), run(data_id=["other"]):
        pass


def extract(folder, rank, size):
    """Three passes; the last rank has no examples at all."""
    model, data = model_and_data()
    model = sharded(model)
    run = sawlog.init("extract", root=folder, timeout=60)
    run.setup(LORA)
    run.watch(model, quiet=True)
    several = max(1, size - 1)
    mine = np.arange(SIZE)[rank::several] if rank < several else np.arange(0)
    loader = [{"id": ids, "x": data[ids]} for ids in (mine[:2], mine[2:5], mine[5:]) if len(ids)]
    run.extract(lambda model, b: loss_of(model, b["x"]), loader, lambda b: b["id"], quiet=True)
    scores = queried(run, model, data)
    keep(folder / f"extract-{rank}", scores)


def late(folder, rank, size):
    """Ranks that call ``run.extract`` while the first one is in the middle of it."""
    model, data = model_and_data()
    run = sawlog.init("late", root=folder, timeout=60)
    run.setup({"dtype": "float64"})
    run.watch(model, quiet=True)
    until = time.monotonic() + 60
    while rank and not (folder / "late" / "logs").exists() and time.monotonic() < until:
        time.sleep(0.01)
    mine = np.arange(SIZE)[rank::size]
    loader = [{"id": mine, "x": data[mine]}]
    run.extract(lambda model, b: loss_of(model, b["x"]), loader, lambda b: b["id"], quiet=True)
    with sawlog.store.open(run.store_path) as reader:
        (name, *_) = [each for each in reader.names if each.startswith("grad/")]
        assert sorted(reader.ids(name).tolist()) == list(range(SIZE))


def trained(folder, rank, size):
    """Sharded: gradients are accumulated over two batches, and a step follows each pair."""
    plain, data = model_and_data()
    model = sharded(model_and_data()[0])
    pairs = [(one, torch.optim.SGD(one.parameters(), 0.1)) for one in (model, plain)]
    run = sawlog.init("trained", root=folder)
    run.setup(dtype="float64", weights="any")
    run.watch(model, quiet=True)
    every = [batches(each, size) for each in range(size)]
    for turn in range(3):
        model.set_requires_gradient_sync(turn != 0)
        with run(data_id=every[rank][turn]):
            loss_of(model, data[every[rank][turn]]).backward()
        (sum(loss_of(plain, data[each[turn]]) for each in every) / size).backward()
        if turn != 0:
            for _, optimizer in pairs:
                optimizer.step()
                optimizer.zero_grad()
        for (name, p), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.full_tensor(), other, msg=name)
    run.finalize()


def shares(folder, rank, size):
    """Rows times their shares are the gradient of a step, which processes average."""

    def partly(model):
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.blocks[0])  # gradients of the rest are not reduced
        return model

    kinds = {
        "ddp": DistributedDataParallel,
        "inside": lambda model: nn.Sequential(DistributedDataParallel(model)),
        "fsdp": sharded,
        "partly": partly,
    }
    for kind, wrap in kinds.items():
        bare, data = model_and_data()
        before = {name: p.detach().clone() for name, p in bare.named_parameters()}
        model = wrap(bare)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        root, config = folder / "shares", {"dtype": "float64"}
        capture = TrainingCapture(model, kind, root=root, optimizer=optimizer, config=config)
        ids = batches(rank, size)[0]
        with capture(ids, step=0):
            loss_of(model, data[ids]).backward()
        optimizer.step()
        capture.close()
        dist.barrier()
        path = root / kind / "epoch-0"
        every = np.concatenate([batches(each, size)[0] for each in range(size)])
        found = sawlog.store.open(path / "steps").gather(every)
        weights = torch.from_numpy(found["share"] * found["learning_rate"])
        if kind == "partly":
            assert torch.isnan(weights).all()
            continue
        rows = Logs(next((path / "logs").iterdir())).gather(every).rows()
        for block in capture._backend.watched.blocks:
            for name, part in block.parts(rows[block.name]).items():
                name = name.removeprefix("0.")  # of a model in a Sequential
                now = dict(bare.named_parameters())[name].detach()
                now = now.full_tensor() if hasattr(now, "full_tensor") else now
                step = torch.tensordot(weights, torch.as_tensor(part).double(), 1)
                torch.testing.assert_close(before[name] - now, step.reshape(now.shape), msg=name)


def repeated(folder, rank, size):
    """A sampler repeats examples, so that all of a batch of the last rank were logged before."""
    model, data = model_and_data()
    model = sharded(model)
    root = folder / "repeated"
    capture = TrainingCapture(model, "all", root=root, config={"dtype": "float64"})
    sampler = torch.utils.data.DistributedSampler(range(2 * size + 1), shuffle=False)
    for step, place in enumerate(sampler):
        with capture([place], step=step):
            loss_of(model, data[[place]]).backward()
    capture.close()
    dist.barrier()
    with sawlog.store.open(root / "all" / "epoch-0" / "steps") as steps:
        assert sorted(steps.ids("step").tolist()) == list(range(2 * size + 1))


def fsdp1(folder, rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model_and_data()[0], device_id=torch.device("cpu"))
    with pytest.raises(ArgumentError, match=r"fully_shard\(model\)"):
        sawlog.init("fsdp1", root=folder).watch(model, quiet=True)


def engine(folder, rank, size):
    """Ranks as the workers of an analysis, which fits a curvature and scores."""
    random = np.random.default_rng(0)
    rows = {"grad/a": random.normal(size=(60, 4, 3)), "grad/b": random.normal(size=(60, 5, 2))}
    queries = {"a": random.normal(size=(3, 4, 3)), "b": random.normal(size=(3, 5, 2))}
    path = folder / "engine"
    if rank == 0:
        with sawlog.store.create(path, segment_bytes=1000) as writer:
            for start in range(0, 60, 5):
                some = {name: each[start : start + 5] for name, each in rows.items()}
                writer.append(np.arange(start, start + 5), some)
    dist.barrier()
    assert sawlog.influence.Logs(path).files > size
    expected = sawlog.influence.attribute(rows, queries, curvature="fisher")
    with sawlog.torch.RankExecutor(timeout=60) as ranks:
        options = {"curvature": "fisher", "executor": ranks, "checkpoint": folder / "parts"}
        for _ in range(2):
            found = sawlog.influence.attribute(path, queries, **options)
            np.testing.assert_allclose(found.values, expected.values, rtol=1e-9, atol=1e-12)
            assert found.ids.tolist() == expected.ids.tolist()
        with pytest.raises(ZeroDivisionError):
            ranks.submit(divmod, 1, 0).result()
        for _ in range(size):  # in the rank whose turn it is as in the others
            with pytest.raises(RuntimeError, match=r"^Unreadable: of rank \d$"):
                ranks.submit(fail, rank).result(60)
            with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
                ranks.submit(answer_with_a_function).result(60)
        assert ranks.submit(divmod, 7, 2).result(60) == (3, 1)
    wanted = folder / "wanted"
    with contextlib.suppress(KeyboardInterrupt), sawlog.torch.RankExecutor(timeout=60) as ranks:
        late = ranks.submit(wait_for, wanted)
        raise KeyboardInterrupt
    assert not late.done()
    dist.barrier()
    wanted.touch()
    assert late.result(60)


class Unreadable(Exception):
    """An error that ``pickle`` writes and cannot read."""

    def __init__(self, rank, what):
        super().__init__(f"{what} {rank}")


def fail(rank):
    raise Unreadable(rank, "of rank")


def answer_with_a_function():
    return lambda: 1


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return True
        time.sleep(0.1)
    return False


def killed(folder, rank, size):
    """The last rank is killed after two batches; the others tell so, wherever they are."""
    model, data = model_and_data()
    run = sawlog.init("killed", root=folder)
    run.setup(OPTIONS)
    run.watch(model, quiet=True)
    try:
        for turn, ids in enumerate(batches(rank, size)):
            with run(data_id=ids):
                loss_of(model, data[ids]).backward()
            run.flush()
            if turn == 1 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        run.finalize()
    except sawlog.errors.ProcessLostError as error:
        (folder / f"killed-{rank}.txt").write_text(str(error))
        os._exit(7)


def go_on(folder, rank, size):
    model, data = model_and_data()
    run = sawlog.init("killed", root=folder)
    run.watch(model, quiet=True)
    for ids in batches(rank, size):
        with run(data_id=ids):
            loss_of(model, data[ids]).backward()
    run.finalize()
    keep(folder / f"go_on-{rank}", queried(run, model, data))


def main(folder, *steps):
    folder = Path(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in steps:
        globals()[step](folder, rank, size)
    (folder / f"done-{rank}.json").write_text(json.dumps(steps))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
