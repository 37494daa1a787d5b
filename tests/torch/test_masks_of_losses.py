"""Masks of positions: which belong to which example, and what counts."""

import torch

from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._masks import by_example


def test_a_mask_belongs_to_the_rows_of_the_labels():
    labels = torch.tensor([[2, 2], [0, 0], [1, 1]])
    mask = torch.tensor([[1, 0], [1, 1], [0, 0]])
    assert by_example(mask, labels, 3).tolist() == [2, 0, 1]
    assert by_example(mask[..., None].expand(3, 2, 4), labels, 3).tolist() == [8, 0, 4]
    assert by_example(mask.flatten(), labels.flatten(), 3).tolist() == [2, 0, 1]
    assert by_example(mask.reshape(3, 1, 2), labels, 3).tolist() == [2, 0, 1]
    assert by_example(mask.mT, labels, 3) is None
    assert by_example(mask[:2], labels, 3) is None
    assert by_example(mask[:, :1], labels, 3) is None
    assert by_example(mask[:0], labels[:0], 3).tolist() == [0, 0, 0]
    assert by_example(mask, labels[:0], 3) is None


def test_examples_without_positions_that_count_have_no_gradient():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    reader = LossReader(BatchSpec(3, mask=mask), "tokens", None)
    assert reader.declared().tolist() == [1.5, 0.0, 3.0]
