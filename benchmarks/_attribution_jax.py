"""The methods of the attribution benchmark from JAX: the same checkpoints, with copied weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _lds import Data
from torch import nn

import sawlog.jax

BATCH = 250


def outputs_fn(params: Any, batch: Any) -> Any:
    """Return the logits of the model, whose layers are named as PyTorch names them."""
    x = batch["x"]
    layers = sorted({int(name.partition(".")[0]) for name in params})
    for place, layer in enumerate(layers):
        x = (jax.nn.relu(x) if place else x) @ params[f"{layer}.weight"].T
        x = x + params[f"{layer}.bias"]
    return x


def loss_fn(params: Any, batch: Any) -> Any:
    """Return the cross entropy of each example."""
    logits = jax.nn.log_softmax(outputs_fn(params, batch))
    return -jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]


class JaxCheckpoint:
    """A checkpoint as parameters of a JAX function, with its data in batches."""

    def __init__(self, model: nn.Module, data: Data, folder: Path) -> None:
        self.params = {
            name: jnp.asarray(value.detach().numpy()) for name, value in model.named_parameters()
        }
        self.batches = _batches(data.x, data.y)
        self.queries = {"x": data.test_x.numpy(), "y": data.test_y.numpy().astype(np.int32)}
        self.run: Any = sawlog.init("lds", root=folder)

    def logged(self, compress: Any) -> tuple[Path, Any]:
        """Log the gradients of training and test images, as a user would."""
        run = self.run
        run.setup(statistic="kfac", compress=compress)
        run.watch(loss_fn, self.params, self.batches[0], quiet=True)
        for i, batch in enumerate(self.batches):
            run.record(np.arange(i * BATCH, i * BATCH + len(batch["y"])), self.params, batch)
        run.eval()
        run.record(np.arange(len(self.queries["y"])), self.params, self.queries)
        return run.store_path, run.get_log()

    def gauss_newton(self) -> Any:
        """Return the exact Gauss-Newton matrix."""
        return sawlog.jax.gauss_newton(self.run, outputs_fn, self.params, self.batches)


def _batches(x: Any, y: Any) -> list[dict[str, np.ndarray]]:
    parts = zip(x.split(BATCH), y.split(BATCH), strict=True)
    return [{"x": x.numpy(), "y": y.numpy().astype(np.int32)} for x, y in parts]
