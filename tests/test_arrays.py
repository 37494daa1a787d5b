"""One ``to_numpy``, for arrays of every library."""

import numpy as np
import pytest

from sawlog._arrays import to_numpy
from tests.left_out import LEFT_OUT


def test_numpy_and_lists():
    array = np.arange(3)
    assert to_numpy(array) is array
    assert to_numpy([[1, 2]]).tolist() == [[1, 2]]
    assert to_numpy(2.5).shape == ()


@pytest.mark.skipif("torch" in LEFT_OUT, reason="needs torch, which is left out")
def test_tensors():
    import torch

    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert to_numpy(weight * 2).tolist() == [[2.0] * 3] * 2
    assert to_numpy(weight).dtype == np.float32
    small = torch.tensor([0.5, -1.0], dtype=torch.bfloat16)
    assert (to_numpy(small).dtype, to_numpy(small).tolist()) == (np.float32, [0.5, -1.0])
    turned = torch.tensor([1 + 2j]).conj()
    assert to_numpy(turned).tolist() == [1 - 2j]
    assert to_numpy(turned.imag).tolist() == [-2.0]


@pytest.mark.skipif("jax" in LEFT_OUT, reason="needs jax, which is left out")
def test_arrays_of_jax():
    import jax

    assert to_numpy(jax.numpy.arange(3)).tolist() == [0, 1, 2]
    assert to_numpy(jax.numpy.ones(2, "bfloat16")).dtype.name == "bfloat16"
    with pytest.raises(TypeError):
        to_numpy(jax.random.key(0))
