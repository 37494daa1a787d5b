"""Losses that are declared: divided for accumulation, scaled, counted over several batches."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sawlog
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Logs
from sawlog.torch._graph._autograd_graph import root_of
from sawlog.torch._loss._declared import DeclaredLosses, Items
from sawlog.torch._loss._grad_scaler import ScaledLosses


def program(batch=4, positions=3, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 7)).to(dtype)
    x, y = torch.randn(batch, positions, 5, dtype=dtype), torch.randint(0, 7, (batch, positions))
    y[0, :2] = -100
    if batch > 1:
        y[1, 1:] = -100
    return model, x, y


def mean(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def total(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")


def alone(model, x, y):
    rows = []
    for i in range(len(x)):
        grads = torch.autograd.grad(mean(model, x[i : i + 1], y[i : i + 1]), [model[0].weight])
        rows.append(grads[0].numpy())
    return np.stack(rows)


def opened(tmp_path, model):
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    return run


def assert_alone(run, model, x, y, factor=1.0):
    run.finalize()
    rows = Logs(run.store_path).gather(range(len(x))).rows()["0.weight"][..., :5]
    np.testing.assert_allclose(rows, factor * alone(model, x, y), rtol=1e-5, atol=1e-7)


AFTERWARDS = {
    "divided": lambda loss: loss / 4,
    "multiplied": lambda loss: loss * 3.0,
    "several": lambda loss: -(2.0 * (loss / 3)) * torch.tensor(0.5),
    "a mean of one": lambda loss: loss.reshape(1).mean() / 7,
    "scaled": lambda loss: torch.amp.GradScaler("cpu", init_scale=1024.0).scale(loss / 2),
    "nothing": lambda loss: loss,
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_is_done_afterwards_is_no_part_of_rows(name, batch, tmp_path):
    model, x, y = program(batch)
    run = opened(tmp_path, model)
    with run(data_id=range(batch)):
        AFTERWARDS[name](run.declare_loss(mean(model, x, y))).backward()
    assert_alone(run, model, x, y)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize(("number", "times"), [(10, 1.0), (17, 2.0), (3.5, 4.0)])
def test_items_of_several_batches(batch, number, times, tmp_path):
    model, x, y = program(batch)
    run = opened(tmp_path, model)
    with run(data_id=range(batch)):
        run.declare_items((y != -100).sum(1), total=number, times=times)
        loss = total(model, x, y) / number * times
        (run.declare_loss(loss) / 2).backward()
    assert_alone(run, model, x, y)


@pytest.mark.parametrize("order", [(3.0, 2.0), (2.0, 3.0), (2.0, 2.0)])
def test_another_factor_beside_the_declared_one_is_part_of_the_loss(order, tmp_path):
    model, x, y = program()
    run = opened(tmp_path, model)
    with run(data_id=range(4)):
        run.declare_items((y != -100).sum(1), total=17, times=2.0)
        (total(model, x, y) / 17 * order[0] * order[1]).backward()
    assert_alone(run, model, x, y, factor=order[0] * order[1] / 2)


def test_items_without_targets_in_the_graph(tmp_path):
    """Only the declaration says how many of the losses count."""
    model, x, y = program()
    run = opened(tmp_path, model)
    with run(data_id=range(4)):
        logits = model(x).flatten(0, 1).log_softmax(-1)
        chosen = -logits.gather(1, y.flatten().clamp(min=0)[:, None]).reshape(y.shape)
        losses = torch.where(y == -100, torch.zeros(()), chosen)
        run.declare_items((y != -100).sum(1), total=40)
        (losses.sum() / 40).backward()
    assert_alone(run, model, x, y)


def test_the_same_structure_with_other_numbers(tmp_path):
    model, x, y = program()
    run = opened(tmp_path, model)
    for i, number in enumerate((9, 31)):
        own = slice(2 * i, 2 * i + 2)
        with run(data_id=range(4)[own]):
            run.declare_items((y[own] != -100).sum(1), total=number)
            run.declare_loss(total(model, x[own], y[own]) / number).backward()
    assert_alone(run, model, x, y)


def test_outside_of_a_batch_nothing_happens(tmp_path):
    model, x, y = program()
    run = opened(tmp_path, model)
    loss = mean(model, x, y)
    assert run.declare_loss(loss) is loss
    run.declare_items([1, 2])


def test_what_is_refused(tmp_path):
    model, x, y = program()
    run = opened(tmp_path, model)
    counts = (y != -100).sum(1)

    def logs(does):
        with run(data_id=range(4)):
            does()

    def other_loss():
        (run.declare_loss(mean(model, x, y)) + mean(model, x, y)).backward()

    def other_number():
        run.declare_items(counts, total=35)
        (total(model, x, y) / 12).backward()

    def not_multiplied():
        run.declare_items(counts, total=35, times=2.0)
        (total(model, x, y) / 35).backward()

    def multiplied_by_another():
        run.declare_items(counts, total=35, times=2.0)
        (total(model, x, y) / 35 * 3).backward()

    def other_mask():
        logits = model(x).log_softmax(-1).sum(-1).masked_fill(y == -100, 0.0)
        run.declare_items(counts + 1, total=35)
        (logits.sum() / 35).backward()

    with pytest.raises(CaptureError, match="not a multiple of the loss"):
        logs(other_loss)
    with pytest.raises(ArgumentError, match="sum divided by 12"):
        logs(other_number)
    with pytest.raises(ArgumentError, match="not multiplied by 2"):
        logs(not_multiplied)
    with pytest.raises(ArgumentError, match="not multiplied by 2"):
        logs(multiplied_by_another)
    with pytest.raises(ArgumentError, match="counts other items"):
        logs(other_mask)
    with pytest.raises(ArgumentError, match="one number for each of 4"):
        logs(lambda: run.declare_items([1, 2]))
    with pytest.raises(ArgumentError, match=r"`counts` must be non-negative numbers; got \[1.0, -"):
        logs(lambda: run.declare_items([1, -2, 1, 1]))
    with pytest.raises(ArgumentError, match=r"`counts` must be non-negative numbers; got .*nan"):
        logs(lambda: run.declare_items([1, math.nan, 1, 1]))
    with pytest.raises(ArgumentError, match="loss of one element"):
        logs(lambda: run.declare_loss(model(x)))


@pytest.mark.parametrize("total", [3.0, 7.5, 1e6])
def test_the_total_and_its_multiples_divide(total):
    """A mean over a vocabulary besides divides by a multiple of the total."""
    items = Items.read([1, 2], total, 1.0, 2)
    assert items.total == total
    for times in (1, 2, 7, 50_000):
        assert items.divides(times * total)
        assert items.divides(times * total * (1 + 1e-8))
        assert not items.divides((times + 0.3) * total)
    for other in (0.0, -total, total / 2, 1.5 * total, math.nan):
        assert not items.divides(other)
    assert not Items.read([0, 0], None, 1.0, 2).divides(1.0)


@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_what_a_declared_loss_is_multiplied_by(scale):
    x = torch.ones(3, requires_grad=True)
    loss, losses = (x**2).sum(), DeclaredLosses()
    losses.add(loss)
    ways = {
        "product": loss * scale,
        "quotient": (loss / 4) * (4 * scale),
        "shapes": (loss[None].expand(5).mean() * scale).reshape(1, 1),
        "sum": (-loss).expand(2).sum() * (-scale / 2),
    }
    for name, each in ways.items():
        assert losses.factor({root_of(each): torch.ones_like(each)}) == scale, name
    for other in (loss.exp(), loss * x.mean(), loss.sqrt() * scale, (x**2).sum(), loss + loss):
        with pytest.raises(CaptureError, match="not a multiple of the loss that was declared"):
            losses.factor({root_of(other): torch.ones_like(other)})


@pytest.mark.parametrize("given", [1.0, 4.0])
def test_the_factor_of_a_scaler_is_found_once(given):
    """Where the loss itself has a factor of the same size, that one is part of the loss."""
    scale, x = torch.tensor(4.0), torch.ones(3, requires_grad=True)
    inner = x.sum() * scale
    outer, scaled = inner * scale, ScaledLosses(given)
    if given == 1.0:  # as scaler.scale does
        scaled.add(outer, 4.0)
    assert scaled.factor_of([outer.grad_fn]) == 4.0
    assert scaled.factor_of([(-outer / 2 + outer).grad_fn]) == 4.0
    with pytest.raises(CaptureError, match="different factors"):
        scaled.factor_of([(outer + x.sum()).grad_fn])
    assert ScaledLosses().factor_of([outer.grad_fn]) == 1.0
