"""Gradients that a plain training loop computes, with steps, and corrected by the optimizer."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sawlog
import sawlog.store
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Logs, training_influence
from sawlog.torch import TrainingCapture
from sawlog.torch._training import _training_capture
from sawlog.torch._training._averaged_gradients import averaging_divisor


def program():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3, bias=False))
    return model, torch.randint(0, 9, (8, 2)), torch.randint(0, 3, (8,))


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def grads(model, x, y):
    found = []
    for i in range(len(x)):
        loss = loss_of(model, x[i : i + 1], y[i : i + 1])
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    return [np.stack([each[k].numpy() for each in found]) for k in range(len(found[0]))]


def rows_of(path, epoch=0):
    (folder,) = (path / f"epoch-{epoch}" / "logs").glob("*")
    logs = Logs(folder)
    return np.asarray(logs.ids), logs.gather(logs.ids).rows()


def trained(tmp_path, optimizer_of, epochs=1, **options):
    """Train, and return the rows that each step should have, before its correction."""
    model, x, y = program()
    optimizer = optimizer_of(model)
    capture = TrainingCapture(model, "loop", root=tmp_path, optimizer=optimizer, **options)
    expected, step = {}, 0
    for epoch in range(epochs):
        for ids in torch.arange(8).split(4):
            state = {p: dict(own) for p, own in optimizer.state.items()}
            own = grads(model, x[ids], y[ids])
            expected[epoch, step] = (ids.numpy(), own, _copied(state), list(model.parameters()))
            with capture(ids, step=step, epoch=epoch):
                loss_of(model, x[ids], y[ids]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    capture.close()
    return capture.path, expected


def _copied(state):
    return {p: {n: torch.as_tensor(v).clone() for n, v in own.items()} for p, own in state.items()}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.99), eps=1e-6)


def test_a_plain_loop(tmp_path):
    path, expected = trained(tmp_path, sgd, epochs=2)
    for (epoch, step), (ids, own, *_) in expected.items():
        stored, rows = rows_of(path, epoch)
        order = [stored.tolist().index(i) for i in ids]
        for name, want in zip(("0.weight", "2.weight"), own, strict=True):
            np.testing.assert_allclose(rows[name][order], want, rtol=1e-5, atol=1e-7)
        found = sawlog.store.open(path / f"epoch-{epoch}" / "steps").gather(ids)
        assert np.asarray(found["step"]).tolist() == [step] * 4
        assert np.asarray(found["learning_rate"]).tolist() == [0.5] * 4
        assert np.asarray(found["share"]).tolist() == [0.25] * 4
    query = {name: np.ones((1, *each.shape[1:])) for name, each in rows_of(path)[1].items()}
    scores = training_influence(path, query)
    want = np.zeros(8)
    for ids, own, *_ in expected.values():
        want[ids] += 0.125 * sum(each.reshape(4, -1).sum(1) for each in own)
    order = [scores.ids.tolist().index(i) for i in range(8)]
    np.testing.assert_allclose(scores.values[0, order], want, rtol=1e-4, atol=1e-7)


def test_gradients_that_processes_average_have_a_smaller_share(tmp_path, monkeypatch):
    monkeypatch.setattr(_training_capture, "averaging_divisor", lambda model, parameters: 4.0)
    path, expected = trained(tmp_path, sgd)
    for (epoch, _), (ids, *_) in expected.items():
        found = sawlog.store.open(path / f"epoch-{epoch}" / "steps").gather(ids)
        assert np.asarray(found["share"]).tolist() == [0.0625] * 4


def test_positions_that_do_not_count(tmp_path):
    """The mask says by how many of them the loss of a batch divides."""
    model, x, y = program()
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 1]])
    capture = TrainingCapture(model, "loop", root=tmp_path, config={"reduction": "tokens"})
    with capture(range(4), step=0, mask=mask):
        each = nn.functional.cross_entropy(model(x[:4]), y[:4], reduction="none")
        ((each * mask.sum(1)).sum() / mask.sum()).backward()
    capture.close()
    expected = grads(model, x[:4], y[:4])
    ids, rows = rows_of(capture.path)
    for name, want in zip(("0.weight", "2.weight"), expected, strict=True):
        np.testing.assert_allclose(rows[name][np.argsort(ids)][:4], want, rtol=1e-4, atol=1e-6)


def test_learning_rates_of_schedulers(tmp_path):
    """The rate of a step is what the optimizer had, wherever the scheduler is called."""
    model, x, y = program()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    capture = TrainingCapture(model, "loop", root=tmp_path, optimizer=optimizer)
    for step, ids in enumerate(torch.arange(8).split(2)):
        with capture(ids, step=step):
            loss_of(model, x[ids], y[ids]).backward()
            if step < 3:
                optimizer.step()
                scheduler.step()
        if step == 3:
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()
    capture.close()
    found = sawlog.store.open(capture.path / "epoch-0" / "steps").gather(range(8))
    expected = np.repeat([0.5 / (step + 1) for step in range(4)], 2)
    np.testing.assert_allclose(found["learning_rate"], expected)
    assert not optimizer._optimizer_step_pre_hooks


def two_rates(model):
    last = {"params": model[2].parameters(), "lr": 0.25}
    return torch.optim.SGD([{"params": model[0].parameters()}, last], lr=0.5)


def the_last_layer(model):
    return torch.optim.SGD(model[2].parameters(), lr=0.25)


@pytest.mark.parametrize(
    ("optimizer_of", "said"), [(two_rates, "rates 0.5, 0.25 "), (the_last_layer, "rates 0.25, 0 ")]
)
def test_parameters_with_several_learning_rates(optimizer_of, said, tmp_path):
    """No single number is the rate of all of them; each of them alone has one."""
    with pytest.warns(UserWarning, match=said) as warned:
        path, _ = trained(tmp_path, optimizer_of)
    assert len(warned) == 1
    query = {name: np.ones((1, *each.shape[1:])) for name, each in rows_of(path)[1].items()}
    with pytest.raises(ArgumentError, match="if all watched parameters have the same"):
        training_influence(path, query)
    assert training_influence(path, query, weigh=False).values.shape == (1, 8)
    path, _ = trained(tmp_path / "last", optimizer_of, names="2*")
    found = sawlog.store.open(path / "epoch-0" / "steps").gather(range(8))
    assert np.asarray(found["learning_rate"]).tolist() == [0.25] * 8


def test_chosen_steps(tmp_path):
    for number, steps in enumerate((2, [0], lambda step: step == 0)):
        path, _ = trained(tmp_path / str(number), sgd, steps=steps)
        assert rows_of(path)[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("greatest", [False, True])
def test_second_moments_of_adam(tmp_path, greatest):
    """Those of each step, without the bias of the first ones; of AMSGrad the greatest so far.

    Each group of parameters has its own decay, and its own number that is added to the root.
    """
    decays, floors = (0.99, 0.9), (1e-6, 0.3)

    def optimizer(model):
        options = {"lr": 0.1, "amsgrad": greatest}
        each = zip(model.parameters(), decays, floors, strict=True)
        groups = [{"params": [p], "betas": (0.8, decay), "eps": eps} for p, decay, eps in each]
        return torch.optim.AdamW(groups, **options)

    path, expected = trained(tmp_path, optimizer, epochs=2, correct=True)
    assert rows_of(path)[0].tolist() == [4, 5, 6, 7]  # there are no moments before the first step
    kind = "max_exp_avg_sq" if greatest else "exp_avg_sq"
    for (epoch, step), (ids, own, state, parameters) in list(expected.items())[1:]:
        stored, rows = rows_of(path, epoch)
        order = [stored.tolist().index(i) for i in ids]
        each = zip(("0.weight", "2.weight"), own, parameters, decays, floors, strict=True)
        for name, want, parameter, decay, eps in each:
            moments = state[parameter][kind] / (1 - decay**step)
            scaled = want / (moments.sqrt() + eps).numpy()
            np.testing.assert_allclose(rows[name][order], scaled, rtol=1e-4, atol=1e-6)


def test_a_batch_that_was_logged_in_part(tmp_path):
    """Shares are those of the examples that are new, in a batch whose examples count unevenly."""
    model, x, y = program()
    weight = torch.tensor([1.0, 2.0, 5.0])
    y = torch.tensor([0, 1, 2, 0, 2, 1, 0, 0])
    capture = TrainingCapture(model, "loop", root=tmp_path, optimizer=sgd(model))
    for step, ids in enumerate(([0, 1, 2, 3], [3, 4, 1, 5])):
        rate = {"learning_rate": 0.125} if step else {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with capture(ids, step=step, **rate):
                nn.functional.cross_entropy(model(x[ids]), y[ids], weight).backward()
        assert len(caught) == step
    capture.close()
    ids, rows = rows_of(capture.path)
    for name, want in zip(("0.weight", "2.weight"), grads(model, x[ids], y[ids]), strict=True):
        np.testing.assert_allclose(rows[name], want, rtol=1e-5, atol=1e-7)
    steps = sawlog.store.open(capture.path / "epoch-0" / "steps").gather(range(6))
    found = {name: np.asarray(steps[name]).tolist() for name in steps}
    assert found["step"] == [0, 0, 0, 0, 1, 1]
    assert found["learning_rate"] == [0.5] * 4 + [0.125] * 2
    np.testing.assert_allclose(found["share"], [1 / 9, 2 / 9, 5 / 9, 1 / 9, 5 / 10, 2 / 10])
    query = {name: each[:2] for name, each in rows.items()}
    assert training_influence(capture.path, query, steps=range(1, 2)).ids.tolist() == [4, 5]


def test_a_parameter_that_has_no_moments_yet(tmp_path):
    """Its first step was not its own: nothing can be corrected before every layer had one."""
    model, x, y = program()
    optimizer = adam(model)
    capture = TrainingCapture(model, "loop", root=tmp_path, optimizer=optimizer, correct=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(3):
            with capture(range(8), step=step):
                (loss_of(model, x, y) if step else model[0](x).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(said) == 1
    assert "no state of 1 watched parameters, such as '2.weight'" in str(said[0].message)
    assert said[0].filename == __file__
    capture.close()
    assert not optimizer._optimizer_step_post_hooks
    steps = sawlog.store.open(capture.path / "epoch-0" / "steps").gather(range(8))
    assert np.asarray(steps["step"]).tolist() == [2] * 8


def test_projections_of_corrected_gradients(tmp_path):
    """Corrected and then projected: products of rows are those of the corrected gradients."""
    path, expected = trained(tmp_path, adam, correct=True, config={"compress": 9})
    _, rows = rows_of(path)
    _, own, state, parameters = expected[0, 1]
    for name, want, parameter in zip(("0.weight", "2.weight"), own, parameters, strict=True):
        moments = state[parameter]["exp_avg_sq"] / (1 - 0.99)
        flat = (want / (moments.sqrt() + 1e-6).numpy()).reshape(4, -1)
        got = rows[name].reshape(4, -1)
        np.testing.assert_allclose(got @ got.T, flat @ flat.T, rtol=1e-3, atol=1e-4)


class Replicated(DistributedDataParallel):
    """As in a job of several processes."""

    def __init__(self, module, processes):
        nn.Module.__init__(self)
        self.module, self.process_group = module, SimpleNamespace(size=lambda: processes)


def test_gradients_that_only_some_parts_of_a_model_average():
    one, two, rest = (nn.Linear(2, 2) for _ in range(3))
    model = nn.Sequential(Replicated(one, 4), Replicated(two, 4), rest)
    assert averaging_divisor(model, [*one.parameters(), *two.parameters()]) == 4
    assert averaging_divisor(model, rest.parameters()) == 1
    assert np.isnan(averaging_divisor(model, model.parameters()))
    rest.requires_grad_(False)
    assert averaging_divisor(model, model.parameters()) == 4


@pytest.mark.parametrize("case", ["a step without gradients", "frozen at first"])
def test_an_optimizer_whose_state_begins_later(case, tmp_path):
    model, x, y = program()
    optimizer = adam(model)
    capture = TrainingCapture(
        model, "loop", root=tmp_path, optimizer=optimizer, correct=True, names=["0"]
    )
    frozen = case == "frozen at first"
    if not frozen:
        optimizer.step()  # as before schedulers, which warn otherwise
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(4):
            model[0].requires_grad_(step > 1 or not frozen)
            with capture(range(8), step=step, epoch=step):
                loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    capture.close()
    assert capture.examples == (8 if frozen else 24)
    assert ["had no gradient yet" in str(each.message) for each in said] == [True] * frozen


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon(tmp_path):
    def muon(model):
        return torch.optim.Muon(list(model.parameters()), lr=0.1, weight_decay=0.0)

    path, expected = trained(tmp_path, muon, correct=True)
    _, rows = rows_of(path)
    _, own, state, parameters = expected[0, 1]
    for name, want, parameter in zip(("0.weight", "2.weight"), own, parameters, strict=True):
        momentum = state[parameter]["momentum_buffer"].double()
        left, values, right = torch.linalg.svd(momentum, full_matrices=False)
        kept = values > 1e-3 * values[0]
        left, right, values = left[:, kept].numpy(), right[kept].numpy(), values[kept].numpy()
        factor = max(1.0, momentum.shape[0] / momentum.shape[1]) ** 0.5
        if momentum.shape[0] > momentum.shape[1]:
            corrected, got = want @ right.T / values, rows[name] @ right.T
        else:
            corrected = np.einsum("ik,bij->bkj", left, want) / values[:, None]
            got = np.einsum("ik,bij->bkj", left, rows[name])
        np.testing.assert_allclose(got, factor * corrected, rtol=1e-3, atol=1e-3)


def test_what_is_refused(tmp_path):
    model = program()[0]
    with pytest.raises(ArgumentError, match="needs the optimizer"):
        TrainingCapture(model, "a", root=tmp_path, correct=True)
    with pytest.raises(ArgumentError, match="Statistics are those of one state"):
        TrainingCapture(model, "a", root=tmp_path, config={"statistic": "kfac"})
    with pytest.raises(ArgumentError, match="`steps` must be"):
        TrainingCapture(model, "a", root=tmp_path, steps=-1)
    part = torch.optim.Adam(model[0].parameters())
    with pytest.raises(ArgumentError, match="does not have the parameter"):
        TrainingCapture(model, "a", root=tmp_path, optimizer=part, correct=True)


@pytest.mark.parametrize(
    ("momentum", "message"),
    [(0.9, "neither Adam's nor that of Muon"), (0.0, "SGD has no second moments .* no state yet")],
)
def test_an_optimizer_that_does_not_correct(momentum, message, tmp_path):
    model, x, y = program()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    capture = TrainingCapture(model, "b", root=tmp_path, optimizer=optimizer, correct=True)
    for _ in range(2):  # two micro-batches of the first step
        with capture(range(8), step=0):
            loss_of(model, x, y).backward()
    optimizer.step()
    with pytest.raises(ArgumentError, match=message), capture(range(8), step=1):
        loss_of(model, x, y).backward()
    with pytest.raises(ArgumentError, match="No step was logged"):
        training_influence(tmp_path / "none", {"w": np.ones((1, 2))})
    unknown = TrainingCapture(model, "c", root=tmp_path)
    with unknown(range(8), step=0):
        loss_of(model, x, y).backward()
    with (
        pytest.warns(UserWarning, match="8 examples of a batch, such as 0"),
        unknown(range(8), step=1),
    ):
        loss_of(model, x, y).backward()
    unknown.close()
    query = {name: each[:1] for name, each in rows_of(unknown.path)[1].items()}
    with pytest.raises(ArgumentError, match="learning rate, or the share"):
        training_influence(unknown.path, query)
    assert training_influence(unknown.path, query, weigh=False).values.shape == (1, 8)


WAYS = {  # of dividing a loss, by what rows are multiplied, and shares; None is refused
    "divided": (lambda capture, loss: loss / 4, None, 1.0),
    "divided and reshaped": (lambda capture, loss: (loss.reshape(1) / 2).squeeze(), None, 1.0),
    "declared before": (lambda capture, loss: capture.declare_loss(loss) / 4, 1.0, 0.25),
    "declared after": (lambda capture, loss: capture.declare_loss(loss / 4), 0.25, 1.0),
    "a part of the loss": (lambda capture, loss: loss * 0.5, 0.5, 1.0),
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", WAYS)
def test_a_mean_that_is_divided(name, size, tmp_path):
    way, factor, share = WAYS[name]
    model, x, y = program()
    capture = TrainingCapture(model, "loop", root=tmp_path)
    if factor is None:
        message = "a mean that is divided by [24]. .* number of micro-batches"
        with pytest.raises(CaptureError, match=message), capture(range(size), step=0):
            way(capture, loss_of(model, x[:size], y[:size])).backward()
        return
    with capture(range(size), step=0):
        way(capture, loss_of(model, x[:size], y[:size])).backward()
    capture.close()
    _, rows = rows_of(capture.path)
    expected = grads(model, x[:size], y[:size])[1]
    np.testing.assert_allclose(rows["2.weight"], expected * factor, rtol=1e-5, atol=1e-7)
    steps = sawlog.store.open(capture.path / "epoch-0" / "steps").gather(range(size))
    np.testing.assert_allclose(steps["share"], [share / size] * size)
