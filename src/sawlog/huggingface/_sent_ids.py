"""Ids that are texts, as tensors, where one process reads a stream and sends batches to the others.

Accelerate joins the batches of all processes and splits them again, which only tensors of one width
stand.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sawlog.errors import ArgumentError

WIDTH = 256  # bytes of an id


def encoded_ids(ids: np.ndarray) -> Tensor:
    """Return ids as ``uint8[batch, 256]``.

    >>> decoded_ids(encoded_ids(np.array(["a", "é"])).numpy()).tolist()
    ['a', 'é']

    Raises:
        ArgumentError: an id is too long.
    """
    texts = [str(each).encode() for each in ids.tolist()]
    for text in texts:
        if len(text) > WIDTH or text.endswith(b"\0"):
            raise ArgumentError(
                f"One process reads the stream for all, and sends ids of at most {WIDTH} bytes; "
                f"{text[:40].decode(errors='replace')!r}... has {len(text)}. Hint: "
                'TrainingArguments(accelerator_config={"dispatch_batches": False}), or a column of '
                "shorter ids."
            )
    return torch.from_numpy(np.array(texts, f"S{WIDTH}")[:, None].view(np.uint8).copy())


def decoded_ids(sent: np.ndarray) -> np.ndarray:
    """Return what :func:`encoded_ids` got."""
    rows = np.ascontiguousarray(sent).view(f"S{WIDTH}").ravel()
    return np.array([each.decode() for each in rows.tolist()])
