"""Arrays of any library as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

# Floating-point dtypes of torch that numpy lacks.
_UNKNOWN_TO_NUMPY = ("torch.bfloat16", "torch.float8")


def to_numpy(array: Any) -> np.ndarray:
    """Return an array of numpy, torch or JAX, or a list of numbers, as a numpy array.

    A tensor of torch is detached and moved to the host; bfloat16 and float8 tensors become float32.
    Values of JAX whose dtype numpy lacks, such as PRNG keys, raise a TypeError. Memory is shared
    where possible, so the result must not be changed.

    >>> to_numpy([1.0, 2.0])
    array([1., 2.])
    """
    if type(array).__module__.partition(".")[0] == "torch" or _is_tensor(array):
        array = array.detach().cpu()
        if str(array.dtype).startswith(_UNKNOWN_TO_NUMPY):
            array = array.float()
        array = array.resolve_conj().resolve_neg()
    return np.asarray(array)


def _is_tensor(array: Any) -> bool:
    """Return whether a class derives from torch's tensor, without importing torch."""
    names = ((kind.__module__, kind.__name__) for kind in type(array).__mro__)
    return any(name == "Tensor" and module.startswith("torch") for module, name in names)
