"""Which matrix a parameter is whose uses have no factors: in runs of PyTorch it is the same one."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog
from sawlog.testing import assert_same_runs

X = jnp.linspace(-1.0, 1.0, 2 * 2 * 4 * 3).reshape(2, 2, 4, 3)


def standardised(kernel: Any) -> Any:
    return kernel / jnp.sqrt((kernel**2).sum())


def convolved(images: Any, kernel: Any, layout: str) -> Any:
    return lax.conv_general_dilated(
        images, standardised(kernel), (1, 1), "SAME", dimension_numbers=("NCHW", layout, "NCHW")
    )


def with_token(x: Any, w: Any) -> Any:
    return jnp.concatenate([jnp.broadcast_to(w, (len(x), 1, 3)), x], 1)


LAYOUTS = {
    "a table of positions": ((4, 3), lambda x, w: x[:, 0] + w, (4, 3)),
    "the first positions of a table": ((6, 3), lambda x, w: x[:, 0] + w[:4], (6, 3)),
    "positions by number": ((6, 3), lambda x, w: x[:, 0] + w[jnp.arange(4)], (6, 3)),
    "a table for a batch of one": ((1, 4, 3), lambda x, w: x[:, 0] + w, (4, 3)),
    "a token in front": ((1, 1, 3), lambda x, w: with_token(x[:, 0], w), (3, 1)),
    "a normalised weight": ((3, 5), lambda x, w: x @ standardised(w), (5, 3)),
    "a kernel, outputs first": ((5, 2, 3, 3), lambda x, w: convolved(x, w, "OIHW"), (5, 18)),
    "a kernel, outputs last": ((3, 3, 2, 5), lambda x, w: convolved(x, w, "HWIO"), (5, 18)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_and_columns(name: str):
    shape, outputs, wanted = LAYOUTS[name]
    params = {"w": jnp.ones(shape)}
    capture = sawlog.jax.capture(lambda p, x: jnp.tanh(outputs(x, p["w"])).reshape(2, -1).sum(1))
    (block,) = capture.plan(params, X).blocks
    assert block.shape == wanted


def loss_fn(p: Any, ids: Any) -> Any:
    x = p["words.weight"][ids] + p["positions"] + p["numbers.weight"][jnp.arange(4)]
    x = jnp.concatenate([jnp.broadcast_to(p["token"], (len(ids), 2, 3)), x], 1)
    return (jnp.tanh(x) @ p["head.weight"].T).sum((1, 2)) ** 2


@pytest.mark.parametrize("compress", [None, 2])
def test_tables_of_positions_are_stored_as_by_pytorch(compress: int | None, tmp_path: Path):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = torch.nn.Parameter(torch.randn(1, 4, 3))
            self.token = torch.nn.Parameter(torch.randn(1, 2, 3))
            self.words = torch.nn.Embedding(6, 3)
            self.numbers = torch.nn.Embedding(5, 3)
            self.head = torch.nn.Linear(3, 2, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.positions + self.numbers(torch.arange(4))
            x = torch.cat([self.token.expand(len(ids), 2, 3), x], 1)
            return self.head(torch.tanh(x)).sum((1, 2)) ** 2

    torch.manual_seed(0)
    model, ids = Model(), np.random.default_rng(0).integers(0, 6, (5, 4))
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    ours = sawlog.init("jax", root=tmp_path)
    ours.setup(compress=compress)
    ours.watch(loss_fn, params, ids, quiet=True)
    ours.record(range(5), params, ids)
    theirs = sawlog.torch.Run("torch", root=tmp_path)
    theirs.setup(compress=compress)
    theirs.watch(model, quiet=True)
    with theirs(data_id=range(5)):
        model(torch.as_tensor(ids)).sum().backward()
    for run in (ours, theirs):
        run.finalize()
    assert_same_runs(ours.store_path, theirs.store_path)
