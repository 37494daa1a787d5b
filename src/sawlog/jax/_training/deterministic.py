"""Whether a replayed run is the recorded one, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from sawlog.errors import ReplayError
from sawlog.jax._compat import subjaxprs
from sawlog.jax._training.states import Arrays, StateLayout

_HINT = (
    "Hint: a step may only depend on its arguments: draw random numbers from `key`, and use no "
    "numpy.random, Python state, clock or callback inside of it. On GPUs, set XLA_FLAGS="
    "--xla_gpu_deterministic_ops=true."
)


def check_same(recorded: Arrays, again: Arrays, layout: StateLayout, span: tuple[int, int]) -> None:
    """Raise unless two states are equal bit for bit."""
    if not bool(equal(recorded, again)):
        refuse(recorded, again, layout, span)


def refuse(recorded: Arrays, again: Arrays, layout: StateLayout, span: tuple[int, int]) -> NoReturn:
    """Say which arrays of two states differ."""
    where = f"Steps {span[0]} to {span[1] - 1} gave another result when they were replayed"
    raise ReplayError(f"{where}: {_differences(recorded, again, layout)}. {_HINT}")


def check_final(given: Any, found: Arrays, layout: StateLayout) -> None:
    """Raise unless the run ended in the state that the user recorded, bit for bit."""
    recorded = layout.split(given)
    if bool(equal(recorded, found)):
        return
    raise ReplayError(
        f"The run does not end in `final_state`: {_differences(recorded, found, layout)}. Hint: "
        "give the same batch order, seed and subset=None. A Python loop around a jitted step and a "
        'scan differ in the last bits: loop="python" calls `step` as your program does.'
    )


def check_traced(function: Callable[..., Any], args: tuple[Any, ...], what: str) -> None:
    """Raise if a function is another program each time that it is traced.

    Random numbers of numpy and counters of Python are constants of a traced program. Training, its
    replay and its derivative are traced one by one, and would be three different programs.
    """
    one, other = (jax.make_jaxpr(lambda *own: function(*own))(*args) for _ in range(2))
    if _same_programs(one, other):
        return
    flat = jax.tree.leaves(args)
    found: list[Arrays] = [(jaxpr_as_fun(each)(*flat), []) for each in (one, other)]
    if not bool(equal(*found)):
        raise ReplayError(f"{what} is another program each time that JAX traces it. {_HINT}")


def _same_programs(one: Any, other: Any) -> bool:
    texts = {re.sub("0x[0-9a-f]+", "", str(each)) for each in (one, other)}
    consts = zip(constants(one), constants(other), strict=False)
    return len(texts) == 1 and all(a is b or bool(_same_bits(a, b)) for a, b in consts)


def constants(jaxpr: Any) -> list[Any]:
    """Return the constants of a program and of the programs inside."""
    found = list(getattr(jaxpr, "consts", ()))
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for inner in subjaxprs(eqn.params):
            found += constants(inner)
    return found


@jax.jit
def equal(a: Arrays, b: Arrays) -> Any:
    """Return whether two states are equal bit for bit, as an array."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.all(jnp.stack([_same_bits(x, y) for x, y in pairs]))


def _same_bits(x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    same = x == y
    if jnp.issubdtype(x.dtype, jnp.inexact):
        same |= jnp.isnan(x) & jnp.isnan(y)
    return jnp.all(same)


def names_of_different(one: Arrays, other: Arrays, layout: StateLayout) -> list[str]:
    """Return the paths of the arrays of two states that differ."""
    return [f"state{name}" for name, _, _ in _different(one, other, layout)]


def _different(one: Arrays, other: Arrays, layout: StateLayout) -> list[tuple[str, Any, Any]]:
    names = [name for part in layout.arrays_names() for name in part]
    pairs = zip(names, [*one[0], *one[1]], [*other[0], *other[1]], strict=True)
    return [(name, x, y) for name, x, y in pairs if not bool(_same_bits(x, y))]


def _differences(recorded: Arrays, again: Arrays, layout: StateLayout) -> str:
    found = []
    for name, x, y in _different(recorded, again, layout):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            found.append(f"{name} is another key")
            continue
        gap = np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)).max()
        found.append(f"{name} differs by up to {gap:.3g}")
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (", ".join(found[:4]) + more) or "but not each time"
