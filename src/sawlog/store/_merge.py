"""Several chunks of one table or series as one, in order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sawlog.store._segment import Segment, ids_name, mask_name, step_name

Part = tuple[Segment, dict[str, Any], "np.ndarray | None"]  # segment, chunk, which rows count


def joined(parts: Sequence[Part], tensor: str) -> np.ndarray:
    """The rows of a tensor that count, of several chunks. One file at a time is open for this."""
    first = parts[0][0].tensors[tensor]
    counts = [chunk["rows"] if keep is None else int(keep.sum()) for _, chunk, keep in parts]
    out = np.empty((sum(counts), *first.shape[1:]), first.dtype)
    start = 0
    for (segment, _, keep), count in zip(parts, counts, strict=True):
        values = segment.values(tensor)
        out[start : start + count] = values if keep is None else values[keep]
        start += count
    return out


def merge_tables(parts: Sequence[Part]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The chunk and the tensors of all these chunks of a table, without rows that do not count."""
    first = parts[0][1]
    names = first["table"]
    plain = [*names, *([ids_name(names)] if first["ids"] == "int" else [])]
    tensors = {name: joined(parts, name) for name in plain}
    if first["ids"] == "str":
        tensors.update(_texts(parts, names))
    chunk = {"table": names, "rows": len(tensors[names[0]]), "ids": first["ids"]}
    return chunk, tensors


def _texts(parts: Sequence[Part], names: Sequence[str]) -> dict[str, np.ndarray]:
    from sawlog.store._ids import Texts

    texts: list[str] = []
    for segment, _, keep in parts:
        stored = Texts(*(segment.values(ids_name(names, p)) for p in ("text", "ends", "hash")))
        texts += stored.take() if keep is None else stored.take(np.flatnonzero(keep))
    packed = Texts.of(texts)
    arrays = {"text": packed.data, "ends": packed.ends, "hash": packed.hashes}
    return {ids_name(names, part): array for part, array in arrays.items()}


def merge_series(
    parts: Sequence[tuple[Segment, dict[str, Any]]],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The chunk and the tensors of all these chunks of a series."""
    first = parts[0][1]
    name, axes = first["series"], first["steps"]
    tensors = {}
    for tensor in (name, *(step_name(axis, name) for axis in axes)):
        tensors[tensor] = joined([(*part, None) for part in parts], tensor)
    chunk = {"series": name, "rows": len(tensors[name]), "steps": axes}
    mask = merged_mask(name, parts)
    if mask is not None:
        tensors[mask_name(name)] = mask
        chunk["mask"] = True
    if any("attrs" in part for _, part in parts):
        chunk["attrs"] = [[rows, attrs] for rows, attrs in merged_attrs(c for _, c in parts)]
    return chunk, tensors


def merged_mask(name: str, parts: Sequence[tuple[Segment, dict[str, Any]]]) -> np.ndarray | None:
    """The mask of chunks of which some may have none, with as many axes as the deepest."""
    masks = [s.values(mask_name(name)).copy() if c.get("mask") else None for s, c in parts]
    if all(mask is None for mask in masks):
        return None
    shape = max((mask.shape[1:] for mask in masks if mask is not None), key=len)
    grown = []
    for mask, (_, chunk) in zip(masks, parts, strict=True):
        mask = np.ones(chunk["rows"], bool) if mask is None else mask
        mask = mask.reshape(mask.shape + (1,) * (1 + len(shape) - mask.ndim))
        grown.append(np.broadcast_to(mask, (chunk["rows"], *shape)))
    return np.concatenate(grown)


def merged_attrs(chunks: Any) -> list[tuple[int, dict[str, Any]]]:
    """The notes of several chunks, one after the other; equal neighbours become one."""
    runs: list[tuple[int, dict[str, Any]]] = []
    for chunk in chunks:
        for rows, attrs in chunk.get("attrs", [[chunk["rows"], {}]] if chunk["rows"] else []):
            if runs and json.dumps(runs[-1][1]) == json.dumps(attrs):  # 1 is not True here
                rows += runs.pop()[0]
            runs.append((rows, attrs))
    return runs
