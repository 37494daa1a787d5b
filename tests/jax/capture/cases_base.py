"""What a fragment is, and data for fragments."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

EXAMPLES = 3
Shape = tuple[int, ...]
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss function with the shapes of its parameters and of one example."""

    name: str
    loss: Callable[[Params, Any], Any]
    params: dict[str, Shape]
    example: Shape = (3,)
    ids: int | None = None  # examples are integers below it
    slow: bool = False  # a parameter is differentiated one example at a time

    def make(self) -> tuple[Params, Any]:
        """Return parameters and a batch, drawn from the name."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in self.params.items()}
        shape = (EXAMPLES, *self.example)
        if self.ids is not None:
            return params, jnp.asarray(rng.integers(0, self.ids, shape))
        return params, jnp.asarray(rng.normal(size=shape))


CASES: list[Case] = []


def case(params: dict[str, Shape], example: Shape = (3,), **facts: Any) -> Callable[[Any], Any]:
    """Enter a loss function into the table."""

    def enter(loss: Any) -> Any:
        CASES.append(Case(loss.__name__, loss, params, example, **facts))
        return loss

    return enter


def total(y: Any) -> Any:
    """Return one number for each example, in which every element counts differently."""
    flat = jnp.tanh(y).reshape(y.shape[0], -1)
    return (flat * jnp.cos(jnp.arange(flat.shape[1]))).sum(-1)


def conv(x, kernel, spec, strides=(1, 1), padding="SAME", **rest):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=spec, **rest)


_NHWC = ("NHWC", "HWIO", "NHWC")
