"""What is read from the graph of a loss: examples of rows, their scales, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sawlog.errors import ArgumentError, CaptureError, MixedExamplesError
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._autograd_graph import Graph, root_of
from sawlog.torch._hooks._autograd_patches import Backward
from sawlog.torch._loss._declared import Items
from sawlog.torch._loss._examples import Examples, normalises
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._masks import factors_of, sum_by_example
from sawlog.torch._loss._quotients import refuse_quotient
from sawlog.torch._loss._read_terms import terms_of
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._scale import is_even
from sawlog.torch._loss._terms import Term, agreed

WEIGHTS = torch.tensor([0.5, 1.5, 1.0]).double()
TARGETS = torch.tensor([0, 1, 1, 0])
SHARES = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]).double()


def numbers(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def assert_scaled(loss, outputs, *more, axis=0):
    """Compare with the gradient of each example's own loss."""
    batch = outputs.shape[axis]
    root = loss(outputs, *more)
    found = agreed(terms_of([root_of(root)], Examples(batch, axis)))
    (whole,) = torch.autograd.grad(root, outputs)
    scale = torch.as_tensor(found).double().expand(batch)
    for i in range(batch):
        own = outputs.detach().narrow(axis, i, 1).requires_grad_()
        parts = [each.narrow(axis if each.dim() > axis else 0, i, 1) for each in more]
        (expected,) = torch.autograd.grad(loss(own, *parts), own)
        torch.testing.assert_close(whole.narrow(axis, i, 1) * scale[i], expected)


def masked(outputs, mask):
    return (outputs.pow(2) * mask).sum() / mask.sum().clamp(min=1)


@pytest.mark.parametrize(
    ("loss", "shape", "more", "axis"),
    [
        (lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS), (4, 3), (TARGETS,), 0),
        (
            lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS, label_smoothing=0.1),
            (4, 3),
            (torch.tensor([0, 2, 1, 0]),),
            0,
        ),
        (
            lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS, label_smoothing=0.1),
            (4, 3, 5),
            (torch.tensor([[0, 1, 1, 2, 0], [0, 0, 1, 0, 0], [1, 2, 2, 1, 1], [0, 2, 2, 0, 1]]),),
            0,
        ),
        (  # the weights of the targets that count add up to the number of examples
            lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS, label_smoothing=0.1),
            (4, 3, 2),
            (torch.tensor([[1, 2], [-100, 2], [0, -100], [-100, -100]]),),
            0,
        ),
        (lambda z: (z**2).sum() / len(z) / 2, (4, 3), (), 0),
        (lambda z: (z**2).sum() / z.numel(), (3, 4, 5), (), 1),
        (lambda z: (z**2).mean(), (3, 4, 5), (), 1),
        (masked, (4, 3), (SHARES,), 0),
    ],
)
def test_scales(loss, shape, more, axis):
    """Weights whose total is the number of examples, factors around the count, another axis."""
    assert_scaled(loss, numbers(*shape), *more, axis=axis)


def test_a_quotient_that_two_counts_explain_differently_is_refused():
    """The mask counts as many positions as there are examples, in part as many of each."""
    outputs = numbers(4, 3)
    mask = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 1.0, 0], [0, 0, 0]]).double()
    with pytest.raises(ArgumentError, match="may be the number of examples, or of positions"):
        terms_of([root_of((outputs * mask).sum() / 4)], Examples(4))


def test_only_the_nearest_quotient_is_by_a_count():
    with pytest.raises(ArgumentError, match="a sum divided by 2"):
        terms_of([root_of((numbers(4, 3) ** 2).sum() / 2 / 4)], Examples(4))


def test_counts_of_declared_items():
    """An example without items has no row; a mask must count the items that were declared."""
    outputs = numbers(4, 3)
    items = Items.read(torch.tensor([2, 0, 1, 1]), 8, 1.0, 4)
    (term,) = terms_of([root_of((outputs**2).sum() / 8)], Examples(4), items=items)
    assert term.scale.tolist() == [4.0, 0.0, 8.0, 8.0]
    mask = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 1.0, 0], [0, 0, 0]]).double()
    with pytest.raises(ArgumentError, match="counts other items"):
        terms_of([root_of((outputs * mask).sum() / 8)], Examples(4), items=items)


def backward_of(losses, grad):
    return Backward((losses,), (grad,), None, lambda: None)


def test_gradients_that_are_all_ones_are_no_weights():
    losses = numbers(3) * 2
    reader = LossReader(BatchSpec(3), "auto", None)
    for grad in (None, torch.ones(3).double()):
        reader.check_grads(backward_of(losses, grad))
    for grad in ([1.0, 0.5, 1.0], [1.0, 1.0, 0.0], [2.0, 2.0, 2.0]):
        with pytest.raises(CaptureError, match="not all ones"):
            reader.check_grads(backward_of(losses, torch.tensor(grad).double()))
    LossReader(BatchSpec(3), "mean", None).check_grads(backward_of(losses, losses.detach()))


def test_a_factor_that_was_declared_is_taken_out():
    items = Items.read(torch.ones(4), None, 2.0, 4)
    outputs, targets = numbers(4, 3), TARGETS
    for loss in (lambda z: (z**2).mean() * 2, lambda z: F.cross_entropy(z, targets) * 2):
        (term,) = terms_of([root_of(loss(outputs))], Examples(4), items=items)
        assert term.scale == 2.0
    weighted = F.cross_entropy(outputs, targets, weight=WEIGHTS) * 2
    (term,) = terms_of([root_of(weighted)], Examples(4), items=items)
    each = WEIGHTS[targets]
    torch.testing.assert_close(term.scale, each.sum() / each / 2)


def test_one_loss_for_each_example_with_declared_items():
    items = Items.read(torch.ones(4), None, 1.0, 4)
    (term,) = terms_of([root_of(numbers(4) * 3)], Examples(4), items=items)
    assert term.scale == 1.0
    assert term.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "shape", "axis"),
    [
        (lambda z: z.sum(-3), (3, 4, 4), 1),
        (lambda z: z.sum(0), (3, 4, 4), 1),
        (lambda z: z.mean((0, 2)), (4, 4, 4), 1),
        (lambda z: z.sum(-1), (4, 4, 4), 1),
        (lambda z: z.flatten(0, 1) * 2, (3, 4, 5), 1),
        (lambda z: (z.flatten(0, 1) * 2).sum(1), (3, 4, 5), 1),
        (lambda z: z.flatten(0, 1) * 2, (4, 3, 5), 0),
        (lambda z: z[[2, 0, 3, 0]] * 2, (4, 3), 0),
    ],
)
def test_the_example_of_each_row(change, shape, axis):
    """Ask the operation itself: what goes in is the number of the example."""
    batch = shape[axis]
    place = (
        torch.arange(batch).double().reshape(*(1,) * axis, batch, *(1,) * (len(shape) - axis - 1))
    )
    given = place.expand(shape)
    per_row = change(given) / change(torch.ones(shape).double())
    found = Examples(batch, axis).of(root_of(change(numbers(*shape))))
    assert found is not None
    rows = found.reshape(*found.shape, *(1,) * (per_row.dim() - found.dim())).expand_as(per_row)
    assert torch.equal(rows.double(), per_row)


def test_rows_of_parameters_alone_are_those_of_a_table():
    weight, outputs = nn.Parameter(torch.ones(4, 3).double()), numbers(4, 3)
    for rows, expected in [
        (weight * 2, True),
        (weight * 2 + weight.exp(), True),
        (weight * 2 + outputs, False),
        (outputs + weight * 2, False),
        (outputs * 2, False),
    ]:
        assert Examples(4).is_table(root_of(rows)) is expected


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda z: z.flip((0, 1)), False),
        (lambda z: z.flip((1, 0)), False),
        (lambda z: z.flip(1), True),
        (lambda z: z.roll((1, 1), (0, 1)), False),
        (lambda z: z.index_select(0, torch.tensor([1, 0, 2, 3])), False),
        (lambda z: z.index_select(0, torch.tensor([0, 1, 3, 2])), False),
        (lambda z: z[torch.tensor([1, 0, 2, 3])], False),
        (lambda z: z.index_select(0, torch.tensor([0, 1, 2, 3])), True),
        (lambda z: torch.zeros_like(z).index_copy(0, torch.tensor([1, 0, 2, 3]), z), False),
    ],
)
def test_operations_that_move_one_example_only_a_little(change, same):
    root = root_of(change(numbers(4, 3)).pow(2).mean())
    if same:
        (term,) = terms_of([root], Examples(4))
        assert term.scale == 4.0
        return
    with pytest.raises(CaptureError, match="changes the order of the examples"):
        terms_of([root], Examples(4))


def test_positions_before_the_examples_may_be_written_in_any_order():
    outputs, order = numbers(5, 4, 3), torch.tensor([4, 2, 0, 1, 3])
    moved = torch.zeros_like(outputs).index_copy(0, order, outputs)
    (term,) = terms_of([root_of(moved.pow(2).mean())], Examples(4, 1))
    assert term.scale == 4.0


def test_examples_along_the_axis_of_the_classes_are_refused():
    outputs = numbers(3, 4, 1, 5)
    loss = F.nll_loss(outputs * 2, torch.zeros(3, 1, 5).long())
    with pytest.raises(MixedExamplesError, match="along the axis of the classes"):
        terms_of([root_of(loss)], Examples(4, 1))


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (lambda z: z.mean() / 2, True),
        (lambda z: F.mse_loss(z, torch.zeros_like(z)).reshape(1) / 3, True),
        (lambda z: z.mean() / 2.5, False),
        (lambda z: z.mean() / 1, False),
        (lambda z: z.mean() / 0.5, False),
        (lambda z: z.mean() / 2 / 2, False),
        (lambda z: z.sum() / 2, False),
    ],
)
def test_a_mean_by_an_integer(loss, refused):
    root = root_of(loss(numbers(4, 3)))
    if not refused:
        refuse_quotient(root)
        return
    with pytest.raises(CaptureError, match="mean that is divided by"):
        refuse_quotient(root)


def test_scales_agree_only_if_they_are_equal():
    edge, labels = root_of(numbers(2) * 2), torch.arange(2)

    def terms(*scales):
        return [Term(edge, edge, (), labels, scale) for scale in scales]

    assert agreed(terms(2.0, 2.0)) == 2.0
    assert agreed(terms(2.0, 3.0)) is None
    assert agreed(terms(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))) is None
    same = agreed(terms(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])))
    assert same.tolist() == [1.0, 2.0]
    assert agreed(terms(2.0, 2.0, 5.0)) is None


def test_even_losses_have_the_examples_in_order():
    joined = numbers(3).pow(2).mean()
    (term,) = terms_of([root_of(joined)], Examples(3))
    assert is_even(term, 3)
    moved = Term(term.root, term.edge, term.path, term.labels.flip(0), term.scale)
    assert not is_even(moved, 3)


def test_what_was_declared_is_the_scale_of_even_losses_too():
    loss = numbers(4, 3).pow(2).mean()
    roots = Roots([loss], [None])
    for reduction, expected in [("auto", 4.0), ("sum", 1.0), ("mean", 4.0)]:
        reader = LossReader(BatchSpec(4), reduction, None)
        assert reader.scale(roots, even=True)[0] == expected
        assert reader.scale(roots, even=False)[0] == expected
    single = LossReader(BatchSpec(1), "auto", None)
    single.items = Items.read(torch.tensor([3]), 12, 1.0, 1)
    summed = numbers(1, 3).pow(2).sum() / 12
    assert single.scale(Roots([summed], [None]), even=False)[0] == pytest.approx(4.0)


def test_gradients_of_a_loss_that_is_given_twice_are_added():
    loss = numbers(3).sum()
    other = numbers(2).sum()
    starts = Roots([loss, other, loss], [None, None, torch.tensor(2.0).double()]).starts()
    assert [float(each) for each in starts.values()] == [3.0, 1.0]


def test_a_product_of_two_that_are_trained_has_no_constant_factors():
    one, two, mask = numbers(4), numbers(4), torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
    assert factors_of((one * two).grad_fn) == []
    (found,) = factors_of((one * mask).grad_fn)
    assert torch.equal(found, mask)


def test_sums_over_rows_in_any_order():
    each = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    assert sum_by_example(each, torch.tensor([2, 0, 1, 0]), 4).tolist() == [1010.0, 100.0, 1.0, 0.0]


def test_an_even_loss_is_joined_by_its_only_operation():
    """Not by another one, and not at another of its inputs."""
    joined = numbers(3).pow(2).mean()
    (term,) = terms_of([root_of(joined)], Examples(3))
    ((node, _),) = term.path
    labels, other = term.labels, root_of(numbers(3).sum())
    assert not is_even(Term(other, term.edge, term.path, labels, 3.0), 3)
    assert not is_even(Term(term.root, term.edge, ((node, 1),), labels, 3.0), 3)
    assert not is_even(Term(term.root, term.edge, (), labels, 3.0), 3)
    (product,) = terms_of([root_of((numbers(3) * 2).mean())], Examples(3))
    assert not is_even(product, 3)


def test_a_loss_whose_rows_are_picked_is_read_in_every_batch():
    """The next batch may pick others, as often as there are examples."""
    reader, order = LossReader(BatchSpec(3), "auto", None), torch.arange(3)
    for loss, even in [
        (numbers(3).exp().mean(), True),
        (numbers(3).exp()[order].exp().mean(), False),
    ]:
        root = root_of(loss)
        stack, nodes = [root[0]], []
        while stack:
            nodes.append(stack.pop())
            stack += [child for child, _ in nodes[-1].next_functions if child is not None]
        graph = Graph(tuple(nodes), 0)
        terms = terms_of([root], Examples(3))
        assert reader.is_even(terms, graph) is even
        assert not LossReader(BatchSpec(3, views=2), "auto", None).is_even(terms, graph)
        assert not LossReader(BatchSpec(3, axis=1), "auto", None).is_even(terms, graph)
        assert not reader.is_even([*terms, *terms], graph)


def test_what_a_trainer_declares_counts_for_even_losses_too():
    reader = LossReader(BatchSpec(4), "auto", SimpleNamespace(edges=[], calls=[]))
    reader.items = Items.read(torch.ones(4), None, 2.0, 4)
    loss = numbers(4, 3).pow(2).mean()
    with pytest.raises(ArgumentError, match="not multiplied by 2"):
        reader.scale(Roots([loss], [None]), even=True)


def test_weights_of_a_declared_loss_are_constants():
    weights = torch.tensor([0.5, 1.5, 1.0]).double()
    terms = terms_of([root_of((numbers(3).exp() * weights).sum())], Examples(3))
    with pytest.raises(CaptureError, match="have the mean 1"):
        LossReader(BatchSpec(3), "auto", None).check_weights(terms)
    joined = terms_of([root_of(numbers(3).exp() @ weights)], Examples(3))
    with pytest.raises(CaptureError, match="have the mean 1"):
        LossReader(BatchSpec(3), "auto", None).check_weights(joined)
    LossReader(BatchSpec(3), "sum", None).check_weights(terms)
    LossReader(BatchSpec(1), "auto", None).check_weights(terms)


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_a_softmax_over_positions_of_one_example(function):
    labels = torch.tensor([[0, 0], [1, 1], [2, 2]])
    for dim, over_examples in [(0, True), (-3, True), (1, False), (2, False), (-1, False)]:
        node = function(numbers(3, 2, 4), dim).grad_fn
        assert normalises(node, labels) is over_examples
    assert not normalises(numbers(3, 2, 4).cumsum(0).grad_fn, labels)
    joined = numbers(3, 4, 5).flatten(0, 1).softmax(0)
    assert Examples(4, 1).of(root_of(joined)) is None
    apart = numbers(3, 4, 5).flatten(0, 1).softmax(1)
    assert Examples(4, 1).of(root_of(apart)).tolist() == [*range(4)] * 3


def test_items_of_targets_that_are_ignored():
    """Two examples with two positions each, one of which does not count."""
    items = Items.read(torch.tensor([2, 1]), 6, 1.0, 2)
    outputs, targets = numbers(2, 2, 3).flatten(0, 1), torch.tensor([0, 1, -100, 2])
    loss = F.cross_entropy(outputs, targets, reduction="sum") / 6
    (term,) = terms_of([root_of(loss)], Examples(2), items=items)
    assert term.scale.tolist() == [3.0, 6.0]


def test_all_counts_of_a_quotient_have_to_agree():
    """Two masks have one total; the examples differ in the second."""
    outputs = numbers(4, 3)
    one = torch.tensor([[1.0, 0, 0], [1.0, 1.0, 0], [1.0, 1.0, 1.0], [0, 0, 0]]).double()
    other = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0], [1.0, 0, 0], [0, 0, 0]]).double()
    with pytest.raises(ArgumentError, match="which may be the number of examples, or of positions"):
        terms_of([root_of((outputs * one * other).sum() / 6)], Examples(4))


@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (0, 2), (1, 0), (-1, -2)])
def test_the_example_of_each_row_of_a_transpose(axes):
    """Five examples on an axis whose number no other has."""
    for axis, shape in [(0, (5, 2, 3)), (1, (2, 5, 3))]:
        place = torch.arange(5.0).reshape(*(1,) * axis, 5, *(1,) * (2 - axis)).expand(shape)
        moved = (numbers(*shape) * 2).transpose(*axes)
        found = Examples(5, axis).of(root_of(moved))
        if found is None:
            continue
        rows = found.reshape(*found.shape, *(1,) * (3 - found.dim())).expand(moved.shape)
        assert torch.equal(rows.float(), place.transpose(*axes))
