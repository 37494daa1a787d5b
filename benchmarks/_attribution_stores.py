"""Stores of other tools with the same rows, scored from disk for the same queries.

Each is written by the tool's own writer, and then opened and scored as its documentation says:
inner products, nothing preconditioned. dattri is not here: its files need CUDA. kronfluence has no
store at all: what it recomputes is timed in ``_attribution_fit``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Shapes = dict[str, tuple[int, int]]
Parts = dict[str, np.ndarray]
TOGETHER = 256  # rows that are written at once


def cut(rows: np.ndarray, shapes: Shapes) -> Parts:
    """Rows of all layers as those of each layer."""
    edges = np.cumsum([rows_ * cols for rows_, cols in shapes.values()])[:-1]
    parts = zip(shapes.items(), np.split(rows, edges, 1), strict=True)
    return {name: part.reshape(len(rows), *shape) for (name, shape), part in parts}


def _tensors(rows: np.ndarray, shapes: Shapes) -> dict[str, torch.Tensor]:
    """The same for tools that want them flat."""
    parts = cut(rows, shapes).items()
    return {name: torch.from_numpy(part.reshape(len(rows), -1).copy()) for name, part in parts}


def logix(folder: Path, rows: np.ndarray, queries: np.ndarray, shapes: Shapes) -> Any:
    """Its log loader and its influence, with their defaults: 16 rows at once."""
    from logix import LogIX
    from logix.logging.mmap import MemoryMapHandler

    config = folder / "config.yaml"
    config.write_text(f"root_dir: {folder}\n")
    order = [(name, "grad") for name in shapes]
    place = LogIX(project="pairs", config=str(config)).log_dir
    for number, start in enumerate(range(0, len(rows), TOGETHER)):
        parts = cut(rows[start : start + TOGETHER], shapes)
        some = range(min(TOGETHER, len(rows) - start))
        nested = [
            (str(start + i), {name: {"grad": part[i]} for name, part in parts.items()})
            for i in some
        ]
        MemoryMapHandler.write(place, f"log_rank_0_chunk_{number}.mmap", nested, order)
    asked = cut(queries, shapes).items()
    log = {name: {"grad": torch.from_numpy(part.copy())} for name, part in asked}
    ids = [f"query {i}" for i in range(len(queries))]

    def go() -> np.ndarray:
        run = LogIX(project="pairs", config=str(config))
        loader = run.build_log_dataloader()
        found = run.influence.compute_influence_all((ids, log), loader, precondition=False)
        return found["influence"].numpy()

    return go


def _bergson_index(folder: Path, rows: np.ndarray, shapes: Shapes) -> None:
    from bergson import Builder, GradientProcessor, PreprocessConfig
    from datasets import Dataset

    sizes = {name: one * two for name, (one, two) in shapes.items()}
    data = Dataset.from_dict({"input_ids": [[0]] * len(rows)})
    builder = Builder(data, sizes, torch.float32, PreprocessConfig(), path=folder)
    for start in range(0, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        builder(list(range(start, start + len(some))), _tensors(some, shapes))
    builder.teardown()
    GradientProcessor().save(folder)


def bergson_best(folder: Path, rows: np.ndarray, queries: np.ndarray, shapes: Shapes) -> Any:
    """Its attributor, which copies the index into memory."""
    from bergson import Attributor

    _bergson_index(folder, rows, shapes)
    asked = _tensors(queries, shapes)

    def go() -> None:
        Attributor(folder, device="cpu", dtype=torch.float32).search(asked, 10)

    return go


def bergson(folder: Path, rows: np.ndarray, queries: np.ndarray, shapes: Shapes) -> Any:
    """Its scorer, fed with the rows of its index, 1,024 at once."""
    from bergson import Scorer, load_module_gradients
    from bergson.score.score_writer import InMemorySequenceScoreWriter

    _bergson_index(folder, rows, shapes)
    asked = _tensors(queries, shapes)

    def go() -> np.ndarray:
        index = load_module_gradients(folder)
        writer = InMemorySequenceScoreWriter(len(rows), len(queries))
        device = torch.device("cpu")
        scorer = Scorer(asked, list(shapes), writer, device, torch.float32)
        for start in range(0, len(rows), 1024):
            places = list(range(start, min(start + 1024, len(rows))))
            some = slice(start, start + 1024)
            scorer(places, {name: torch.from_numpy(index[name][some]) for name in shapes})
        return writer.scores.T.numpy()

    return go


def dattri_llm(folder: Path, rows: np.ndarray, queries: np.ndarray, shapes: Shapes) -> Any:
    """Its store of whole gradients, and inner products from that cache."""
    from dattri_llm import (
        AttributionArguments,
        Gradient,
        GradientRecord,
        GradientStorageManager,
        TracInAttributor,
    )

    def save(path: Path, rows: np.ndarray) -> None:
        store = GradientStorageManager(str(path))
        for step, start in enumerate(range(0, len(rows), TOGETHER)):
            parts = _tensors(rows[start : start + TOGETHER], shapes)
            count = min(TOGETHER, len(rows) - start)
            gradient = Gradient(
                representation=dict.fromkeys(shapes, "materialized"),
                data=parts,
                layer_types=dict.fromkeys(shapes, "nn.Linear"),
            )
            ids = [f"{path.name} {start + i}" for i in range(count)]
            store.save_bulk([GradientRecord(step=step, input_hash=ids, gradient=gradient)])

    save(folder / "train", rows)
    save(folder / "queries", queries)
    options = AttributionArguments(output_dir=str(folder / "scores"), use_cpu=True)

    def go() -> np.ndarray:
        way = TracInAttributor(options)
        found = way.attribute_from_cache(str(folder / "train"), str(folder / "queries"))
        return found.scores.T.numpy()

    return go


# Each with the package it needs, and how many of the rows it gets: some take minutes for all.
_ALL: dict[str, tuple[str, Callable[..., Any], float]] = {
    "bergson, all scores": ("bergson", bergson, 1.0),
    "bergson, 10 best": ("bergson", bergson_best, 1.0),
    "dattri-llm": ("dattri_llm", dattri_llm, 1.0),
    "LogIX": ("logix", logix, 1 / 32),
}
STORES = {
    name: (way, share)
    for name, (package, way, share) in _ALL.items()
    if importlib.util.find_spec(package)
}
