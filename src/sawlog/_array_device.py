"""Where arrays are: with numpy, or with torch or JAX on one of their devices.

What is written against the array API runs on any of them. This is the one place that knows how to
get an array of numpy there and back.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from sawlog._optional import require
from sawlog.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class ArrayDevice:
    """A library, and the name of one of its devices, such as ``"cuda:0"``; can be pickled."""

    library: str = "numpy"
    device: str = "cpu:0"

    @property
    def doubles(self) -> bool:
        """Whether there is float64: not on some devices, nor in JAX unless it is allowed."""
        if self.library == "jax":
            return bool(require("jax", "jax", "device=").config.jax_enable_x64)
        return self.library == "numpy" or not self.device.startswith("mps")

    def holds(self, dtype: np.dtype) -> bool:
        """Whether numbers of that dtype can be there, with all of their digits."""
        if dtype == np.float64 and not self.doubles:
            return False
        return self.library == "numpy" or dtype.name in _EVERYWHERE

    def put(self, array: np.ndarray) -> Any:
        """An array of numpy there; without a copy where that is possible, so not to be changed."""
        if self.library == "torch":
            return as_tensor(array).to(self.device)
        if self.library == "jax":
            jax = require("jax", "jax", "device=")
            platform, _, number = self.device.rpartition(":")
            there = {each.id: each for each in jax.local_devices(backend=platform)}
            return jax.device_put(array, there[int(number)])
        return array

    def single(self, array: np.ndarray) -> Any:
        """The same there in float32, or float64 if it is that."""
        moved = self.put(array)
        if array.dtype == np.float64 or array.dtype == np.float32:
            return moved
        return moved.float() if self.library == "torch" else moved.astype(np.float32)

    def product(self, left: Any, right: Any) -> Any:
        """The matrix product in the dtype of ``right``, in all of the precision that this has.

        That of torch is as precise as torch was told to be: ``set_float32_matmul_precision``.
        """
        if self.library == "torch":
            return left.to(right.dtype) @ right
        if self.library == "numpy":
            return left @ right
        jax = require("jax", "jax", "device=")
        return jax.numpy.matmul(left, right, precision="highest")


_EVERYWHERE = {"bool", "int8", "uint8", "int16", "int32", "int64"}
_EVERYWHERE |= {"float16", "bfloat16", "float32", "float64"}

NUMPY = ArrayDevice()
TORCH_CPU = ArrayDevice("torch", "cpu")


def device_of(array: Any) -> ArrayDevice:
    """Where an array is; what is no array of torch or JAX counts as numpy's."""
    if is_torch_array(array):
        return ArrayDevice("torch", str(array.device))
    if is_jax_array(array):
        device = min(array.devices(), key=lambda each: each.id)
        return ArrayDevice("jax", f"{device.platform}:{device.id}")
    return NUMPY


def device_named(device: Any) -> ArrayDevice:
    """The place that is meant: a device of torch or its name, one of JAX, or ``"numpy"``.

    Raises:
        ArgumentError: it is nothing of this, or there is no such device here.
    """
    if device is None or device == "numpy" or isinstance(device, ArrayDevice):
        return device if isinstance(device, ArrayDevice) else NUMPY
    if hasattr(device, "platform") and hasattr(device, "id"):
        return ArrayDevice("jax", f"{device.platform}:{device.id}")
    known = isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch"
    place = ArrayDevice("torch", str(device))
    try:
        if known:
            to_numpy(place.put(np.zeros(1, np.float32)))
            return place
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise ArgumentError(
            f"device={device!r} is not here: {str(error).splitlines()[0].rstrip('.')}. Hint: "
            '"numpy" always is.'
        ) from error
    raise ArgumentError(
        'device is "numpy", a device of torch or its name such as "cuda:0", or one of '
        f"jax.devices(), got {device!r}."
    )


def to_numpy(array: Any) -> np.ndarray:
    """As numpy has it, wherever it is; floating-point types that numpy lacks become float32."""
    if is_torch_array(array):
        array = array.detach().cpu()
        if str(array.dtype).startswith(_UNKNOWN_TO_NUMPY):
            array = array.float()
        array = array.resolve_conj().resolve_neg()
    return np.asarray(array)


_UNKNOWN_TO_NUMPY = ("torch.bfloat16", "torch.float8")


def as_tensor(array: np.ndarray) -> Any:
    """A tensor on the same memory, also for the dtypes that numpy has from ml_dtypes."""
    torch: Any = require("torch", "torch", "a tensor of torch")
    with warnings.catch_warnings():  # that a view of a file cannot be written to
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype.type.__module__ != "ml_dtypes":
            return torch.from_numpy(np.ascontiguousarray(array))
        like = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(like)).view(getattr(torch, array.dtype.name))
