"""Array libraries and their devices: numpy, torch and JAX.

Code that is written against the array API runs on any of them. Only this module knows how to move
arrays from numpy to a device and back.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from sawlog._arrays import to_numpy as to_numpy
from sawlog._optional import require
from sawlog.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class ArrayDevice:
    """An array library and one of its devices; can be pickled.

    Args:
        library: ``"numpy"``, ``"torch"`` or ``"jax"``.
        device: The name of the device, such as ``"cuda:0"``.
    """

    library: str = "numpy"
    device: str = "cpu:0"

    @property
    def doubles(self) -> bool:
        """Whether float64 is supported; JAX needs ``jax_enable_x64``."""
        if self.library == "jax":
            return bool(require("jax", "jax", "device=").config.jax_enable_x64)
        return self.library == "numpy" or not self.device.startswith("mps")

    def holds(self, dtype: np.dtype) -> bool:
        """Return whether the device supports a dtype without loss of precision."""
        if dtype == np.float64 and not self.doubles:
            return False
        return self.library == "numpy" or dtype.name in _PORTABLE

    def put(self, array: np.ndarray) -> Any:
        """Move a numpy array to the device, without a copy if possible; do not modify it."""
        if self.library == "torch":
            return as_tensor(array).to(self.device)
        if self.library == "jax":
            jax = require("jax", "jax", "device=")
            platform, _, number = self.device.rpartition(":")
            devices = {each.id: each for each in jax.local_devices(backend=platform)}
            return jax.device_put(array, devices[int(number)])
        return array

    def single(self, array: np.ndarray) -> Any:
        """Move a numpy array to the device as float32; float64 stays float64."""
        moved = self.put(array)
        if array.dtype == np.float64 or array.dtype == np.float32:
            return moved
        return moved.float() if self.library == "torch" else moved.astype(np.float32)

    def product(self, left: Any, right: Any) -> Any:
        """Return the matrix product in the dtype and full precision of ``right``.

        The precision of torch depends on ``torch.set_float32_matmul_precision``.
        """
        if self.library == "torch":
            return left.to(right.dtype) @ right
        if self.library == "numpy":
            return left @ right
        jax = require("jax", "jax", "device=")
        return jax.numpy.matmul(left, right, precision="highest")


_PORTABLE = {"bool", "int8", "uint8", "int16", "int32", "int64"}
_PORTABLE |= {"float16", "bfloat16", "float32", "float64"}

NUMPY = ArrayDevice()
TORCH_CPU = ArrayDevice("torch", "cpu")


def device_of(array: Any) -> ArrayDevice:
    """Return the device of an array; numpy for anything but torch and JAX arrays."""
    if is_torch_array(array):
        return ArrayDevice("torch", str(array.device))
    if is_jax_array(array):
        device = min(array.devices(), key=lambda each: each.id)
        return ArrayDevice("jax", f"{device.platform}:{device.id}")
    return NUMPY


def device_named(device: Any) -> ArrayDevice:
    """Return the device that a user named.

    Args:
        device: ``"numpy"`` or None; a torch device or its name; a JAX device; or an ArrayDevice.

    Raises:
        ArgumentError: The value has another type, or the device is not available.
    """
    if device is None or device == "numpy" or isinstance(device, ArrayDevice):
        return device if isinstance(device, ArrayDevice) else NUMPY
    if hasattr(device, "platform") and hasattr(device, "id"):
        return ArrayDevice("jax", f"{device.platform}:{device.id}")
    known = isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch"
    named = ArrayDevice("torch", str(device))
    try:
        if known:
            to_numpy(named.put(np.zeros(1, np.float32)))
            return named
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise ArgumentError(
            f"device={device!r} is not available: {str(error).splitlines()[0].rstrip('.')}. Hint: "
            'device="numpy" always is.'
        ) from error
    raise ArgumentError(
        '`device` must be "numpy", a torch device or its name such as "cuda:0", or one of '
        f"jax.devices(); got {device!r}."
    )


def as_tensor(array: np.ndarray) -> Any:
    """Return a torch tensor that shares memory with an array, also for dtypes of ml_dtypes."""
    torch: Any = require("torch", "torch", "a tensor of torch")
    with warnings.catch_warnings():  # memory maps are read-only
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.dtype.type.__module__ != "ml_dtypes":
            return torch.from_numpy(np.ascontiguousarray(array))
        like = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(like)).view(getattr(torch, array.dtype.name))
