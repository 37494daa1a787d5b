"""Sums over positions, codes of examples and operations that mix them, each on its own."""

import pytest
import torch
import torch.nn.functional as F

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import Staged
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._capture._batch_logs import BatchLogs
from sawlog.torch._graph._example_layout import codes
from sawlog.torch._graph._mixing import refuse_mixing
from sawlog.torch._graph._operations._products import outer_sums
from sawlog.torch._model._watched import Watched
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._projectors import Projectors
from sawlog.torch._rows._row_builder import RowBuilder

BLOCK = Block("fc.weight", ("fc.weight",), (3, 4), "right")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("labels", [[-1, 2, 0, 2, -1], [0, 0, 1, 1, 2], [3, -1, -1, -1, 3]])
def test_sums_of_products_over_positions_that_count(labels):
    left, right = random(5, 2), random(5, 3)
    found = outer_sums(left, right, torch.tensor(labels), 4)
    assert found.shape == (4, 2, 3)
    for number, own in enumerate(found):
        chosen = [place for place, label in enumerate(labels) if label == number]
        torch.testing.assert_close(own, left[chosen].T @ right[chosen])


@pytest.mark.parametrize(("batch", "powers"), [(5, True), (12, True), (5, False)])
def test_codes_name_the_examples_that_there_are(batch, powers):
    """A code of a larger batch is none of this one's."""
    every = codes(batch, {torch.float64}, 2, powers=powers)
    assert every.examples([each.clone() for each in every.factors]).tolist() == list(range(batch))
    if powers:
        more = codes(batch + 4, {torch.float64}, 2, powers=True)
        found = every.examples([each[: batch + 4] for each in more.factors])
        assert found.tolist() == [*range(batch), -1, -1, -1, -1]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_batch_norms_in_training_mix_examples(size):
    x, weight = random(size, 3), torch.ones(3).double().requires_grad_()

    def node(inputs, training):
        stats = torch.zeros(3).double(), torch.ones(3).double()
        return F.batch_norm(inputs, *stats, weight, training=training).grad_fn

    with pytest.raises(ArgumentError, match="normalises over the examples"):
        refuse_mixing([node(x, True)], size)
    refuse_mixing([node(x, False)], size)
    refuse_mixing([node(x, True)], 1)
    refuse_mixing([node(random(1, 3, 4), True)], size)


def test_embeddings_whose_gradients_are_divided_by_counts_mix_examples():
    table, words = random(5, 3).requires_grad_(), torch.tensor([0, 1, 1])
    divided = F.embedding(words, table, scale_grad_by_freq=True).grad_fn
    with pytest.raises(ArgumentError, match="scale_grad_by_freq"):
        refuse_mixing([divided], 3)
    refuse_mixing([divided], 1)
    refuse_mixing([F.embedding(words, table).grad_fn], 3)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("inputs", ["left", "right"])
@pytest.mark.parametrize("todo", [None, torch.tensor([False, True, True])])
def test_a_scaler_is_divided_out_of_rows_and_statistics(todo, inputs, whole):
    """``inputs`` is the side in this use, whatever that of the block is."""
    options = Options(statistic=["kfac", "mean"], precision="float64")
    batch, projectors = BatchSpec(3, todo), Projectors({BLOCK.name: (None, None)}, {})
    rows = RowBuilder(options, projectors, batch)
    statistics = BatchStatistics(options, projectors, batch)
    logs = BatchLogs(Watched((), (BLOCK,), {}, {}), options, batch, rows, statistics)
    logs.factor = 8.0
    if whole:  # each position is a row of the matrix
        left, right = torch.eye(3).double().expand(3, 3, 3), random(3, 3, 4)
        pair = Pair(OneHot(torch.arange(3).expand(3, 3), 3), Dense(right))
    else:
        left, right = random(3, 5, 3), random(3, 5, 4)
        pair = Pair(Dense(left), Dense(right))
    scale = torch.tensor([2.0, 4.0, 16.0]).double()
    logs.add_pair(BLOCK, pair, scale, inputs)
    own = torch.arange(3) if todo is None else todo.nonzero()[:, 0]
    products = torch.einsum("bpi,bpj,b->bij", left[own], right[own], scale[own] / 8)
    torch.testing.assert_close(rows.rows(BLOCK, len(own)), products)
    staged = Staged()
    statistics.add_to(staged, {}, [BLOCK], len(own))
    scaled_left = inputs == "right" and not whole
    for (_, found, _), each, scaled in zip(
        staged.sums, (left, right), (scaled_left, not scaled_left), strict=True
    ):
        by = (scale[own] / 8) ** 2 if scaled else torch.ones(len(own)).double()
        expected = torch.einsum("bpi,bpj,b->ij", each[own], each[own], by)
        found = found if found.dim() == 2 else torch.diag(found)  # of rows of the identity
        torch.testing.assert_close(found.to(expected), expected)
