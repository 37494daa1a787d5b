"""Arrays there and back: nothing is lost, nothing is copied that need not be."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from sawlog._array_device import (
    NUMPY,
    TORCH_CPU,
    ArrayDevice,
    as_tensor,
    device_named,
    device_of,
    to_numpy,
)

JAX = ArrayDevice("jax", "cpu:0")


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int16", "int64", "float16", "bfloat16"])
@pytest.mark.parametrize("place", [NUMPY, TORCH_CPU, JAX], ids=str)
def test_few_bits_become_float32_with_the_same_values(place, name):
    array = np.array([[0, 1, 3], [7, 2, 1]]).astype(getattr(ml_dtypes, name, name))
    assert place.holds(array.dtype)
    wide = place.single(array)
    assert device_of(wide).library == place.library
    assert to_numpy(wide).dtype == np.float32
    np.testing.assert_array_equal(to_numpy(wide), array.astype(np.float32))


def test_what_is_wide_stays_so():
    for dtype in (np.float32, np.float64):
        array = np.full((2, 2), 1 / 3, dtype)
        assert to_numpy(TORCH_CPU.single(array)).dtype == dtype
        assert NUMPY.single(array) is array
    assert as_tensor(array).data_ptr() == array.ctypes.data


def test_tensors_that_are_views_come_back_as_they_look():
    """Conjugated, negated, with a gradient, in types that numpy lacks."""
    made = torch.tensor([1 + 2j, 3 - 4j])
    np.testing.assert_array_equal(to_numpy(made.conj()), [1 - 2j, 3 + 4j])
    np.testing.assert_array_equal(to_numpy(made.conj().imag), [-2, 4])
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn):
        back = to_numpy(torch.tensor([0.5, -2.0]).to(dtype))
        assert (back.dtype, back.tolist()) == (np.float32, [0.5, -2.0])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_tensors_of_types_that_numpy_lacks(name):
    array = np.array([[0.5, -2.0], [1.0, 0.0]], getattr(ml_dtypes, name))
    for laid_out in (array, np.asfortranarray(array)):
        tensor = as_tensor(np.ascontiguousarray(laid_out))
        assert tensor.dtype == getattr(torch, name)
        assert tensor.float().tolist() == [[0.5, -2.0], [1.0, 0.0]]


def test_what_a_place_can_hold():
    double = np.dtype(np.float64)
    assert NUMPY.doubles
    assert TORCH_CPU.doubles
    assert not ArrayDevice("torch", "mps:0").doubles
    assert not ArrayDevice("torch", "mps").holds(double)
    assert TORCH_CPU.holds(double)
    for on in (False, True):
        with jax.enable_x64(on):
            assert JAX.doubles == JAX.holds(double) == on
    for name in ("uint16", "complex64", "U3"):
        assert NUMPY.holds(np.dtype(name))
        assert not TORCH_CPU.holds(np.dtype(name))
    assert not TORCH_CPU.holds(np.dtype(ml_dtypes.int4))


def test_products_are_as_precise_as_can_be(monkeypatch):
    asked = []
    plain = jnp.matmul

    def matmul(left, right, **options):
        asked.append(options)
        return plain(left, right, **options)

    monkeypatch.setattr(jnp, "matmul", matmul)
    left, right = np.array([[1.0, 2.0]], np.float32), np.array([[3.0], [5.0]], np.float32)
    for place in (NUMPY, TORCH_CPU, JAX):
        found = place.product(place.put(left), place.put(right))
        assert device_of(found).library == place.library
        assert to_numpy(found).tolist() == [[13.0]]
    assert asked == [{"precision": "highest"}]
    mixed = TORCH_CPU.product(torch.ones(1, 2, dtype=torch.float16), torch.ones(2, 1).double())
    assert mixed.dtype == torch.float64


def test_places_by_name():
    assert device_named(None) == device_named("numpy") == NUMPY
    assert device_named(TORCH_CPU) is TORCH_CPU
    assert device_named("cpu") == device_named(torch.device("cpu")) == TORCH_CPU
    last = jax.devices()[-1]
    assert device_named(last) == ArrayDevice("jax", f"cpu:{last.id}")
    there = device_named(last).put(np.ones(2))
    assert there.devices() == {last}
    assert device_of(there) == device_named(last)
    assert device_of([1.0]) == device_of(np.ones(1)) == NUMPY
