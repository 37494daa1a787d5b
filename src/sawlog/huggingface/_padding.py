"""Which positions of a batch are padding, which K-FAC must not count.

What a batch is padded to depends on the other examples, so statistics that count padding would
depend on the size of batches and on the number of processes. Rows do not: the gradient of padding
is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

KEY = "attention_mask"


def position_mask(
    trainer: Any, batch: Mapping[str, Any], examples: int, key: str = KEY
) -> Tensor | None:
    """Return which positions of each example count, ``[batch, positions]``; None if unknown."""
    mask = batch.get(key)
    if not isinstance(mask, Tensor) or mask.dim() != 2 or len(mask) != examples:
        return None
    return None if _has_two_lengths(trainer) else mask


def is_padded_otherwise(trainer: Any, batch: Mapping[str, Any], examples: int) -> bool:
    """Return whether a batch has masks of which none says what is padding in all layers.

    So it is with an encoder and a decoder, whose sequences have lengths of their own, and with
    several sequences for each example, as chosen and rejected answers.
    """
    masks = [key for key in batch if str(key).endswith(KEY)]
    return bool(masks) and position_mask(trainer, batch, examples) is None


def counts_positions(options: Any) -> bool:
    """Return whether options of a run ask for statistics over positions: K-FAC, or a PCA."""
    by_pca = options.compress is not None and options.compress.kind == "pca"
    return by_pca or bool({"kfac", "ekfac"} & {*options.statistic})


def _has_two_lengths(trainer: Any) -> bool:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
