"""``Check``: what a capture logged of a batch, compared with its examples run alone."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping

import numpy as np

from sawlog._rich import Console, Table

Losses = Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What was logged of a layer, against the same examples alone.

    Args:
        name: of the block.
        error: the greatest relative error among the examples.
        factor: the factor that brings the logged gradients closest to those of the examples.
        rest: the relative error that remains after multiplying by it.
        same: whether the errors are within the tolerance.
        batch: the relative error of the sum of what was logged, joined as the loss joins it,
            against the gradient of the batch by plain autograd; None where it is
            not known how the loss joins them.
    """

    name: str
    error: float
    factor: float
    rest: float
    same: bool
    batch: float | None = None

    @property
    def verdict(self) -> str:
        """Return the comparison as one line of text."""
        if self.same:
            return "same"
        if not math.isfinite(self.error):
            return "not finite"
        if self.factor == 0.0:
            return "logged as 0" if self.rest else "is 0 alone"
        if self.error and self.rest < 0.05 * min(1.0, self.error) and abs(self.factor - 1) > 1e-6:
            return f"off by the factor {1 / self.factor:.4g}"
        return "differs" if self.examples_differ else "does not add up to the batch"

    @property
    def examples_differ(self) -> bool:
        """Whether single examples differ, and not only their sum."""
        return self.batch is None or not self.batch > self.error


@dataclasses.dataclass(frozen=True)
class Check:
    """What :meth:`sawlog.torch.Run.check` found; printing it shows a table.

    Args:
        layers: what was logged of each, against the same examples alone.
        examples: the places in the batch of the examples that were run alone.
        tolerance: the greatest relative error of gradients that count as equal.
        loss: what was found about the loss; empty if nothing is wrong with it.
        reasons: the probable causes of the differences.
        refused: why the batch cannot be logged at all; empty if it can.
    """

    layers: tuple[Comparison, ...]
    examples: tuple[int, ...]
    tolerance: float
    loss: str
    reasons: tuple[str, ...]
    refused: str = ""

    @property
    def ok(self) -> bool:
        """Whether the batch gives what each example alone gives."""
        return all(layer.same for layer in self.layers) and not self.loss and not self.refused

    @property
    def worst(self) -> float:
        """The greatest relative error of all layers."""
        return max((layer.error for layer in self.layers), default=0.0)

    def __rich__(self) -> Table:
        said = "as each example alone" if self.ok else "NOT as each example alone"
        title = f"{len(self.examples)} examples checked: {said}"
        table = Table(title="The batch cannot be logged" if self.refused else title)
        table.add_column("layer", overflow="fold")
        table.add_column("error of examples", justify="right")
        table.add_column("of the batch", justify="right")
        table.add_column("verdict")
        for layer in self.layers:
            whole = "" if layer.batch is None else f"{layer.batch:.1e}"
            table.add_row(layer.name, f"{layer.error:.1e}", whole, layer.verdict)
        notes = [each for each in (self.refused, self.loss, *self.reasons) if each]
        if notes:
            table.caption = "\n".join(notes)
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=120, file=text, color_system=None).print(self)
        return text.getvalue()

    def message(self) -> str:
        """Return the differences as the text of an error."""
        if self.refused:
            return self.refused
        wrong = [layer for layer in self.layers if not layer.same]
        listed = "\n".join(f"  {e.name}: {e.verdict} ({e.error:.1e})" for e in wrong[:8])
        more = f"\n  ... and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        head = (
            f"What is logged of a batch is not what its examples give alone, in {len(wrong)} of "
            f"{len(self.layers)} layers:\n{listed}{more}\n"
            if wrong
            else ""
        )
        return head + " ".join([*([self.loss] if self.loss else []), *self.reasons])


def compared(
    name: str, logged: np.ndarray, expected: np.ndarray, tolerance: float, floor: float
) -> Comparison:
    """Compare rows ``[examples, ...]`` that were logged with those of the examples alone."""
    ours = logged.reshape(len(logged), -1).astype(np.float64)
    theirs = expected.reshape(len(expected), -1).astype(np.float64)
    lengths = np.linalg.norm(theirs, axis=1)
    least = max(1e-3 * float(lengths.max(initial=0.0)), floor, 1e-30)
    error = float((np.linalg.norm(ours - theirs, axis=1) / np.maximum(lengths, least)).max())
    if not np.isfinite(ours).all():
        return Comparison(name, math.inf, 1.0, math.inf, False)
    square = float((ours**2).sum())
    factor = float((ours * theirs).sum()) / square if square else 0.0
    total = float(np.linalg.norm(theirs))
    rest = float(np.linalg.norm(factor * ours - theirs)) / total if total else 0.0
    return Comparison(name, error, factor, rest, error <= tolerance)


def added_up(
    found: Comparison,
    logged: np.ndarray,
    scale: float | np.ndarray | None,
    whole: np.ndarray,
    tolerance: float,
    floor: float = 0.0,
) -> Comparison:
    """Return the comparison, extended by one of the sum of all rows with the gradient of the batch.

    Args:
        found: what was found of examples.
        logged: the rows of all examples.
        scale: the factor of the rows of the batch; None where examples have different ones.
        whole: the gradient of the batch.
        tolerance: the greatest relative error of sums that count as equal.
        floor: the length of a gradient of one example below which rounding matters.
    """
    if scale is None or not np.isfinite(logged).all():
        return found
    rows = logged.reshape(len(logged), -1).astype(np.float64)
    by = np.broadcast_to(np.asarray(scale, np.float64), len(rows))
    shares = np.where(by > 0, 1 / np.where(by > 0, by, 1), 0)
    rows = rows * shares[:, None]
    apart = float(np.linalg.norm(rows.sum(0) - whole.reshape(-1)))
    least = 1e-3 * float(np.linalg.norm(rows, axis=1).sum())
    least = max(least, floor * float(shares.sum()), 1e-30)
    error = apart / max(float(np.linalg.norm(whole)), least)
    return dataclasses.replace(found, batch=error, same=found.same and error <= tolerance)


def loss_problem(whole: float, each: np.ndarray | None, own: Losses, size: int, tol: float) -> str:
    """Return what is wrong with the loss of a batch, given the losses of examples alone."""
    if each is not None:
        off = [i for i, value in own.items() if not _close(float(each[i]), value, tol)]
        if off:
            return (
                f"The losses of the examples {off} are {[float(each[i]) for i in off]} in the "
                f"batch, and {[own[i] for i in off]} alone."
            )
        return ""
    if len(own) < size:
        return ""
    values = list(own.values())
    low, high = min(values), max(values)
    slack = tol * max(map(abs, (*values, whole)))
    between = low - slack <= whole <= high + slack  # a mean, whatever its weights
    if between or _close(sum(values), whole, tol):
        return ""
    return (
        f"The loss of the batch is {whole:.6g}, and its examples alone give {low:.6g} to "
        f"{high:.6g}: it is neither a mean of theirs nor their sum."
    )


def _close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-6)
