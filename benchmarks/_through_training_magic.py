"""The derivatives of bergson's MAGIC, on the program of the speed benchmark, if it is installed."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np


def installed() -> bool:
    """Return whether bergson can be imported."""
    try:
        import bergson.magic.trainer  # noqa: F401
    except ImportError:
        return False
    return True


class Batches:
    """The stream of batches that MAGIC's trainer reads, with a weight for each example.

    Args:
        x: Inputs of all examples.
        y: Targets of all examples.
        order: The examples of each batch, ``[steps, batch]``.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, order: np.ndarray) -> None:
        import torch

        self.x, self.y, self.order = (torch.as_tensor(each) for each in (x, y, order))
        self.weights = torch.nn.Parameter(torch.ones(len(x)))
        self.device = torch.device("cpu")

    @property
    def requires_grad(self) -> bool:
        return self.weights.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.weights.requires_grad = value

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, step: int) -> dict[str, Any]:
        import torch

        rows = self.order[step]
        return {
            "x": self.x[rows],
            "y": self.y[rows],
            "weights": self.weights[rows],
            "shift_loss_mask": torch.ones(len(rows), 1),  # its own name for what counts
        }


def _model(first: np.ndarray, second: np.ndarray) -> Any:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.tensor(first))
            self.second = torch.nn.Parameter(torch.tensor(second))

        def forward(self, x: Any, y: Any, weights: Any, shift_loss_mask: Any) -> Any:
            out = torch.nn.functional.gelu(x @ self.first, approximate="tanh") @ self.second
            return (weights * (out - y) ** 2).sum() / weights.sum()

    return Model()


def programs(
    x: np.ndarray, y: np.ndarray, order: np.ndarray, params: Any, rate: float
) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """Return training alone by MAGIC's trainer, and the scores ``[n]`` of the first example."""
    import torch
    import torchopt
    from bergson.magic.trainer import BackwardState, Trainer

    def begin() -> Any:
        return Trainer.initialize(_model(*map(np.array, params)), torchopt.adam(rate))

    def train() -> Any:
        trainer, state = begin()
        with _quiet():
            return trainer.train(state, Batches(x, y, order), inplace=True)

    def scores() -> np.ndarray:
        data = Batches(x, y, order)
        with tempfile.TemporaryDirectory() as folder, _quiet():
            trainer, state = begin()
            state = trainer.train(state, data, save_dir=folder, inplace=True)
            state.detach_()
            state.requires_grad = True
            out = torch.nn.functional.gelu(data.x[0] @ state.params["first"], approximate="tanh")
            loss = (out @ state.params["second"] - data.y[0]) ** 2
            slopes = torch.autograd.grad(loss, list(state.params.values()))
            memory = state.differentiable_tensors()[len(slopes) :]
            backward = BackwardState(
                dict(zip(state.params, slopes, strict=True)),
                [torch.zeros_like(each) for each in memory],
                torch.zeros_like(data.weights),
            )
            found = trainer.backward(folder, data, backward, state, inplace=True)
        return -len(x) * found.weight_grads.detach().numpy()

    return train, scores


@contextlib.contextmanager
def _quiet() -> Any:
    """Hide its progress bars."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
