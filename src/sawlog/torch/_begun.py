"""What a pass begins with: projections, eigenbases, and whether it fits what is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sawlog.errors import ArgumentError, WeightsMismatchError
from sawlog.run_files._folders import measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import Provenance, fingerprint_of_arrays
from sawlog.torch._matrices import Matrices
from sawlog.torch._watched import Watched

REMEDY = (
    "Hint: another project keeps both, sawlog.init(project, exists='replace') begins anew, and "
    'run.setup(weights="any") mixes them knowingly.'
)
_FREE = ("interval", "offload", "weights", "nonfinite")  # may differ between programs


def matrices_of(
    path: Path, options: Options, watched: Watched, factors: Measured | None
) -> Matrices:
    """Projections, and the eigenbases of measured factors if EK-FAC is asked for."""
    whole = None
    if options.compress is not None and options.compress.kind == "pca":
        whole = measured(path, "whole", watched.blocks)
    bases = None
    if "ekfac" in options.statistic:
        if factors is None:
            raise ArgumentError(
                'statistic="ekfac" corrects the eigenvalues of K-FAC, which was not measured. '
                'Hint: run over the data with statistic="kfac" and the same compression, '
                "finalize(), and set up again."
            )
        bases = {block.name: factors.eigenbasis(block.name) for block in watched.blocks}
    return Matrices(watched.blocks, options.compress, whole, bases)


def projection_fingerprint(matrices: Matrices, options: Options) -> str:
    """A fingerprint of projections that were measured; empty for those that the options tell."""
    if options.compress is None or options.compress.kind != "pca":
        return ""
    sides = {
        f"{name}/{side}": matrix
        for name, both in matrices.made.items()
        for side, matrix in zip(("left", "right"), both, strict=True)
    }
    return fingerprint_of_arrays(sides)


def check_projection(there: Sequence[Provenance], now: Provenance, where: Path) -> None:
    """Rows of one store are projected on the same directions."""
    if any(each.projection != now.projection for each in there):
        raise WeightsMismatchError(
            f"The rows at {where} were projected on the main directions of other covariances than "
            "are measured now, which have more examples by now: their numbers would mean different "
            "things. Hint: another project, or sawlog.init(project, exists='replace')."
        )


def check_about(there: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """A run goes on only with what it began with."""
    was, wanted = there.get("options") or {}, now["options"]
    differing = [key for key in sorted(wanted) if was.get(key) != wanted[key] and key not in _FREE]
    if differing:
        text = ", ".join(f"{key} was {was.get(key)!r}, now {wanted[key]!r}" for key in differing)
    elif there.get("blocks") != now["blocks"]:
        text = "other layers, or other shapes of them, were watched"
    elif there.get("factors") != now.get("factors"):
        text = "it was measured in the eigenbasis of another K-FAC, with fewer examples than now"
    else:
        return
    raise ArgumentError(
        f"The logs at {where} were begun otherwise: {text}. Hint: another project, or "
        "sawlog.init(project, exists='replace')."
    )
