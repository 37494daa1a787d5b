"""Check that a pass fits the rows and statistics that earlier programs left in its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sawlog.errors import ArgumentError, WeightsMismatchError
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import Provenance

REMEDY = (
    "Hint: another project keeps both, sawlog.init(project, exists='replace') starts over, and "
    'run.setup(weights="any") mixes them knowingly.'
)
_FREE = ("interval", "offload", "weights", "nonfinite")  # may differ between programs


def check_projection(before: Sequence[Provenance], now: Provenance, where: Path) -> None:
    """Raise a WeightsMismatchError if stored rows were projected by other matrices."""
    if any(each.projection != now.projection for each in before):
        raise WeightsMismatchError(
            f"The rows at {where} were projected on the principal directions of other covariances "
            "than those measured now, which include more examples. Rows of both cannot be "
            "compared. Hint: another project, or sawlog.init(project, exists='replace')."
        )


def check_same_fisher(before: str, now: str, where: Path) -> None:
    """Raise an ArgumentError if EK-FAC would correct a K-FAC of labels of another kind."""
    if before != now:
        raise ArgumentError(
            f'The K-FAC at {where} was measured with fisher="{before}", and EK-FAC would be '
            f'measured with fisher="{now}". Hint: run.setup(statistic="ekfac", fisher="{before}"), '
            "or another project."
        )


def check_same_setup(
    before: Mapping[str, Any], now: Mapping[str, Any], where: Path, free: Sequence[str] = ()
) -> None:
    """Raise an ArgumentError if a run was started with other options, layers or factors.

    Args:
        before: what is known of the run as it was started.
        now: the same of this program.
        where: the folder.
        free: options that may differ here.
    """
    was = {**Options().to_json(), **(before.get("options") or {})}  # those of earlier versions
    wanted = now["options"]
    differing = [
        key for key in sorted(wanted) if was[key] != wanted[key] and key not in (*_FREE, *free)
    ]
    if differing:
        text = ", ".join(f"{key} was {was[key]!r}, now {wanted[key]!r}" for key in differing)
    elif before.get("blocks") != now["blocks"]:
        text = "other layers, or other shapes of them, were watched"
    elif before.get("factors") != now.get("factors"):
        text = "it was measured in the eigenbasis of another K-FAC, with fewer examples than now"
    else:
        return
    raise ArgumentError(
        f"The logs at {where} were started with another setup: {text}. Hint: another project, or "
        "sawlog.init(project, exists='replace')."
    )
