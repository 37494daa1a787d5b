"""The loss of a Trainer, and what it divides by.

A Trainer divides the losses of tokens by the number of all tokens of a step, over its micro-batches
and processes. A row of sawlog is the gradient of a batch of one example, so the run is told how
many tokens each example has, and which tensor is the loss before anything else is done with it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sawlog.errors import ArgumentError
from sawlog.torch._model._modes import modes_restored

IGNORED = -100


def token_counts(trainer: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return how many labels of each example count, ``[batch]``; None without labels.

    They are counted as the Trainer does: a causal model shifts them by one position.
    """
    labels = inputs.get("shift_labels")
    if not isinstance(labels, Tensor):
        labels = inputs.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() == 0:
            return None
        if _shifts(trainer) and labels.dim() > 1:
            labels = labels[..., 1:]
    return (labels != IGNORED).reshape(len(labels), -1).sum(1)


def _shifts(trainer: Any) -> bool:
    """Return whether the loss of the model compares each position with the label of the next."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return causal or bool(getattr(trainer, "_loss_shifts_labels", False))


def check_supported(trainer: Any) -> None:
    """Raise an ArgumentError for ways of training in which examples cannot be separated."""
    refused = {
        "DataParallel": getattr(trainer.args, "n_gpu", 1) > 1,
        "DeepSpeed": bool(getattr(trainer, "is_deepspeed_enabled", False)),
    }
    for name, used in refused.items():
        if used:
            raise ArgumentError(
                f"The Trainer uses {name}, under which the gradients of examples are not seen. "
                "Hint: torchrun with one process for each device."
            )
    kind = type(trainer).__name__.removeprefix("Log")
    if getattr(trainer, "calculate_KL", False):
        raise ArgumentError(
            f"The loss of {kind} subtracts a divergence from the reference model that is averaged "
            "over the batch (its `kl`), so the gradient of an example depends on the others, and "
            "no row is that of a batch of one. Hint: "
            'KTOConfig(loss_type="apo_zero_unpaired"), whose loss has no such term.'
        )
    if hasattr(trainer, "num_generations"):
        raise ArgumentError(
            f"{kind} writes the texts that it trains on while it trains, and compares those of "
            "one prompt with each other, so rows of the dataset have no gradients of their own. "
            "Hint: log supervised fine-tuning or preferences of texts that were kept."
        )


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode for the time of a ``with``, module by module."""
    with modes_restored(model):
        model.eval()
        yield


@contextlib.contextmanager
def alone(trainer: Any) -> Iterator[None]:
    """Keep a Trainer from gathering metrics of all processes, which may have other batches."""
    accelerator = trainer.accelerator
    metrics = getattr(trainer, "_metrics", None)
    kept = None if metrics is None else {m: copy.deepcopy(dict(own)) for m, own in metrics.items()}
    names = ("gather", "gather_for_metrics")
    for name in names:
        setattr(accelerator, name, _same)
    try:
        yield
    finally:
        for name in names:
            delattr(accelerator, name)
        if metrics is not None and kept is not None:
            for mode, own in kept.items():
                metrics[mode].clear()
                metrics[mode].update(own)


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value


def extraction_loss(trainer: Any, model: nn.Module, inputs: dict[str, Any], run: Any) -> Tensor:
    """Return the loss of a batch as the Trainer computes it, and tell the run what it counts."""
    inputs = trainer._prepare_inputs(inputs)
    counts = token_counts(trainer, inputs)
    if counts is not None:
        run.declare_items(counts)
    if run.draws_labels:
        inputs = _with_drawn_labels(trainer, model, inputs, run)
    with trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
        loss = trainer.compute_loss(model, dict(inputs))
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ArgumentError(
            f"compute_loss of {type(trainer).__name__} returned no loss with a gradient. Hint: the "
            "dataset needs labels, and the model at least one parameter that is trained."
        )
    return run.declare_loss(loss.mean() if loss.dim() else loss)


def _with_drawn_labels(
    trainer: Any, model: nn.Module, inputs: Mapping[str, Any], run: Any
) -> dict[str, Any]:
    """Return inputs whose labels are drawn from the model, for ``fisher="true"``.

    Raises:
        ArgumentError: the loss is not the cross entropy of labels in the inputs.
    """
    labels = inputs.get("labels")
    problem = None
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        problem = "the inputs have no integer labels"
    elif getattr(trainer, "label_smoother", None) is not None:
        problem = "label smoothing has no distribution of labels"
    elif isinstance(inputs.get("shift_labels"), Tensor):
        problem = "the labels are shifted beforehand"
    if problem is None:
        with torch.no_grad(), run.not_captured(), trainer.accelerator.autocast():
            outputs = model(**{key: value for key, value in inputs.items() if key != "labels"})
        logits = getattr(outputs, "logits", None)
        shape = labels.shape if isinstance(labels, Tensor) else None
        if not isinstance(logits, Tensor) or logits.shape[:-1] != shape:
            problem = "the logits of the model are not one row for each label"
    if problem is not None:
        raise ArgumentError(
            f'fisher="true" draws labels of a cross entropy, and {problem}. Hint: '
            "trainer.log_run.extract(step, loader) with a step of your own that calls run.labels."
        )
    drawn = run.labels(logits, labels, axis=-1, shift=1 if _shifts(trainer) else 0)
    return {**inputs, "labels": drawn}
