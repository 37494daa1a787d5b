"""Every gradient that is logged is that of a batch of one, or there is an error."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sawlog
from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._graph import _example_sums as _sums
from sawlog.torch._graph._autograd_graph import graph_of, root_of
from sawlog.torch._graph._example_layout import (
    ExampleLayout,
    candidates,
    codes,
    fits,
    labels_of,
    layout_of,
)
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._loss._examples import Examples
from sawlog.torch._proof._prover import Prover
from tests.thorough import often, seeded_examples

from .account_cases import REFUSED, RIGHT, SINGLE, Situation
from .programs import logged


def run_of(path, situation: Situation):
    run = sawlog.init(project="run", root=path)
    run.setup({"dtype": "float64", **situation.options})
    report = run.watch(situation.model, quiet=True, batch_axis=situation.axis, **situation.watch)
    return run, report


def step_of(run, situation: Situation, ids):
    situation.model.zero_grad()
    with run(data_id=ids, **situation.inside):
        return situation.step(situation.model, *situation.batch)


def alone(situation: Situation, i: int):
    model = copy.deepcopy(situation.model)
    model.zero_grad()
    if situation.unscaled is None:
        situation.step(model, *situation.part(i))
    else:
        situation.unscaled(model, *situation.part(i)).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad / situation.factor
        for name, p in model.named_parameters()
    }


def worst(situation: Situation, found, first=0) -> float:
    """How far a row is off, relative to its size, or to a thousandth of the greatest."""
    apart = 0.0
    for i in range(situation.ids):
        expected = alone(situation, i)
        most = max(float(each.norm()) for each in expected.values())
        for name, rows in found.items():
            row = torch.from_numpy(np.asarray(rows[i], np.float64)).reshape(expected[name].shape)
            size = max(float(expected[name].norm()), 1e-3 * most, 1e-12)
            apart = max(apart, float((row - expected[name]).norm()) / size)
    return apart


@pytest.mark.filterwarnings("ignore:torch.cpu.amp:FutureWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_rows_are_those_of_a_batch_of_one(tmp_path, name):
    torch.manual_seed(0)
    situation = RIGHT[name]()
    plain = copy.deepcopy(situation.model)
    expected = situation.step(plain, *situation.batch)
    run, report = run_of(tmp_path, situation)
    for start in (0, 100):  # proven first, then taken as planned
        result = step_of(run, situation, np.arange(start, start + situation.ids))
        assert torch.equal(result, expected)
        pairs = zip(situation.model.parameters(), plain.parameters(), strict=True)
        for watched, other in pairs:
            assert (watched.grad is None) == (other.grad is None)
            assert watched.grad is None or torch.equal(watched.grad, other.grad)
    run.finalize()
    for start in (0, 100):
        found = logged(run, report, range(start, start + situation.ids))
        assert len(found) >= 1
        assert worst(situation, found) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_an_error(tmp_path, name):
    torch.manual_seed(0)
    make, said = REFUSED[name]
    situation = make()
    run, _ = run_of(tmp_path, situation)
    with pytest.raises((ArgumentError, CaptureError), match=said):
        step_of(run, situation, np.arange(situation.ids))
    run.finalize()


def test_a_known_structure_is_not_proven_again(tmp_path, monkeypatch):
    proven = []
    original = Prover.prove
    monkeypatch.setattr(Prover, "prove", lambda *args: proven.append(1) or original(*args))
    torch.manual_seed(0)
    situation = RIGHT["an_output_for_all_examples_is_summed"]()
    run, _ = run_of(tmp_path, situation)
    for start in range(0, 40, 10):
        step_of(run, situation, np.arange(start, start + situation.ids))
    assert len(proven) == 1
    situation.model._forward = lambda m, x: m.out(torch.tanh(x).mean(1))
    step_of(run, situation, np.arange(50, 50 + situation.ids))
    assert len(proven) == 2
    run.finalize()


def test_a_rule_that_is_wrong_is_found_out(tmp_path, monkeypatch):
    """The rows are then those of the operation itself."""
    from sawlog.torch._layers._linear import LinearRule

    original = LinearRule.pairs

    def pairs(self, module, use):
        found = dict(original(self, module, use))
        return {"weight": found["weight"].scaled(torch.tensor([1, 1, 1, 1, 1.01]).double())}

    monkeypatch.setattr(LinearRule, "pairs", pairs)
    torch.manual_seed(0)
    situation = RIGHT["soft_targets"]()
    run, report = run_of(tmp_path, situation)
    step_of(run, situation, np.arange(5))
    run.finalize()
    assert worst(situation, logged(run, report, range(5))) < 1e-5


def test_the_comparison_can_fail():
    torch.manual_seed(0)
    situation = RIGHT["soft_targets"]()
    rows = [alone(situation, i) for i in range(5)]
    found = {name: torch.stack([row[name] for row in rows]).numpy() for name in rows[0]}
    assert worst(situation, found) == 0
    found["0.weight"][2] *= 1.0001
    assert worst(situation, found) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(tmp_path, dtype):
    torch.manual_seed(0)
    situation = RIGHT["class_tokens_and_prompts"]()
    exact = copy.deepcopy(situation)
    situation.model.to(dtype)
    situation.batch = tuple(
        each.to(dtype) if each.is_floating_point() else each for each in situation.batch
    )
    run, report = run_of(tmp_path, situation)
    step_of(run, situation, np.arange(situation.ids))
    run.finalize()
    limit = 2e-3 if dtype == torch.float32 else 0.3
    assert worst(exact, logged(run, report, range(situation.ids))) < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ignored_targets_in_lower_precision(tmp_path, dtype):
    """A mean over the 2 of 4 targets that count, whose number low precision may not hold."""
    torch.manual_seed(0)
    situation = RIGHT["a_target_that_is_ignored"]()
    exact = copy.deepcopy(situation)
    situation.model.to(dtype)
    run, report = run_of(tmp_path, situation)
    step_of(run, situation, np.arange(situation.ids))
    run.finalize()
    found = logged(run, report, range(situation.ids))
    assert worst(exact, found) < (1e-4 if dtype == torch.float32 else 0.1)
    counted = [bool(rows.any()) for rows in found["out.weight"]]
    assert counted == [True, False, False, True]


AT_ONCE = [
    "a_cell_with_two_states",
    "a_lookup_from_the_end",
    "a_lookup_with_padding",
    "experts_that_are_looked_up",
    "experts_that_tokens_are_routed_to",
    "layers_as_functions",
    "the_last_state_of_a_gru",
    "views_of_weights",
    "weights_made_of_others",
]


@pytest.mark.parametrize("name", [*SINGLE, *AT_ONCE])
def test_all_examples_are_differentiated_at_once(tmp_path, monkeypatch, name):
    def never(use, *args):
        raise AssertionError(f"one by one: {use.name}")

    monkeypatch.setattr(_sums, "_one_by_one", never)
    torch.manual_seed(0)
    situation = {**SINGLE, **RIGHT}[name]()
    if name in SINGLE:
        situation.model.float()
        x, y = situation.batch
        situation.batch = (x.float(), y)
    run, report = run_of(tmp_path, situation)
    for start in (0, 100):
        step_of(run, situation, np.arange(start, start + situation.ids))
    run.finalize()
    for start in (0, 100):
        found = logged(run, report, range(start, start + situation.ids))
        assert worst(situation, found) < (1e-3 if name in SINGLE else 1e-5)


# -- which elements belong to which example -------------------------------------------------------


@seeded_examples(20, 200)
@given(
    st.integers(2, 6),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_layouts_are_measured(batch, each, minor, axis, dtype):
    shape = [3, 7, 5]
    shape[axis] = batch * each
    layout = ExampleLayout(axis, minor)
    every = codes(batch, {dtype}, 2)
    plain = torch.randn(shape).to(dtype)
    coded = [plain * layout.spread(f, shape).to(dtype) for f in every.factors]
    assert fits(layout, plain, coded, every)
    numbers = layout.spread(torch.arange(batch), shape).expand(shape)
    assert torch.equal(labels_of(plain, coded, every), numbers)
    if axis < 2 or each == 1:
        found = layout_of(plain, coded, every, 0, batch)
        assert torch.equal(found.spread(torch.arange(batch), shape).expand(shape), numbers)
    split = layout.split(numbers, batch)
    assert all(bool((split[b] == b).all()) for b in range(batch))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", range(2, often(9, 40)))
def test_a_mean_over_examples_is_of_none_of_them(batch, dtype):
    every = codes(batch, {dtype}, 2)
    plain = torch.ones(batch, 4).to(dtype)
    mixed = [torch.full((batch, 4), float(f.mean())).to(dtype) for f in every.factors]
    assert labels_of(plain, mixed, every) is None
    assert not any(fits(each, plain, mixed, every) for each in candidates((batch, 4), 0, batch))


def test_as_many_examples_as_there_are():
    for batch in (1, 2, 10, 11, 400, 700, 1500):
        for dtype in (torch.float32, torch.bfloat16):
            every = codes(batch, {dtype})
            plain = torch.randn(batch, 2).to(dtype)
            coded = [plain * f[:, None].to(dtype) for f in every.factors]
            found = labels_of(plain, coded, every)
            assert torch.equal(found, torch.arange(batch)[:, None].expand(batch, 2))


def test_outputs_are_never_replaced(tmp_path):
    """Not even one that is the same for all examples."""
    model = nn.Sequential(nn.Embedding(5, 3)).double()
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    with run(data_id=range(4)):
        out = model(torch.arange(5)[None])
        assert out.shape == (1, 5, 3)
        (out.sum(0) * torch.ones(4, 5, 3).double()).sum((1, 2)).mean().backward()
    run.finalize()


@pytest.mark.filterwarnings("ignore:torch.cpu.amp:FutureWarning")
@pytest.mark.parametrize("sizes", ["all, then one", "one, then all"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_batch_of_one_has_the_gradient_of_the_batch(tmp_path, name, sizes):
    """As the last batch of a loader is, or each batch of a query."""
    torch.manual_seed(0)
    whole = RIGHT[name]()
    one = dataclasses.replace(whole, batch=whole.part(1), ids=1)
    run, report = run_of(tmp_path, whole)
    order = [(whole, 0), (one, 50), (one, 60)]
    for situation, start in order if sizes == "all, then one" else order[::-1]:
        step_of(run, situation, np.arange(start, start + situation.ids))
    run.finalize()
    for situation, start in order:
        found = logged(run, report, range(start, start + situation.ids))
        assert worst(situation, found) < 1e-5


class Chosen(nn.Module):
    """One of two tables that are used in the same way."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.heads = nn.ParameterList([nn.Parameter(torch.randn(3, 4)) for _ in range(2)])
        self.head = 0

    def forward(self, x):
        return nn.functional.linear(self.layer(x), self.heads[self.head])


def test_the_same_operations_on_another_parameter_are_another_graph(tmp_path):
    torch.manual_seed(0)
    model = Chosen().double()
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(dtype="float64")
    report = run.watch(model, ["layer", "heads.1"], quiet=True, uncovered="func")
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    sums = []
    for turn, head in enumerate((1, 0, 1)):
        model.head = head
        model.zero_grad()
        with run(data_id=range(3 * turn, 3 * turn + 3)):
            nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        grad = model.heads[1].grad
        sums.append(torch.zeros(3, 4) if grad is None else grad.clone())
    run.finalize()
    rows = logged(run, report, range(9))["heads.1"].reshape(3, 3, 3, 4)
    assert np.allclose(rows.sum(1), torch.stack(sums).numpy())
    assert rows[0].any()
    assert not rows[1].any()


def test_paths_that_meet_are_walked_once():
    """Each sum has two ways to the one before, which is a thousand million in all."""
    x = y = torch.randn(6, 3, requires_grad=True)
    for _ in range(30):
        y = y + torch.tanh(y)
    assert Examples(4).of(root_of(y)) is None
    assert Examples(6).of(root_of(y)).tolist() == list(range(6))
    order = torch.tensor([0, 2, 2, 1, 5, 4])
    assert Examples(6).of(root_of((x + y[order]) * 2)).tolist() == order.tolist()


def test_outputs_of_a_node_are_told_apart():
    first, *others = torch.randn(6, requires_grad=True).split(2)
    structures = {graph_of([(first * each).grad_fn]).structure for each in others}
    assert len(structures) == 2


def test_tensors_of_a_transformation_are_no_buffers():
    class Finished(torch.Tensor):  # as torch.func.jvp leaves them in a graph
        def untyped_storage(self):
            raise RuntimeError("Attempted to access the data pointer on an invalid python storage.")

    assert memory_of(torch.ones(2).as_subclass(Finished)) is None
    assert memory_of(torch.ones(2)) is not None
