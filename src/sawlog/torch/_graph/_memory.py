"""Where the memory of a tensor is."""

from __future__ import annotations

from torch import Tensor


def memory_of(tensor: Tensor) -> int | None:
    """Return where the memory of a tensor starts; None if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # such as inside transformations of torch.func
        return None
