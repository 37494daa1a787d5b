"""The learning rate of a step, which schedulers change as soon as the step is made."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from sawlog.torch._optimizer_state import bare_optimizer


class LearningRates:
    """The learning rate that watched parameters have in an optimizer.

    Args:
        optimizer: the optimizer, or one that wraps it; None if it is not known.
        parameters: the watched parameters by name.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> LearningRates(torch.optim.SGD([weight], lr=0.5), {"weight": weight}).now()
    0.5
    """

    def __init__(self, optimizer: Any, parameters: Mapping[str, Tensor]) -> None:
        self._optimizer = None if optimizer is None else bare_optimizer(optimizer)
        self._watched = {id(each) for each in parameters.values()}
        self._of_step: float | None = None
        self._warned = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the learning rate at each step of the optimizer inside the ``with``."""
        hook = getattr(self._optimizer, "register_step_pre_hook", None)
        handle = None if hook is None else hook(self._note)
        try:
            yield
        finally:
            self._of_step = None
            if handle is not None:
                handle.remove()

    def now(self) -> float:
        """Return that of the step that was made in the ``with``, otherwise the present one.

        It is not a number if there is no optimizer, or if parameters have different ones.
        """
        return self._read() if self._of_step is None else self._of_step

    def _note(self, *_: Any) -> None:
        if self._of_step is None:
            self._of_step = self._read()

    def _read(self) -> float:
        if self._optimizer is None:
            return math.nan
        rates: set[float] = set()
        known: set[int] = set()
        for group in self._optimizer.param_groups:
            own = {id(each) for each in group["params"]} & self._watched
            if own:
                rates.add(float(group["lr"]))
                known |= own
        if not known:  # such as copies of split parameters
            rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        elif known != self._watched:
            rates.add(0.0)  # of what is watched and not trained
        if len(rates) == 1:
            return rates.pop()
        if not self._warned:
            self._warned = True
            warnings.warn(
                "Watched parameters have the learning rates "
                f"{', '.join(f'{each:g}' for each in sorted(rates, reverse=True))} (0 if the "
                "optimizer does not have them), so no learning rate is stored with the steps, and "
                "training_influence needs weigh=False. Hint: a capture for each, by names=.",
                stacklevel=6,
            )
        return math.nan
