"""The whole first stage in one call, and the check of a batch against its examples alone."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import sawlog
from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._check._one_example import one_of
from tests.torch.programs import PROGRAMS, Program, assert_alike, logged, mlp
from tests.torch.test_run import start
from tests.torch.test_statistics import close


def loader_of(program, batch_size=2, **options):
    data = list(zip(*program.batch, strict=True))
    return DataLoader(data, batch_size, **options)


def step_of(program):
    return lambda model, batch: program.loss(model, *batch)


# -- extract --------------------------------------------------------------------------------------


@pytest.mark.turns
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_those_of_each_example(tmp_path, name):
    program = PROGRAMS[name]()
    run, report = start(tmp_path, program)
    done = run.extract(step_of(program), loader_of(program, shuffle=True), quiet=True)
    assert done.passes == ("rows",)
    assert done.examples == (program.size,)
    assert done.check.ok
    assert_alike(logged(run, report, range(program.size)), program.alone())
    again = run.extract(step_of(program), loader_of(program, shuffle=True), quiet=True)
    assert again.examples == (0,)
    assert again.check is None


def test_losses_of_each_example(tmp_path):
    program = mlp(size=7)
    run, report = start(tmp_path, program)
    done = run.extract(
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        loader_of(program, 3),
        quiet=True,
    )
    assert done.check.ok
    assert_alike(logged(run, report, range(7)), program.alone())
    with pytest.raises(ArgumentError, match=r"must return a loss, or the losses .*; got \[3, 3\]"):
        start(tmp_path / "b", program)[0].extract(
            lambda model, batch: model(batch[0]), loader_of(program, 3), quiet=True
        )


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"statistic": "kfac"}, ("rows",)),
        ({"statistic": "ekfac"}, ("K-FAC", "EK-FAC and rows")),
        ({"compress": {"kind": "pca", "rank": 2}}, ("covariances", "rows")),
        (
            {"compress": {"kind": "pca", "rank": 2}, "statistic": "ekfac", "save": []},
            ("covariances", "K-FAC", "EK-FAC"),
        ),
    ],
)
def test_all_passes_that_are_needed(tmp_path, options, passes):
    program = mlp(size=9)
    run, _ = start(tmp_path / "one", program, precision="float64", **options)
    done = run.extract(step_of(program), loader_of(program, 4, shuffle=True), quiet=True)
    assert done.passes == passes
    assert done.examples == (9,) * len(passes)
    assert done.check.ok  # of the first batch of the first pass
    by_hand, _ = start(tmp_path / "two", program)  # the same, pass by pass
    for options_of_pass in _passes(options):
        by_hand.setup(precision="float64", **options_of_pass)
        for ids, batch in by_hand.batches(loader_of(program, 4), quiet=True):
            with by_hand(data_id=ids):
                by_hand.backward(program.loss(program.model, *batch))
        by_hand.finalize()
    if run.store_path.exists():
        with (
            sawlog.store.open(run.store_path) as ours,
            sawlog.store.open(by_hand.store_path) as theirs,
        ):
            for name, rows in theirs.gather(range(9)).items():
                # main directions have no sign
                np.testing.assert_allclose(
                    np.abs(ours.gather(range(9))[name]), np.abs(rows), rtol=1e-4, atol=1e-6
                )
    if "ekfac" in options.get("statistic", ""):
        close(run.statistics.ekfac("0.weight"), by_hand.statistics.ekfac("0.weight"), 1e-5, 1e-9)
    with (
        pytest.raises(ArgumentError, match="a generator can be read only once")
        if len(passes) > 1
        else _nothing()
    ):
        run.extract(step_of(program), iter(loader_of(program)), quiet=True)


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def _passes(options):
    compress = options.get("compress")
    if compress:
        yield {"statistic": "kfac", "save": []}
    if options.get("statistic") == "ekfac":
        yield {"statistic": "kfac", "save": [], "compress": compress}
    yield options


def test_a_pass_goes_on_where_it_was_interrupted(tmp_path):
    program = mlp(size=8)
    run, report = start(tmp_path, program, statistic="ekfac")
    seen = []

    def fails(model, batch):
        seen.append(len(batch[0]))
        if sum(size for size in seen if size > 1) > 16:  # the check takes a batch as well
            raise RuntimeError("out of memory")
        return program.loss(model, *batch)

    with pytest.raises(RuntimeError, match="out of memory"):
        run.extract(fails, loader_of(program, 4), quiet=True)
    run, report = start(tmp_path, program, statistic="ekfac")
    done = run.extract(step_of(program), loader_of(program, 4, shuffle=True), quiet=True)
    assert done.examples == (0, 8)
    assert_alike(logged(run, report, range(8)), program.alone())
    assert run.statistics.examples == 8


def test_queries_of_a_loader(tmp_path):
    program = mlp(size=7)
    run, _ = start(tmp_path, program)
    run.extract(step_of(program), loader_of(program), quiet=True)
    run.eval()
    data = [
        {"x": x, "y": y, "id": f"q{i}"} for i, (x, y) in enumerate(zip(*program.batch, strict=True))
    ]
    run.extract(
        lambda model, batch: program.loss(model, batch["x"], batch["y"]),
        DataLoader(data, 3),
        data_id="id",
        quiet=True,
    )
    assert list(run.get_log().ids) == [f"q{i}" for i in range(7)]
    scores = run.influence.compute_influence_all(run.get_log(), curvature="identity")
    grads = np.concatenate([each.reshape(7, -1) for each in program.alone().values()], 1)
    np.testing.assert_allclose(scores.values, grads @ grads.T, rtol=1e-4, atol=1e-7)


# -- check ----------------------------------------------------------------------------------------


def checked(tmp_path, program, step=None, **options):
    watch = options.pop("watch", {})
    run, _ = start(tmp_path, program, watch, **options.pop("setup", {}))
    step = step or step_of(program)
    return run.check(step, options.pop("batch", program.batch), quiet=True, **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_good_batch(tmp_path, name):
    program = PROGRAMS[name]()
    before = {name: p.clone() for name, p in program.model.state_dict().items()}
    state = torch.random.get_rng_state()
    found = checked(tmp_path, program, examples=100)
    assert found.ok, str(found)
    assert found.worst < 1e-5
    assert all(layer.batch is not None and layer.batch < 1e-5 for layer in found.layers)
    assert len(found.examples) == program.size
    assert not (tmp_path / "run").exists()  # it leaves nothing behind
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, before[n]) for n, p in program.model.state_dict().items())
    assert all(p.grad is None for p in program.model.parameters())


class Centred(nn.Module):
    """A centring over the batch, as by hand."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(torch.tanh(h - h.mean(0)))


def test_examples_that_depend_on_each_other(tmp_path):
    base = mlp()
    program = Program(Centred().double(), base.batch, base.loss)
    found = checked(tmp_path, program)
    assert not found.ok
    assert "examples" in found.refused
    assert "cannot be logged" in str(found)
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="examples"):
        run.extract(step_of(program), loader_of(program, 5), quiet=True)
    assert not sawlog.store.open(run.store_path).segments  # nothing was logged
    with pytest.raises(CaptureError, match="examples"):
        run.check(step_of(program), program.batch, raises=True, quiet=True)


class Hidden(Centred):
    """A dependence that no gradient shows."""

    def forward(self, x):
        h = self.first(x)
        return self.last(torch.tanh(h + h.detach().mean(0)))


def test_a_dependence_that_no_gradient_shows(tmp_path):
    base = mlp()
    program = Program(Hidden().double(), base.batch, base.loss)
    found = checked(tmp_path, program)
    assert not found.ok
    assert {layer.verdict for layer in found.layers} == {"differs"}
    assert "depend on each other" in found.reasons[0]
    assert "first.weight" in str(found)
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match=r"2 of 2 layers:\n  first\.weight: differs"):
        run.extract(step_of(program), loader_of(program, 5), quiet=True)


def test_a_wrong_reduction(tmp_path):
    found = checked(tmp_path, mlp(), setup={"reduction": "sum"})
    assert {layer.verdict for layer in found.layers} == {"off by the factor 0.2"}
    assert "differ by one factor" in found.reasons[0]


def test_a_batch_whose_gradient_is_another(tmp_path):
    """Examples alone are right, and the batch by plain autograd has three times their sum."""
    program, sizes = mlp(), []

    def step(model, batch):
        sizes.append(len(batch[0]))
        return program.loss(model, *batch) * (3 if sizes.count(5) == 2 and sizes[-1] == 5 else 1)

    found = checked(tmp_path, program, step)
    assert sizes == [5, 5, 1, 1, 1, 1, 1]
    assert {layer.verdict for layer in found.layers} == {"does not add up to the batch"}
    assert found.worst < 1e-5
    assert [layer.batch for layer in found.layers] == pytest.approx([2 / 3] * len(found.layers))
    assert "do not add up to that of the batch" in found.reasons[0]
    assert "6.7e-01" in str(found)


def test_uneven_examples_add_up_to_the_batch(tmp_path):
    """Each has a scale of its own, one that counts nothing among them."""
    base = mlp()
    y = torch.tensor([0, -100, 2, 1, 1])
    weight = torch.tensor([0.2, 0.7, 1.3]).double()

    def loss(model, x, y):
        return F.cross_entropy(model(x), y, weight=weight, reduction="sum") / (
            weight[y.clamp(min=0)] * (y >= 0)
        ).sum().clamp(min=1e-9)

    program = Program(base.model, (base.batch[0], y), loss)
    found = checked(tmp_path, program, examples=100)
    assert found.ok, str(found)
    assert all(layer.batch is not None and layer.batch < 1e-5 for layer in found.layers)


def test_dropout_that_is_on(tmp_path):
    base = mlp()
    model = nn.Sequential(base.model, nn.Dropout(0.5)).double()
    found = checked(tmp_path, Program(model, base.batch, base.loss))
    assert not found.ok
    assert "Dropout is active (1)" in found.reasons[0]
    model.eval()
    assert checked(tmp_path / "eval", Program(model, base.batch, base.loss)).ok


def test_losses_that_depend_on_each_other(tmp_path):
    program = mlp()

    def step(model, batch):
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return losses + losses.detach().sum()

    found = checked(tmp_path, program, step)
    assert "The losses of the examples" in found.loss
    assert not found.ok


# -- batches of one -------------------------------------------------------------------------------


@dataclasses.dataclass
class Held:
    x: torch.Tensor
    scale: float = 2.0


Pair = collections.namedtuple("Pair", "x y")


def test_one_example_of_any_batch():
    x = torch.arange(12.0).reshape(3, 4)
    assert one_of(x, 2, 3).tolist() == x[2:].tolist()
    assert one_of(x.numpy(), 0, 3).tolist() == x[:1].tolist()
    assert [each.shape for each in one_of((x, x[:, 0]), 1, 3)] == [(1, 4), (1,)]
    assert one_of([x], 1, 3)[0].tolist() == x[1:2].tolist()
    assert isinstance(one_of(Pair(x, x), 1, 3), Pair)
    assert one_of(Held(x), 1, 3).x.tolist() == x[1:2].tolist()
    assert one_of(Held(x), 1, 3).scale == 2.0
    assert one_of({"a": {"b": x}, "c": ["u", "v", "w"], "d": 3}, 1, 3)["c"] == ["v"]
    assert [type(each) for each in one_of([x, 7, "u"], 1, 3)] == [torch.Tensor, int, str]
    first, second, third = one_of((x, [x, "v"], None), 2, 3)  # as many as there are examples
    assert (first.tolist(), second[0].tolist(), third) == (x[2:].tolist(), x[2:].tolist(), None)
    table = torch.ones(5, 2)
    found = one_of({"x": x, "table": table}, 1, 3)
    assert found["table"] is table  # for all examples alike
    assert one_of(torch.ones(7, 3, 2), 0, 3, axis=1).shape == (7, 1, 2)
    with pytest.raises(ArgumentError, match="cannot be cut into examples"):
        one_of("text", 0, 3)


def test_one_example_of_a_batch_of_transformers():
    from transformers import BatchEncoding

    batch = BatchEncoding({"input_ids": torch.arange(6).reshape(2, 3)})
    found = one_of(batch, 1, 2)
    assert isinstance(found, BatchEncoding)
    assert found["input_ids"].tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(
    ("step", "loader", "message"),
    [
        (None, [], "`step` must be a function"),
        (lambda model, batch: None, None, "`loader` must be an iterable of batches; got None"),
        (lambda model, batch: None, 3, "`loader` must be an iterable of batches; got 3"),
    ],
)
def test_a_step_and_a_loader_of_another_kind_are_refused(tmp_path, step, loader, message):
    run = sawlog.init("wrong", root=tmp_path)
    run.watch(torch.nn.Linear(2, 1), quiet=True)
    with pytest.raises(ArgumentError, match=message):
        run.extract(step, loader, quiet=True)
