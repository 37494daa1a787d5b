"""Join several chunks of one table or series, for reading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sawlog.store._format._chunks import Chunk, SeriesChunk, mask_name
from sawlog.store._format._segment import Segment

Part = tuple[Segment, Chunk]


def joined(parts: Sequence[Part], tensor: str) -> np.ndarray:
    """Concatenate a tensor of several chunks, with one file open at a time."""
    first = parts[0][0].tensors[tensor]
    out = np.empty((sum(chunk.rows for _, chunk in parts), *first.shape[1:]), first.dtype)
    start = 0
    for segment, chunk in parts:
        out[start : start + chunk.rows] = segment.values(tensor)
        start += chunk.rows
    return out


def merged_mask(name: str, parts: Sequence[Part]) -> np.ndarray | None:
    """Concatenate masks, which may be absent or have different numbers of axes."""
    masks = [
        s.values(mask_name(name)).copy() if isinstance(c, SeriesChunk) and c.mask else None
        for s, c in parts
    ]
    if all(mask is None for mask in masks):
        return None
    shape = max((mask.shape[1:] for mask in masks if mask is not None), key=len)
    grown = []
    for mask, (_, chunk) in zip(masks, parts, strict=True):
        mask = np.ones(chunk.rows, bool) if mask is None else mask
        mask = mask.reshape(mask.shape + (1,) * (1 + len(shape) - mask.ndim))
        grown.append(np.broadcast_to(mask, (chunk.rows, *shape)))
    return np.concatenate(grown)


def merged_attrs(chunks: Iterable[Chunk]) -> list[tuple[int, dict[str, Any]]]:
    """Concatenate the attrs of several chunks; equal neighbours are merged."""
    runs: list[tuple[int, dict[str, Any]]] = []
    for chunk in chunks:
        for rows, attrs in chunk.notes:
            if runs and json.dumps(runs[-1][1]) == json.dumps(attrs):  # as JSON, because 1 == True
                rows += runs.pop()[0]
            runs.append((rows, attrs))
    return runs
