"""The folders of a run: logs, statistics and curvature, by compression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog.run_files import _checkpoint as saved
from sawlog.run_files._blocks import Block
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options, read
from sawlog.run_files._provenance import Provenance
from sawlog.store._format._store_notes import parsing

CURVATURE = {"kfac", "ekfac"}


def label_of(options: Options) -> str:
    """Return the name of a compression in the folders of a run."""
    how = options.compress
    if how is None:
        return "whole"
    size = f"rank{how.rank}" if how.rank is not None else f"{how.bytes}bytes"
    return f"{how.kind}-{size}-seed{how.seed}"


def logs_of(path: Path, options: Options) -> Path:
    """Return the path of the rows of a run."""
    return path / "logs" / f"{label_of(options)}-{options.dtype}"


def statistics_of(path: Path, options: Options) -> Path:
    """Return the folder with the parts of the statistics of a pass."""
    kinds = "+".join(options.statistic or ("none",))
    return path / "statistics" / label_of(options) / kinds


def measured(path: Path, label: str, blocks: Sequence[Block]) -> Measured | None:
    """Return all statistics of one compression, of all processes; None if there are none."""
    arrays: dict[str, tuple[np.ndarray, int]] = {}
    weights: dict[str, Provenance] = {}
    factors: str | None = None
    fisher = "empirical"
    examples = 0
    for folder, whole, abouts in _by_size(path / "statistics" / label):
        arrays.update(whole.arrays)
        if CURVATURE & {*folder.name.split("+")}:
            weights.update((own.weights, own) for each in abouts for own in _provenance(each))
            fisher = (whole.about.get("options") or {}).get("fisher", fisher)
        factors = whole.about.get("factors") or factors
        if "kfac" in folder.name.split("+") or not examples:
            examples = 0 if whole.ids is None else len(whole.ids)
    if not arrays:
        return None
    return Measured(arrays, blocks, examples, tuple(weights.values()), factors, fisher)


def _by_size(path: Path) -> list[tuple[Path, saved.Saved, list[Mapping[str, Any]]]]:
    """Return the sums of each folder, with the metadata of its parts, sorted by examples.

    If several passes measured the same, the last one, with the most examples, counts.
    """
    found = []
    for folder in sorted(path.glob("*")):
        abouts: list[Mapping[str, Any]] = []
        whole = saved.joined(_noting(folder, abouts), folder)
        if whole is not None:
            found.append((folder, whole, abouts))
    return sorted(found, key=lambda each: 0 if each[1].ids is None else len(each[1].ids))


def _noting(folder: Path, abouts: list[Mapping[str, Any]]) -> Iterator[saved.Saved]:
    """Yield the parts in a folder, and append their metadata to ``abouts``."""
    for part in saved.load_parts(folder):
        abouts.append(part.about)
        yield part


def _provenance(about: Mapping[str, Any]) -> list[Provenance]:
    stored = about.get("provenance")
    return [] if stored is None else [Provenance.from_json(stored)]


def measured_with(reader: store.Reader) -> Measured | None:
    """Return the statistics of the run of a store of rows, with the same compression."""
    about = reader.meta
    if "options" not in about or "blocks" not in about:
        return None
    with parsing(reader.path, "options"):
        blocks = [Block.from_json(each) for each in about["blocks"]]
        options = read(about["options"])
    return measured(reader.path.parent.parent, label_of(options), blocks)


def curvature_of(reader: store.Reader, kind: str) -> Path | None:
    """Return the path of a curvature fitted to a store of rows; None if it has no run."""
    about = reader.meta
    if "options" not in about:
        return None
    return reader.path.parent.parent / "curvature" / reader.path.name / kind
