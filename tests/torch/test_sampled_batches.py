"""Which examples a sampler drew for a batch: none of an earlier pass, and as many as it has."""

import numpy as np
import pytest
import torch

from sawlog.errors import ArgumentError
from sawlog.torch._sampled_batches import _indices, _Recorder


def test_a_pass_that_was_broken_off_leaves_nothing():
    recorder = _Recorder([[4, 1], [0], [2, 3]])
    for _, first in zip(range(2), recorder, strict=False):
        assert first in recorder.drawn
    assert len(recorder) == 3
    assert list(recorder) == [[4, 1], [0], [2, 3]]
    found = [_indices(recorder, torch.zeros(size, 7)).tolist() for size in (2, 1, 2)]
    assert found == [[4, 1], [0], [2, 3]]
    with pytest.raises(ArgumentError, match="does not use its sampler"):
        _indices(recorder, torch.zeros(2, 7))


@pytest.mark.parametrize("drawn", [[4, 1], (4, 1), np.array([4, 1]), torch.tensor([4, 1])])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_as_many_as_the_batch_has(drawn, size):
    recorder = _Recorder([])
    recorder.drawn.append(drawn)
    batch = {"x": torch.zeros(size, 7)}
    if size == 2:
        assert _indices(recorder, batch).tolist() == [4, 1]
        return
    with pytest.raises(ArgumentError, match=f"drew 2 examples for a batch that has {size}"):
        _indices(recorder, batch)
