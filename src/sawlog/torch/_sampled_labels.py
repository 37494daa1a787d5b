"""Draw labels from the outputs of a model, for the true Fisher."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog._validate import one_of
from sawlog.capture._label_sampling import LabelSampling
from sawlog.errors import ArgumentError

DISTRIBUTIONS = ("categorical", "bernoulli", "normal")
Distribution = str | Callable[[Tensor, torch.Generator], Tensor]
"""The name of a distribution, or a function of outputs and a generator that returns labels."""

_CHUNK = 1 << 22  # probabilities in memory at a time


def drawn_labels(
    outputs: Tensor,
    labels: Tensor,
    sampling: LabelSampling,
    *,
    distribution: Distribution = "categorical",
    axis: int | None = None,
    shift: int = 0,
    ignore_index: int = -100,
    std: float = math.sqrt(0.5),
) -> Tensor:
    """Return labels like those given, drawn from the distribution that outputs describe.

    See ``Run.labels`` for the arguments.
    """
    if not isinstance(outputs, Tensor) or not isinstance(labels, Tensor):
        raise ArgumentError("run.labels takes two tensors: the outputs of a model, and labels.")
    outputs = outputs.detach()
    if callable(distribution):
        seed = int(sampling.uniforms(1).sum() * 2**40)
        return distribution(outputs, torch.Generator(outputs.device).manual_seed(seed))
    one_of("distribution", distribution, DISTRIBUTIONS)
    if distribution == "categorical":
        return _classes(outputs, labels, sampling, axis, shift, ignore_index)
    if outputs.shape != labels.shape:
        raise ArgumentError(
            f"With distribution={distribution!r} labels have the shape of outputs, "
            f"{tuple(outputs.shape)}; got {tuple(labels.shape)}."
        )
    uniforms = _uniforms(sampling, torch.ones_like(labels, dtype=torch.bool))
    if distribution == "bernoulli":
        return (uniforms < torch.sigmoid(outputs.double())).to(labels.dtype)
    smallest = torch.finfo(torch.float64).tiny
    noise = torch.special.ndtri(uniforms.clamp(min=smallest))
    return (outputs.double() + std * noise).to(labels.dtype)


def _classes(
    outputs: Tensor,
    labels: Tensor,
    sampling: LabelSampling,
    axis: int | None,
    shift: int,
    ignore_index: int,
) -> Tensor:
    """Draw classes; ``shift`` positions are between an output and its label."""
    if shift:
        drawn = labels.clone()
        drawn[:, shift:] = _classes(
            outputs[:, :-shift], labels[:, shift:], sampling, axis, 0, ignore_index
        )
        return drawn
    if labels.is_floating_point() and labels.shape == outputs.shape:  # probabilities of classes
        axis = (1 if outputs.dim() > 1 else 0) if axis is None else axis
        logits = outputs.movedim(axis, -1)
        counts = torch.ones(logits.shape[:-1], dtype=torch.bool, device=outputs.device)
        found = _inverse(logits, _uniforms(sampling, counts))
        one_hot = torch.nn.functional.one_hot(found, logits.shape[-1])
        return one_hot.movedim(-1, axis).to(labels.dtype)
    logits = outputs.movedim(_class_axis(outputs, labels, axis), -1)
    counts = labels != ignore_index
    drawn = _inverse(logits, _uniforms(sampling, counts)).to(labels.dtype)
    return torch.where(counts, drawn, labels)


def _class_axis(outputs: Tensor, labels: Tensor, axis: int | None) -> int:
    """Return the axis of the classes, which labels do not have.

    Raises:
        ArgumentError: no axis fits, or several do.
    """
    shape, given = tuple(outputs.shape), tuple(labels.shape)
    last = max(0, len(shape) - 1)
    places = sorted({min(1, last), last}) if axis is None else [axis % max(1, len(shape))]
    fits = [n for n in places if shape[:n] + shape[n + 1 :] == given]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise ArgumentError(
            f"Outputs of shape {shape} and labels of shape {given} do not show which axis has the "
            f"classes. Hint: run.labels(outputs, labels, axis={fits[-1]})."
        )
    raise ArgumentError(
        f"Labels of shape {given} are not one class for each output of shape {shape}. Hint: "
        "run.labels(logits, labels) takes what cross_entropy takes, or classes along the last "
        'axis; distribution="bernoulli" or "normal" for other losses.'
    )


def _uniforms(sampling: LabelSampling, counts: Tensor) -> Tensor:
    """Return a number in [0, 1) for each element that counts, in the shape of ``counts``.

    They are numbered within each example by the elements that count, so padding does not matter.
    """
    size = sampling.size
    if counts.numel() % size or (counts.dim() > 1 and len(counts) % size):
        axes = [n for n, length in enumerate(counts.shape) if length == size]
        if not axes:
            raise ArgumentError(
                f"Labels of shape {tuple(counts.shape)} do not belong to {size} examples. Hint: "
                "pass outputs and labels with one row for each example."
            )
        return _uniforms(sampling, counts.movedim(axes[0], 0)).movedim(0, axes[0])
    rows = counts.reshape(size, -1)
    places = (rows.long().cumsum(1) - 1).clamp(min=0)
    most = int(places.max()) + 1 if places.numel() else 0
    drawn = torch.from_numpy(np.ascontiguousarray(sampling.uniforms(most)))
    return drawn.to(counts.device).gather(1, places).reshape(counts.shape)


def _inverse(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return the classes at which cumulative probabilities pass the uniform numbers."""
    classes = logits.shape[-1]
    rows, numbers = logits.reshape(-1, classes), uniforms.reshape(-1, 1)
    found = [
        _pass(part, own)
        for part, own in zip(
            rows.split(max(1, _CHUNK // classes)),
            numbers.split(max(1, _CHUNK // classes)),
            strict=True,
        )
    ]
    whole: Any = torch.cat(found) if found else numbers.new_zeros(0, dtype=torch.long)
    return whole.reshape(uniforms.shape)


def _pass(logits: Tensor, uniforms: Tensor) -> Tensor:
    sums = torch.softmax(logits.double(), -1).cumsum(-1)
    return (
        torch.searchsorted(sums, uniforms * sums[:, -1:], right=True)
        .squeeze(1)
        .clamp(max=logits.shape[-1] - 1)
    )
