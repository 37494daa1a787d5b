"""Gradients as an optimizer applies them: divided by Adam's second moments, or as Muon's.

An optimizer moves the weights along ``D g``, where ``D`` depends on its state. Rows that are
multiplied by ``D`` make scores those of the update that was made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.run_files._blocks import Block
from sawlog.torch._optimizer_state import adam_second_moments, bare_optimizer
from sawlog.torch._proof._block_gradients import pair_of
from sawlog.torch._rows._block_matrix import block_matrix

_Sides = tuple[Tensor | None, Tensor | None]

#: Optimizers that divide by the root of second moments without bias, plus ``eps``. Others with the
#: same state do more: RAdam leaves the division out at first, LAMB scales each layer.
ADAM = {"Adam", "AdamW", "NAdam", "FusedAdam", "DeepSpeedCPUAdam"}
#: What groups of ``torch.optim.Muon`` have. Others of that name scale matrices otherwise.
MUON = ("ns_steps", "adjust_lr_fn")


class Correction:
    """What an optimizer multiplies the gradient of each block with, from its present state.

    Args:
        optimizer: an optimizer with the state of Adam (``exp_avg_sq``) or of Muon
            (``momentum_buffer`` of a matrix).
        parameters: the watched parameters by name.

    Muon makes the momentum ``M`` orthogonal, ``(M M^T)^-1/2 M``, and its correction of a gradient
    is the same product, ``(M M^T)^-1/2 g``.

    Raises:
        ArgumentError: the optimizer has another state.
    """

    def __init__(self, optimizer: Any, parameters: Mapping[str, Tensor]) -> None:
        self._optimizer = bare_optimizer(optimizer)
        self._parameters = parameters
        self._groups = {
            id(parameter): group
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }
        missing = [name for name, each in parameters.items() if id(each) not in self._groups]
        if missing:
            raise ArgumentError(
                f"The optimizer does not have the parameter {missing[0]!r}, so its gradients "
                "cannot be corrected. Hint: watch only what is trained, by names=."
            )
        self._known: dict[str, Any] = {}
        self._updated: set[str] = set()
        self._has_stepped = self._warned = False
        hook = getattr(self._optimizer, "register_step_post_hook", None)
        self._noting = None if hook is None else hook(self._note_step)

    def ready(self) -> bool:
        """Return whether the optimizer has a state for all parameters, as after its first step.

        Raises:
            ArgumentError: it has no state after a step with gradients.
        """
        missing = [n for n, p in self._parameters.items() if not self._optimizer.state.get(p)]
        if (self._updated or not missing) and self._noting is not None:
            self._noting.remove()
            self._noting = None
        if missing and self._has_stepped:
            if self._updated and len(missing) == len(self._parameters):
                self._state(next(name for name in missing if name in self._updated))
            self._warn(missing)
        return not missing

    def _note_step(self, *_: Any) -> None:
        """Note which parameters had gradients in a step; one without any changes nothing."""
        every = (each for group in self._optimizer.param_groups for each in group["params"])
        if any(each.grad is not None for each in every):
            self._has_stepped = True
            self._updated = {n for n, p in self._parameters.items() if p.grad is not None}

    def _warn(self, missing: list[str]) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"The optimizer has no state of {len(missing)} watched parameters, such as "
            f"{missing[0]!r}, because they had no gradient yet. Steps are not logged with "
            "correct=True until it has. Hint: leave them out by names=.",
            stacklevel=6,
        )

    def refresh(self) -> None:
        """Read the state again, after a step of the optimizer."""
        self._known.clear()

    def apply(self, block: Block, pair: Pair) -> Pair:
        """Return the gradients of a block as the optimizer applies them."""
        if block.name not in self._known:
            self._known[block.name] = self._of(block)
        (left, right), elements = self._known[block.name]
        if left is not None:
            return _times_left(pair, left)
        if right is not None:
            return _times_right(pair, right)
        return _times_elements(pair, elements)

    def _of(self, block: Block) -> tuple[_Sides, Tensor | None]:
        states = {name: self._state(name) for name in block.parameters}
        if any("exp_avg_sq" not in own for own in states.values()):
            return self._muon(block, states), None
        self._check_divides(block)
        parts = {
            name: _adam(own, self._group(name)).reshape(self._parameters[name].shape)[None]
            for name, own in states.items()
        }
        return (None, None), block_matrix(block, parts)[0]

    def _state(self, name: str) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._optimizer.state.get(self._parameters[name], {})
        if "exp_avg_sq" in state or "momentum_buffer" in state:
            return state
        raise ArgumentError(
            f"The optimizer {type(self._optimizer).__name__} has no second moments of {name!r}, "
            f"but {', '.join(map(repr, state)) or 'no state yet'}. Hint: Adam, AdamW and Muon are "
            "known, after their first step; leave correct= out for others."
        )

    def _check_divides(self, block: Block) -> None:
        """Raise an ArgumentError if second moments are not all that the optimizer divides by."""
        kind = type(self._optimizer)
        if not ADAM & {each.__name__ for each in kind.__mro__}:
            raise ArgumentError(
                f"The optimizer {kind.__name__} has second moments of {block.name!r}, but whether "
                "it divides gradients by their root, and by nothing else, is not known. Hint: "
                "Adam, AdamW, NAdam and Muon are known; leave correct= out for others."
            )

    def _group(self, name: str) -> Mapping[str, Any]:
        group: Mapping[str, Any] = self._groups[id(self._parameters[name])]
        return group

    def _muon(self, block: Block, states: Mapping[str, Mapping[str, Any]]) -> _Sides:
        """Return the matrix that makes the momentum orthogonal, on its shorter side."""
        (name, *more) = block.parameters
        group = self._group(name)
        if more or not {*MUON} <= {*group} or self._parameters[name].dim() != 2:
            raise ArgumentError(
                f"The state of the optimizer for {block.name!r} is neither Adam's nor that of Muon "
                "for a matrix, so its gradients cannot be corrected. Hint: correct=False."
            )
        momentum = states[name]["momentum_buffer"].detach().float()
        rows, cols = momentum.shape
        size = float(momentum.norm()) + 1e-30
        # Newton-Schulz iterations increase small singular values by no more than this.
        first, *_ = group.get("ns_coefficients", (3.4445,))
        most = float(first) ** int(group["ns_steps"]) / size
        tall = rows > cols
        values, vectors = torch.linalg.eigh(
            momentum.T @ momentum if tall else momentum @ momentum.T
        )
        inverse = values.clamp(min=most**-2).rsqrt()
        found = (vectors * inverse) @ vectors.T * _muon_scale(group["adjust_lr_fn"], rows, cols)
        return (None, found) if tall else (found, None)


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return what Adam multiplies its momentum by, except for the learning rate."""
    return 1.0 / (adam_second_moments(state, group).sqrt() + float(group.get("eps", 1e-8)))


def _muon_scale(adjust: str | None, rows: int, cols: int) -> float:
    """Return what Muon multiplies the learning rate of a matrix with."""
    if adjust == "match_rms_adamw":
        return float(0.2 * max(rows, cols) ** 0.5)
    if adjust not in (None, "original"):
        raise ArgumentError(
            f"How Muon scales a matrix with adjust_lr_fn={adjust!r} is not known, so gradients "
            "cannot be corrected."
        )
    return float(max(1.0, rows / cols) ** 0.5)


def _times_left(pair: Pair, left: Tensor) -> Pair:
    """Multiply the rows of gradients by a matrix."""
    if isinstance(pair.left, OneHot) or pair.left.groups is not None:
        pair = pair_of(gradient(pair))
    own = pair.left.full()
    return Pair(Dense(own @ left.to(own).T), pair.right)


def _times_right(pair: Pair, right: Tensor) -> Pair:
    """Multiply the columns of gradients by a symmetric matrix."""
    if isinstance(pair.right, OneHot) or pair.right.groups is not None:
        pair = pair_of(gradient(pair))
    own = pair.right.full()
    return Pair(pair.left, Dense(own @ right.to(own)))


def _times_elements(pair: Pair, elements: Tensor) -> Pair:
    """Multiply the elements of gradients; a lookup of rows stays one."""
    if isinstance(pair.left, OneHot) and isinstance(pair.right, Dense):
        right = pair.right.full()
        return Pair(pair.left, Dense(right * elements.to(right)[pair.left.ids]))
    whole = gradient(pair)
    return pair_of(whole * elements.to(whole))
